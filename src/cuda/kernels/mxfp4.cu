/* mxfp4.cu - blocks of 32 codes of E2M1 with one E8M0 scale: along rows, columns, or squares.
 *
 * Codes and scales are those of src/cpu/fp4.c, bit for bit. Scales are rounded up, so only Inf
 * lies past the largest code. A patch has 16 rows of a column: what the transform takes, and
 * what random bytes are drawn for; the other half of the column's block lies in the lane 16
 * further. A block of zeros has code 0, and so has what lies outside the matrix: padding is
 * made on the way. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/decode.h"
#include "cuda/kernels/mx_patch.h"
#include "cuda/kernels/nvfp4_block.h"
#include "cuda/kernels/transform.h"
#include "format/philox.h"

#include "cuda/kernels/mxfp4.h"

#define DRAW OCT_HADAMARD_ROWS /* elements that random bytes are drawn for at once */

static_assert(DRAW == OCT_PATCH_ROWS, "a patch has whole draws and whole groups of rows");

/* What a block of threads has in shared memory. */
template <class T> struct mx4_shared {
    oct_mx_scales scales;
    oct_tile_leaves<OCT_TILE> leaves;
    uint32_t drawn[DRAW * oct_shape<T>::words][oct_shape<T>::threads]; /* each thread's own */
};

template <class T> struct mx4_work {
    const oct_mxfp4_params &p;
    oct_patch<T> &patch;
    mx4_shared<T> &shared;
    uint64_t seed;
};

/* ---- random words ---------------------------------------------------------------------- */

/* Of the patch's rows: word w of row r is drawn[words r + w]. The lanes that share a draw take
 * turns and write to each other. */
template <class T> static inline void draw_rows(const mx4_work<T> &work) {
    constexpr int words = oct_shape<T>::words, lanes = 4 / words;
    const oct_patch<T> &patch = work.patch;
    int mine = patch.lane_across % lanes, first = (int)threadIdx.x - mine;
    int64_t draws = oct_size_ceil_div(work.p.q.cols, DRAW);
    int64_t at = (patch.tile_row + patch.row) * draws + (patch.tile_col + patch.col) / DRAW;
    __syncwarp();
#pragma unroll 1
    for (int r = mine; r < OCT_PATCH_ROWS; r += lanes) {
        uint32_t drawn[4];
        oct_random_words(drawn, work.seed, (uint64_t)(at + r * draws), 0, work.p.stream);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            work.shared.drawn[words * r + w % words][first + w / words] = drawn[w];
        }
    }
    __syncwarp();
}

/* Of its columns: word w of column c is drawn[4 c + w]. */
template <class T> static inline void draw_cols(const mx4_work<T> &work) {
    const oct_patch<T> &patch = work.patch;
    int64_t draws = oct_size_ceil_div(work.p.q.rows, DRAW);
    int64_t at = (patch.tile_col + patch.col) * draws + (patch.tile_row + patch.row) / DRAW;
    __syncwarp();
#pragma unroll 1
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        uint32_t drawn[4];
        oct_random_words(drawn, work.seed, (uint64_t)(at + c * draws), 1, work.p.stream);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            work.shared.drawn[4 * c + w][threadIdx.x] = drawn[w];
        }
    }
}

/* ---- codes ----------------------------------------------------------------------------- */

/* N codes of stored elements, 4 or 8. NaNs have the code of 6. */
template <class E, int N, bool RANDOM>
static inline uint32_t codes_of(const uint32_t *stored, float factor, const uint32_t *random) {
    constexpr int count = N * (int)sizeof(E) / 4;
    constexpr uint32_t inf = sizeof(E) == 4 ? OCT_F32_INF : oct_is_bf16<E> ? 0x7f80u : 0x7c00u;
    uint32_t words[count], quads[2];
#pragma unroll
    for (int i = 0; i < count; i++) {
        words[i] = oct_nv_tamed<E>(stored[i], inf);
    }
    if constexpr (RANDOM) {
        oct_nv_random<E, N>(quads, words, factor, random);
    } else {
#pragma unroll
        for (int q = 0; q < N / 4; q++) {
            uint32_t sums[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[i] = oct_e2m1_sum<true>(oct_nv_scaled<E>(words, 4 * q + i, factor));
            }
            quads[q] = oct_e2m1_quad(sums);
        }
    }
    return oct_nv_codes<E, N>(quads, words);
}

/* The low `count` bytes of codes. */
static inline void store_some(uint8_t *to, uint2 codes, int count) {
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        to[i] = (uint8_t)(codes.x & 0xffu);
        codes.x = codes.x >> 8 | codes.y << 24;
        codes.y >>= 8;
    }
}

/* Scales of two columns as bf16. */
static inline uint32_t scale_pair(uint8_t low, uint8_t high) {
    return oct_bf16_pair(oct_e8m0_decode(low), oct_e8m0_decode(high));
}

/* ---- rows ------------------------------------------------------------------------------ */

