/* nvfp4.cu - blocks of 16 with one E4M3 scale under an fp32 amax.
 *
 * Codes and scales are those of src/cpu/nvfp4.c, bit for bit. The blocks of a patch's columns
 * are its own; those of its rows are shared with one or three lanes beside it. A block of zeros
 * has scale 0 and codes 0, and so has what lies outside the matrix: padding is made on the way.
 */
#include "cuda/kernels/patch.h"
#include "cuda/kernels/tile_scales.h"
#include "cuda/kernels/transform.h"

#include "cuda/kernels/nvfp4.h"
#include "format/philox.h"

#define BLOCK 16

/* Lanes that share the blocks of a row, and the rows whose scales each of them makes. */
template <class T> struct nv_row {
    static constexpr int lanes = BLOCK / oct_shape<T>::cols;
    static constexpr int each = OCT_PATCH_ROWS / lanes;
};

struct nv_scale {
    uint32_t code;
    float factor;
};

static inline nv_scale scale_of(uint32_t most, const oct_nv_global &global) {
    nv_scale scale;
    scale.code = oct_nv_code(oct_bits_f32(most), &global);
    scale.factor = oct_nv_multiplier((uint8_t)scale.code, &global);
    return scale;
}

/* What the blocks of a line share; a line outside the matrix has an amax of 0. */
static inline oct_nv_global global_of(const oct_nvfp4_params &p, const float *amax,
                                      int64_t line, int64_t lines) {
    int64_t at = p.row_scaled ? line : 0;
    return oct_nv_global_of(at < lines ? amax[at] : 0.0f, p.aim);
}

static inline uint64_t seed_of(const oct_nvfp4_params &p) {
    return (uint64_t)p.random[0] + (uint64_t)p.random[1];
}

/* COUNT codes, at most 8, in a word; element i takes byte i of `random`. */
template <int COUNT, bool STOCHASTIC>
static inline uint32_t encode(const float *x, float factor, const uint32_t *random) {
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float value = x[i] * factor;
        uint32_t code = STOCHASTIC
                            ? oct_e2m1_encode_stochastic(value, oct_random_byte(random, i))
                            : oct_encode_e2m1(value);
        codes |= code << 4 * i;
    }
    return codes;
}

/* ---- rows ------------------------------------------------------------------------------ */

template <class T>
static inline void store_row(const oct_patch<T> &patch, const oct_nvfp4_params &p, int r,
                             uint32_t codes) {
    constexpr int bytes = oct_shape<T>::cols / 2;
    uint8_t *to = p.q.row + (patch.tile_row + patch.row + r) * p.row_bytes +
                  (patch.tile_col + patch.col) / 2;
    if (patch.full && p.q.wide_row) {
        if (bytes == 4) {
            *(uint32_t *)to = codes;
        } else {
            *(uint16_t *)to = (uint16_t)codes;
        }
    } else if (r < patch.rows_left) {
        int count = (patch.cols_left + 1) / 2;
        oct_store_bytes(to, (const uint8_t *)&codes, count < bytes ? count : bytes);
    }
}

template <class T, bool STOCHASTIC>
static inline void encode_row(const oct_patch<T> &patch, const oct_nvfp4_params &p, int r,
                              float factor, const uint32_t *random) {
    float x[oct_shape<T>::cols];
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        x[c] = oct_patch_at(patch, r, c);
    }
    store_row(patch, p, r, encode<oct_shape<T>::cols, STOCHASTIC>(x, factor, random));
}

/* The random words of this lane's part of a block, which lane `from` has drawn. */
template <class T>
static inline void receive(uint32_t out[2], const uint32_t words[4], int from, int mine) {
    uint32_t all[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        all[i] = __shfl_sync(OCT_ALL_LANES, words[i], from);
    }
    if (nv_row<T>::lanes == 2) {
        out[0] = mine ? all[2] : all[0];
        out[1] = mine ? all[3] : all[1];
    } else {
        out[0] = mine & 2 ? (mine & 1 ? all[3] : all[2]) : (mine & 1 ? all[1] : all[0]);
        out[1] = 0;
    }
}

