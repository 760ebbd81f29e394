/* nvfp4.cu - blocks of 16 with one E4M3 scale under an fp32 amax.
 *
 * Codes and scales are those of src/cpu/nvfp4.c, bit for bit. The blocks of a patch's columns
 * are its own; those of its rows are shared with one or three lanes beside it. A block of zeros
 * has scale 0 and codes 0, and so has what lies outside the matrix: padding is made on the way.
 */
#include "cuda/kernels/alpha.h"
#include "cuda/kernels/chain.h"
#include "cuda/kernels/decode.h"
#include "cuda/kernels/dynamic.h"
#include "cuda/kernels/nvfp4_cols.h"
#include "cuda/kernels/nvfp4_rows.h"

/* ---- squares --------------------------------------------------------------------------- */

/* The larger of what the lanes of a square have. */
template <class T> static inline uint32_t square_share(uint32_t most) {
#pragma unroll
    for (int k = 1; k < oct_nv_row<T>::lanes; k *= 2) {
        most = oct_max_bits(most, __shfl_xor_sync(OCT_ALL_LANES, most, k));
    }
    return most;
}

template <class T> static inline uint32_t square_max(const oct_patch<T> &patch) {
    return square_share<T>(oct_patch_max(patch));
}

/* The square's scale, in the lines of both directions that exist. */
template <class T>
static inline void scale_square(const oct_nv_work<T> &work, const oct_nv_scale &scale) {
    const oct_patch<T> &patch = work.patch;
    int mine = patch.lane_across % oct_nv_row<T>::lanes * oct_nv_row<T>::each;
#pragma unroll
    for (int r = mine; r < mine + oct_nv_row<T>::each; r++) {
        work.shared.scales[0]
            .codes[oct_tile_scale_at<2>(patch.row + r, patch.col / OCT_NV_BLOCK)] =
            (uint8_t)(r < patch.rows_left ? scale.code : 0u);
    }
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        work.shared.scales[1]
            .codes[oct_tile_scale_at<2>(patch.col + c, patch.row / OCT_NV_BLOCK)] =
            (uint8_t)(c < patch.cols_left ? scale.code : 0u);
    }
}

/* Rows, whose codes lie where their elements have lain. Both copies are the same. */
template <class T>
static inline void encode_square(const oct_nv_work<T> &work, const oct_nv_scale &scale) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    uint32_t worth = oct_f32_bits(scale.value);
    uint8_t *to =
        p.q.row + (patch.tile_row + patch.row) * p.row_bytes + (patch.tile_col + patch.col) / 2;
    uint16_t *row_copy = oct_nv_copy_at(work, work.copies.row, 0);
    uint16_t *col_copy = oct_nv_copy_at(work, work.copies.col, 0);
    int64_t at = 0;
#pragma unroll 2
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint32_t words[4], quads[2];
        oct_nv_load_row(words, work, r);
        if (work.careful) {
            oct_nv_tame_row<T, false>(words, scale.factor);
        }
        oct_nv_encode<T, oct_shape<T>::cols, false>(quads, words, scale.factor, nullptr);
        uint32_t codes = oct_nv_codes<T, oct_shape<T>::cols>(quads, words);
        oct_nv_word(work, r, 0) = codes;
        if (p.q.row) {
            oct_nv_store_row(work, to, r, codes);
        }
        if (row_copy || col_copy) {
            uint4 values = oct_nv_copy(quads, words, oct_pick_bytes(worth, worth, 0x3232));
            if (row_copy) {
                oct_write16(row_copy + at, values);
            }
            if (col_copy) {
                oct_write16(col_copy + at, values);
            }
        }
        to += p.row_bytes;
        at += p.q.cols;
    }
}

/* Columns, from the codes of rows. */
template <class T> static inline void turn_square(const oct_nv_work<T> &work) {
    uint32_t x[2][8];
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[half][i] = oct_nv_word(work, 8 * half + i, 0);
        }
        oct_turn_nibbles(x[half]);
    }
    oct_nv_lines lines = oct_nv_lines_of(work);
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        oct_nv_store_col(work, lines, lines.to, c, {x[0][c], x[1][c]});
        lines.to += work.p.col_bytes;
    }
}

/* Squares to nearest: one scale for a patch, and columns with the codes of rows. */
template <class T> static inline void quantize_square(oct_nv_work<T> &work) {
    const oct_nvfp4_params &p = work.p;
    uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most = oct_peak_or_nan<T>(most, oct_patch_row_peak_or_nan(work.patch, r));
    }
    most = square_share<T>(oct_peak_bits<T>(most));
    if (__ballot_sync(OCT_ALL_LANES, most > OCT_F32_INF) != 0) {
        work.careful = true;
        most = square_max(work.patch);
    }
    oct_nv_global global =
        oct_nv_line_global(p, p.row_amax ? p.row_amax : p.col_amax, 0, p.q.rows);
    oct_nv_scale scale = oct_nv_scale_of(most, global);
    bool tame = oct_nv_is_tame(most, scale);
    if (!tame) {
        scale.factor = oct_nv_slow_factor(most, scale, global);
    }
    work.careful |= __ballot_sync(OCT_ALL_LANES, !tame && most != 0) != 0;
    scale_square(work, scale);
    encode_square(work, scale);
    if (p.q.col) {
        turn_square(work);
    }
}