template <class T>
static inline void store_row(const mx4_work<T> &work, uint8_t *to, int r, uint32_t codes) {
    constexpr int bytes = oct_shape<T>::cols / 2;
    const oct_patch<T> &patch = work.patch;
    if (patch.full && work.p.q.wide_row) {
        if (bytes == 4) {
            *(uint32_t *)to = codes;
        } else {
            *(uint16_t *)to = (uint16_t)codes;
        }
    } else if (r < patch.rows_left) {
        int count = (patch.cols_left + 1) / 2;
        store_some(to, {codes, 0}, count < bytes ? count : bytes);
    }
}

template <class T, bool RANDOM> static inline void encode_rows(const mx4_work<T> &work) {
    constexpr int cols = oct_shape<T>::cols, words = oct_shape<T>::words;
    const oct_patch<T> &patch = work.patch;
    const oct_mxfp4_params &p = work.p;
    const uint8_t *scales = work.shared.scales.row.codes;
    int64_t row = patch.tile_row + patch.row, col = patch.tile_col + patch.col;
    if (RANDOM) {
        draw_rows(work);
    }
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint8_t scale = scales[oct_tile_scale_at<1>(patch.row + r, patch.warp_across)];
        uint32_t stored[4] = {patch.raw[r].x, patch.raw[r].y, patch.raw[r].z, patch.raw[r].w};
        uint32_t random[2] = {0, 0};
        for (int w = 0; RANDOM && w < words; w++) {
            random[w] = work.shared.drawn[words * r + w][threadIdx.x];
        }
        uint32_t codes = codes_of<T, cols, RANDOM>(stored, oct_e8m0_reciprocal(scale), random);
        if (p.q.row) {
            store_row(work, p.q.row + (row + r) * p.row_bytes + col / 2, r, codes);
        }
        if (cols == 8 && p.copies.row && patch.full) {
            oct_write16(p.copies.row + (row + r) * p.q.cols + col,
                        oct_eight_nibbles(codes, scale_pair(scale, scale)));
        }
    }
}

/* ---- columns --------------------------------------------------------------------------- */

/* Column c as it is quantized: elements of E, which is T, or bf16 that have been transformed.
 */
template <class T, class E, bool HADAMARD>
static inline void take_col(uint32_t *out, const mx4_work<T> &work, int c) {
    constexpr int each = 4 / (int)sizeof(T); /* of T in a word */
    const oct_patch<T> &patch = work.patch;
    if constexpr (HADAMARD) {
        float x[OCT_HADAMARD_ROWS];
#pragma unroll
        for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
            x[r] = oct_patch_at(patch, r, c);
        }
        oct_transform<T>(x, work.p.weights);
#pragma unroll
        for (int i = 0; i < OCT_HADAMARD_ROWS / 2; i++) {
            out[i] = oct_bf16_pair(x[2 * i], x[2 * i + 1]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < OCT_PATCH_ROWS / each; i++) {
            uint32_t low = oct_word(patch.raw[each * i], c / each);
            uint32_t high = oct_word(patch.raw[each * i + each - 1], c / each);
            out[i] = each == 1 ? low : oct_pick_bytes(low, high, c % 2 ? 0x7632 : 0x5410);
        }
    }
}

/* The codes of 16 rows of column c, and the scale of its block. */
template <class T, class E, bool RANDOM, bool HADAMARD>
static inline uint2 quantize_col(uint8_t *scale, const mx4_work<T> &work, int c,
                                 uint32_t square) {
    constexpr int half = 8 * (int)sizeof(E) / 4;
    uint32_t stored[2 * half], random[4] = {0, 0, 0, 0};
    take_col<T, E, HADAMARD>(stored, work, c);
    uint32_t most = oct_nv_max<E, false>(stored);
    uint32_t other = __shfl_xor_sync(OCT_ALL_LANES, most, oct_mx_shape<T>::across);
    most = work.p.square ? square : oct_max_bits(most, other);
    *scale = oct_mx_code(oct_bits_f32(most), oct_mx_unit(OCTET_E2M1));
    float factor = oct_e8m0_reciprocal(*scale);
    for (int w = 0; RANDOM && w < 4; w++) {
        random[w] = work.shared.drawn[4 * c + w][threadIdx.x];
    }
    return {codes_of<E, 8, RANDOM>(stored, factor, random),
            codes_of<E, 8, RANDOM>(stored + half, factor, random + 2)};
}

/* The codes of 8 rows of 8 columns as bf16, as the rows lie. */
static inline void copy_cols(uint16_t *to, int64_t stride, const uint32_t codes[8],
                             const uint8_t scales[8]) {
    uint32_t x[8], worth[4];
#pragma unroll
    for (int i = 0; i < 8; i++) { /* columns 2 i and 2 i + 1 become nibbles i and i + 4 */
        x[i] = codes[i < 4 ? 2 * i : 2 * i - 7];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        worth[i] = scale_pair(scales[2 * i], scales[2 * i + 1]);
    }
    oct_turn_nibbles(x);
#pragma unroll
    for (int r = 0; r < 8; r++) {
        oct_write16(to + r * stride, uint4{oct_nibble_pair(x[r], 0, worth[0]),
                                           oct_nibble_pair(x[r], 1, worth[1]),
                                           oct_nibble_pair(x[r], 2, worth[2]),
                                           oct_nibble_pair(x[r], 3, worth[3])});
    }
}