/* The sharing lanes draw and scale for each other: factors[i] is for row mine * each + i. */
template <class T, bool STOCHASTIC>
static inline void encode_rows(const oct_patch<T> &patch, const oct_nvfp4_params &p,
                               const float *factors) {
    typedef nv_row<T> row;
    int mine = patch.lane_across % row::lanes;
    int first = (int)threadIdx.x % OCT_WARP - mine * oct_shape<T>::down;
    uint64_t seed = STOCHASTIC ? seed_of(p) : 0;
#pragma unroll
    for (int i = 0; i < row::each; i++) {
        uint32_t words[4], random[2] = {0, 0};
        if (STOCHASTIC) {
            int64_t line = patch.tile_row + patch.row + mine * row::each + i;
            int64_t block = line * p.q.row_at.blocks + (patch.tile_col + patch.col) / BLOCK;
            oct_random_words(words, seed, (uint64_t)block, 0);
        }
#pragma unroll
        for (int k = 0; k < row::lanes; k++) {
            int from = first + k * oct_shape<T>::down;
            float factor = __shfl_sync(OCT_ALL_LANES, factors[i], from);
            if (STOCHASTIC) {
                receive<T>(random, words, from, mine);
            }
            encode_row<T, STOCHASTIC>(patch, p, k * row::each + i, factor, random);
        }
    }
}

template <class T, bool STOCHASTIC>
static inline void quantize_rows(const oct_patch<T> &patch, const oct_nvfp4_params &p,
                                 oct_tile_scales<2> &scales) {
    typedef nv_row<T> row;
    int mine = patch.lane_across % row::lanes;
    uint32_t most[OCT_PATCH_ROWS];
    float factors[row::each];
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = oct_patch_row_max(patch, r);
    }
    oct_share_max<OCT_PATCH_ROWS, row::lanes>(most, mine, oct_shape<T>::down);
    oct_nv_global global = global_of(p, p.row_amax, 0, p.q.rows);
#pragma unroll
    for (int i = 0; i < row::each; i++) {
        int line = patch.row + mine * row::each + i;
        if (p.row_scaled) {
            global = global_of(p, p.row_amax, patch.tile_row + line, p.q.rows);
        }
        nv_scale scale = scale_of(most[i], global);
        factors[i] = scale.factor;
        scales.codes[line * 8 + patch.col / BLOCK] = (uint8_t)scale.code;
    }
    encode_rows<T, STOCHASTIC>(patch, p, factors);
}

/* ---- columns --------------------------------------------------------------------------- */

/* The 16 codes of a column. The transform keeps all outputs of the last group of rows. */
template <class T>
static inline void store_col(const oct_patch<T> &patch, const oct_nvfp4_params &p, int c,
                             uint2 codes) {
    uint8_t *to = p.q.col + (patch.tile_col + patch.col + c) * p.col_bytes +
                  (patch.tile_row + patch.row) / 2;
    int count = patch.rows_left < BLOCK ? (patch.rows_left + 1) / 2 : BLOCK / 2;
    count = p.hadamard && patch.rows_left > 0 ? BLOCK / 2 : count;
    if (c < patch.cols_left && count == BLOCK / 2 && p.q.wide_col) {
        *(uint2 *)to = codes;
    } else if (c < patch.cols_left) {
        oct_store_bytes(to, (const uint8_t *)&codes, count);
    }
}

template <class T, bool STOCHASTIC>
static inline void encode_col(const oct_patch<T> &patch, const oct_nvfp4_params &p, int c,
                              const float *x, float factor) {
    uint32_t random[4] = {0, 0, 0, 0};
    if (STOCHASTIC) {
        int64_t line = patch.tile_col + patch.col + c;
        int64_t block = line * p.q.col_at.blocks + (patch.tile_row + patch.row) / BLOCK;
        oct_random_words(random, seed_of(p), (uint64_t)block, 1);
    }
    store_col(patch, p, c,
              uint2{encode<8, STOCHASTIC>(x, factor, random),
                    encode<8, STOCHASTIC>(x + 8, factor, random + 2)});
}

/* Column c as it is quantized: as it is, or transformed and rounded to bf16. */
template <class T>
static inline void load_col(float x[BLOCK], const oct_patch<T> &patch,
                            const oct_nvfp4_params &p, int c) {
    if (p.hadamard) {
        oct_patch_transform(x, patch, c, p.weights);
#pragma unroll
        for (int r = 0; r < BLOCK; r++) {
            x[r] = oct_bf16_decode(oct_bf16_encode(x[r]));
        }
        return;
    }
#pragma unroll
    for (int r = 0; r < BLOCK; r++) {
        x[r] = oct_patch_at(patch, r, c);
    }
}