template <class T> static inline void store_scales(const oct_nv_work<T> &work) {
    const oct_quantize_params &q = work.p.q;
    if (q.row) {
        oct_scales_place row = {(uint8_t *)q.row_scale, &q.row_at, work.patch.tile_row,
                                work.patch.tile_col / OCT_NV_BLOCK};
        oct_tile_scales_store(work.shared.scales[0], row);
    }
    if (q.col) {
        oct_scales_place col = {(uint8_t *)q.col_scale, &q.col_at, work.patch.tile_col,
                                work.patch.tile_row / OCT_NV_BLOCK};
        oct_tile_scales_store(work.shared.scales[1], col);
    }
}

/* Late, and not unrolled: so no kernel spills more for it. */
static inline void make_alphas(const oct_nvfp4_params &p) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < 2 && p.alphas[i].out; i++) {
            oct_make_alpha(p.alphas[i]);
        }
    }
}

template <class T, int WAY> static inline void quantize(const oct_nvfp4_params &p) {
    OCT_DYNAMIC_SHARED(oct_nv_shared<T>, shared);
    constexpr int threads = oct_shape<T>::threads;
    static_assert(sizeof(oct_nv_shared<T>) == OCT_NV_SHARED_BYTES(threads, true) &&
                      sizeof shared->factors == OCT_NV_SHARED_BYTES(threads, true) -
                                                    OCT_NV_SHARED_BYTES(threads, false),
                  "what the host asks for");
    constexpr bool stochastic = (WAY & OCT_NV_STOCHASTIC) != 0;
    oct_patch<T> patch = oct_patch_of<T>(p.q);
    if (!p.measured) {
        oct_after();
    }
    oct_patch_load(patch, p.q);
    constexpr bool asks = WAY != OCT_NV_COPIED; /* which has no registers for it */
    uint32_t later = blockIdx.x + p.q.ahead;
    if (asks && p.q.ahead && later < gridDim.x) {
        oct_ask_for_tile<T, OCT_TILE>(p.q, p.q.backward ? gridDim.x - 1u - later : later);
    }
    if (p.measured) {
        oct_after();
    }
    uint64_t seed = stochastic ? (uint64_t)*p.seed : 0;
    bool square = p.square && !(WAY & OCT_NV_WHOLE);
    oct_copies copies = WAY & OCT_NV_COPIED ? p.copies : oct_copies{nullptr, nullptr};
    oct_nv_work<T> work = {p, patch, *shared, copies, seed, square, 0u, false, 0u, 0u, 0.0f};
    if (square) {
        work.square_most = square_max(patch);
    }
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        *(uint2 *)shared->words[2 * r][threadIdx.x] = uint2{patch.raw[r].x, patch.raw[r].y};
        *(uint2 *)shared->words[2 * r + 1][threadIdx.x] = uint2{patch.raw[r].z, patch.raw[r].w};
    }
    if constexpr (WAY & OCT_NV_WHOLE) {
        quantize_square(work);
    } else {
        if (p.q.row || copies.row) {
            oct_nv_scale_rows(work);
            oct_nv_encode_rows<T, WAY>(work);
        }
        if (p.q.col || copies.col) {
            if (p.hadamard) {
                oct_nv_quantize_cols<T, oct_bf16, WAY, true>(work);
            } else {
                oct_nv_quantize_cols<T, T, WAY, false>(work);
            }
            oct_nv_copy_cols(work);
        }
    }
    __syncthreads();
    make_alphas(p);
    store_scales(work);
}

/* Blocks on a multiprocessor, at least: where shared memory has room for six, registers are
 * made to suffice. */
#if OCT_PTX && __CUDA_ARCH__ == 900
#define RESIDENT(T) (sizeof(T) == 2 ? 6 : 2)
#else
#define RESIDENT(T) oct_shape<T>::resident
#endif

#define KERNEL(name, T, way)                                                                   \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads, RESIDENT(T))           \
        nvfp4_##name(oct_nvfp4_params p) {                                                     \
        quantize<T, way>(p);                                                                   \
    }

#ifdef OCT_TAKES_F32
KERNEL(f32, float, OCT_NV_NEAREST)
KERNEL(sr_f32, float, OCT_NV_STOCHASTIC)
KERNEL(squares_f32, float, OCT_NV_WHOLE)
#endif
#ifdef OCT_TAKES_BF16
KERNEL(bf16, oct_bf16, OCT_NV_NEAREST)
KERNEL(sr_bf16, oct_bf16, OCT_NV_STOCHASTIC)
KERNEL(copied_bf16, oct_bf16, OCT_NV_NEAREST | OCT_NV_COPIED)
KERNEL(copied_sr_bf16, oct_bf16, OCT_NV_STOCHASTIC | OCT_NV_COPIED)
KERNEL(squares_bf16, oct_bf16, OCT_NV_WHOLE | OCT_NV_COPIED)
#endif
#ifdef OCT_TAKES_F16
KERNEL(f16, oct_f16, OCT_NV_NEAREST)
KERNEL(sr_f16, oct_f16, OCT_NV_STOCHASTIC)
KERNEL(copied_f16, oct_f16, OCT_NV_NEAREST | OCT_NV_COPIED)
KERNEL(copied_sr_f16, oct_f16, OCT_NV_STOCHASTIC | OCT_NV_COPIED)
KERNEL(squares_f16, oct_f16, OCT_NV_WHOLE | OCT_NV_COPIED)
#endif