/* The transform keeps all outputs of the last group of rows. */
template <class T> static inline void store_col(const mx4_work<T> &work, int c, uint2 codes) {
    const oct_patch<T> &patch = work.patch;
    const oct_mxfp4_params &p = work.p;
    int count = patch.rows_left < DRAW ? (patch.rows_left + 1) / 2 : DRAW / 2;
    count = p.hadamard && patch.rows_left > 0 ? DRAW / 2 : count;
    uint8_t *to = p.q.col + (patch.tile_col + patch.col + c) * p.col_bytes +
                  (patch.tile_row + patch.row) / 2;
    if (c >= patch.cols_left) {
        return;
    }
    if (count == DRAW / 2 && p.q.wide_col) {
        *(uint2 *)to = codes;
    } else {
        store_some(to, codes, count);
    }
}

template <class T, class E, bool RANDOM, bool HADAMARD>
static inline void quantize_cols(const mx4_work<T> &work) {
    constexpr int cols = oct_shape<T>::cols;
    const oct_patch<T> &patch = work.patch;
    const oct_mxfp4_params &p = work.p;
    uint32_t low[cols], high[cols], square = p.square ? oct_mx_square_max(patch) : 0u;
    uint8_t scales[cols];
    if (RANDOM) {
        draw_cols(work);
    }
#pragma unroll
    for (int c = 0; c < cols; c++) {
        uint2 codes = quantize_col<T, E, RANDOM, HADAMARD>(&scales[c], work, c, square);
        low[c] = codes.x;
        high[c] = codes.y;
        work.shared.scales.col
            .codes[oct_tile_scale_at<1>(patch.col + c, patch.row / OCT_MX_BLOCK)] =
            c < patch.cols_left ? scales[c] : 0;
        if (p.q.col) {
            store_col(work, c, codes);
        }
    }
    if constexpr (cols == 8) {
        if (p.copies.col && patch.full) {
            uint16_t *to = p.copies.col + (patch.tile_row + patch.row) * p.q.cols +
                           patch.tile_col + patch.col;
            copy_cols(to, p.q.cols, low, scales);
            copy_cols(to + 8 * p.q.cols, p.q.cols, high, scales);
        }
    }
}

/* ---- a tile ---------------------------------------------------------------------------- */

template <class T> static inline void store_scales(const mx4_work<T> &work) {
    const oct_patch<T> &patch = work.patch;
    const oct_quantize_params &q = work.p.q;
    oct_scales_place row = {(uint8_t *)q.row_scale, &q.row_at, patch.tile_row,
                            patch.tile_col / OCT_MX_BLOCK};
    oct_scales_place col = {(uint8_t *)q.col_scale, &q.col_at, patch.tile_col,
                            patch.tile_row / OCT_MX_BLOCK};
    if (q.row) {
        oct_tile_scales_store(work.shared.scales.row, row);
    }
    if (q.col) {
        oct_tile_scales_store(work.shared.scales.col, col);
    }
}

template <class T, bool RANDOM> static inline void quantize(const oct_mxfp4_params &p) {
    __shared__ mx4_shared<T> shared;
    const oct_quantize_params &q = p.q;
    oct_patch<T> patch = oct_mx_patch_of<T>(q, blockIdx.x);
    oct_patch_load(patch, q);
    if (q.ahead) {
        oct_ask_for_tile<T, OCT_TILE>(q, blockIdx.x + q.ahead);
    }
    if (q.sums) {
        oct_leaves_put(shared.leaves, patch);
    }
    mx4_work<T> work = {p, patch, shared, RANDOM ? (uint64_t)*p.seed : 0};
    if (q.row || p.copies.row) {
        oct_mx_scale_rows<T, OCTET_E2M1>(shared.scales, patch, p.square);
        __syncwarp();
        encode_rows<T, RANDOM>(work);
    }
    if ((q.col || p.copies.col) && p.hadamard) {
        quantize_cols<T, oct_bf16, RANDOM, true>(work);
    } else if (q.col || p.copies.col) {
        quantize_cols<T, T, RANDOM, false>(work);
    }
    __syncthreads();
    store_scales(work);
    if (q.sums) {
        oct_leaves_store(shared.leaves, patch, q);
    }
}

#define KERNEL(name, T, random)                                                                \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads)                        \
        mxfp4_##name(const __grid_constant__ oct_mxfp4_params p) {                             \
        oct_after();                                                                           \
        quantize<T, random>(p);                                                                \
    }

#ifdef OCT_TAKES_F32
KERNEL(f32, float, false)
KERNEL(sr_f32, float, true)
#endif
#ifdef OCT_TAKES_BF16
KERNEL(bf16, oct_bf16, false)
KERNEL(sr_bf16, oct_bf16, true)
#endif
#ifdef OCT_TAKES_F16
KERNEL(f16, oct_f16, false)
KERNEL(sr_f16, oct_f16, true)
#endif