template <class T, bool STOCHASTIC>
static inline void quantize_cols(const oct_patch<T> &patch, const oct_nvfp4_params &p,
                                 oct_tile_scales<2> &scales) {
    oct_nv_global global = global_of(p, p.col_amax, 0, p.q.cols);
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        float x[BLOCK], most = 0.0f;
        load_col(x, patch, p, c);
#pragma unroll
        for (int r = 0; r < BLOCK; r++) {
            most = oct_larger(most, x[r]);
        }
        if (p.row_scaled) {
            global = global_of(p, p.col_amax, patch.tile_col + patch.col + c, p.q.cols);
        }
        nv_scale scale = scale_of(oct_f32_bits(most), global);
        scales.codes[(patch.col + c) * 8 + patch.row / BLOCK] = (uint8_t)scale.code;
        encode_col<T, STOCHASTIC>(patch, p, c, x, scale.factor);
    }
}

/* ---- squares --------------------------------------------------------------------------- */

/* One scale, written to each line of its square that exists in either direction. */
template <class T>
static inline void put_square(const oct_patch<T> &patch, oct_tile_scales<2> *scales,
                              uint32_t code) {
    for (int r = 0; r < OCT_PATCH_ROWS && patch.lane_across % nv_row<T>::lanes == 0; r++) {
        scales[0].codes[(patch.row + r) * 8 + patch.col / BLOCK] =
            (uint8_t)(r < patch.rows_left ? code : 0u);
    }
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        scales[1].codes[(patch.col + c) * 8 + patch.row / BLOCK] =
            (uint8_t)(c < patch.cols_left ? code : 0u);
    }
}

template <class T, bool STOCHASTIC>
static inline void quantize_squares(const oct_patch<T> &patch, const oct_nvfp4_params &p,
                                    oct_tile_scales<2> *scales) {
    uint32_t most = oct_patch_max(patch);
#pragma unroll
    for (int k = 1; k < nv_row<T>::lanes; k *= 2) {
        most = oct_max_bits(most, __shfl_xor_sync(OCT_ALL_LANES, most, k * oct_shape<T>::down));
    }
    oct_nv_global global = oct_nv_global_of(*(p.q.row ? p.row_amax : p.col_amax), p.aim);
    nv_scale scale = scale_of(most, global);
    put_square(patch, scales, scale.code);
    if (p.q.row) {
        float factors[nv_row<T>::each];
#pragma unroll
        for (int i = 0; i < nv_row<T>::each; i++) {
            factors[i] = scale.factor;
        }
        encode_rows<T, STOCHASTIC>(patch, p, factors);
    }
#pragma unroll
    for (int c = 0; p.q.col && c < oct_shape<T>::cols; c++) {
        float x[BLOCK];
#pragma unroll
        for (int r = 0; r < BLOCK; r++) {
            x[r] = oct_patch_at(patch, r, c);
        }
        encode_col<T, STOCHASTIC>(patch, p, c, x, scale.factor);
    }
}

/* ---- tiles ----------------------------------------------------------------------------- */

template <class T, bool STOCHASTIC> static inline void quantize(const oct_nvfp4_params &p) {
    __shared__ oct_tile_scales<2> scales[2];
    const oct_quantize_params &q = p.q;
    oct_patch<T> patch = oct_patch_of<T>(q);
    oct_patch_load(patch, q);
    if (p.square) {
        quantize_squares<T, STOCHASTIC>(patch, p, scales);
    } else {
        if (q.row) {
            quantize_rows<T, STOCHASTIC>(patch, p, scales[0]);
        }
        if (q.col) {
            quantize_cols<T, STOCHASTIC>(patch, p, scales[1]);
        }
    }
    __syncthreads();
    if (q.row) {
        oct_scales_place row = {(uint8_t *)q.row_scale, &q.row_at, patch.tile_row,
                                patch.tile_col / BLOCK};
        oct_tile_scales_store(scales[0], row);
    }
    if (q.col) {
        oct_scales_place col = {(uint8_t *)q.col_scale, &q.col_at, patch.tile_col,
                                patch.tile_row / BLOCK};
        oct_tile_scales_store(scales[1], col);
    }
}

#define KERNEL(name, T, stochastic)                                                            \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads)                        \
        nvfp4_##name(oct_nvfp4_params p) {                                                     \
        quantize<T, stochastic>(p);                                                            \
    }

KERNEL(f32, float, false)
KERNEL(bf16, oct_bf16, false)
KERNEL(f16, oct_f16, false)
KERNEL(sr_f32, float, true)
KERNEL(sr_bf16, oct_bf16, true)
KERNEL(sr_f16, oct_f16, true)
