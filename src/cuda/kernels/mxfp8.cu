/* mxfp8.cu - blocks of 32 with one E8M0 scale: along rows, along columns, or squares.
 *
 * Codes and scales are those of src/cpu/mxfp8.c, bit for bit. A warp's rows are blocks; two
 * patches below each other hold the blocks of their columns. A block of zeros has code 0, and
 * so have those outside the matrix: padding is made on the way. */
#include "cuda/kernels/patch.h"
#include "cuda/kernels/tile_scales.h"

#include "cuda/kernels/mxfp8.h"

/* The scales of `COUNT` lines of this lane, a byte each. */
template <int COUNT> static inline uint32_t codes_of(const uint32_t *most, float unit) {
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        codes |= (uint32_t)oct_mx_code(oct_bits_f32(most[i]), unit) << 8 * i;
    }
    return codes;
}

static inline float factor_of(uint32_t codes, int i) {
    return oct_e8m0_reciprocal((uint8_t)(codes >> 8 * i & 0xffu));
}

template <class T, int FORMAT>
static inline void quantize_rows(const oct_patch<T> &patch, const oct_quantize_params &q,
                                 oct_tile_scales<1> &scales) {
    typedef oct_shape<T> shape;
    constexpr int each = OCT_PATCH_ROWS / shape::across;
    uint32_t most[OCT_PATCH_ROWS];
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = oct_patch_row_max(patch, r);
    }
    oct_share_max<OCT_PATCH_ROWS, shape::across>(most, patch.lane_across, shape::down);
    uint32_t mine = codes_of<each>(most, oct_mx_unit(FORMAT));
#pragma unroll
    for (int i = 0; i < each; i++) {
        int line = patch.row + patch.lane_across * each + i;
        scales.codes[line * 4 + patch.warp_across] = (uint8_t)(mine >> 8 * i & 0xffu);
    }
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        int lane = (int)threadIdx.x % shape::down + r / each * shape::down;
        uint32_t word = __shfl_sync(OCT_ALL_LANES, mine, lane);
        float factor = factor_of(word, r % each);
        uint32_t codes[2];
#pragma unroll
        for (int w = 0; w < shape::words; w++) {
            codes[w] = oct_patch_encode_row<T, FORMAT>(patch, r, w, factor);
        }
        oct_patch_store_row(patch, q, q.row, r, codes);
    }
}

/* Columns are stored as the rows lie. */
template <class T, int FORMAT>
static inline void encode_cols(const oct_patch<T> &patch, const oct_quantize_params &q,
                               const float *factors) {
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint32_t codes[2];
#pragma unroll
        for (int w = 0; w < oct_shape<T>::words; w++) {
            codes[w] =
                oct_encode4<FORMAT>(oct_patch_at(patch, r, 4 * w) * factors[4 * w],
                                    oct_patch_at(patch, r, 4 * w + 1) * factors[4 * w + 1],
                                    oct_patch_at(patch, r, 4 * w + 2) * factors[4 * w + 2],
                                    oct_patch_at(patch, r, 4 * w + 3) * factors[4 * w + 3]);
        }
        oct_patch_store_row(patch, q, q.col, r, codes);
    }
}

template <class T, int FORMAT>
static inline void quantize_cols(const oct_patch<T> &patch, const oct_quantize_params &q,
                                 oct_tile_scales<1> &scales) {
    typedef oct_shape<T> shape;
    constexpr int each = shape::cols / 2;
    int lower = (int)threadIdx.x % 2;
    uint32_t most[shape::cols];
    float factors[shape::cols];
    oct_patch_col_max(most, patch);
    oct_share_max<shape::cols, 2>(most, lower, 1);
    uint32_t mine = codes_of<each>(most, oct_mx_unit(FORMAT));
    uint32_t other = __shfl_xor_sync(OCT_ALL_LANES, mine, 1);
#pragma unroll
    for (int i = 0; i < each; i++) {
        int line = patch.col + lower * each + i;
        scales.codes[line * 4 + patch.row / 32] = (uint8_t)(mine >> 8 * i & 0xffu);
        factors[i] = factor_of(lower ? other : mine, i);
        factors[each + i] = factor_of(lower ? mine : other, i);
    }
    encode_cols<T, FORMAT>(patch, q, factors);
}

/* The amax of the 32 x 32 that the patch lies in. */
template <class T> static inline uint32_t square_max(const oct_patch<T> &patch) {
    uint32_t most = oct_patch_max(patch);
    most = oct_max_bits(most, __shfl_xor_sync(OCT_ALL_LANES, most, 1));
#pragma unroll
    for (int step = oct_shape<T>::down; step < OCT_WARP; step *= 2) {
        most = oct_max_bits(most, __shfl_xor_sync(OCT_ALL_LANES, most, step));
    }
    return most;
}

/* One scale, written to each line of its square that exists; both directions have the same
 * bytes. */
template <class T, int FORMAT>
static inline void quantize_squares(const oct_patch<T> &patch, const oct_quantize_params &q,
                                    oct_tile_scales<1> *scales) {
    uint8_t code = oct_mx_code(oct_bits_f32(square_max(patch)), oct_mx_unit(FORMAT));
    float factors[oct_shape<T>::cols], factor = oct_e8m0_reciprocal(code);
    for (int r = 0; r < OCT_PATCH_ROWS && patch.lane_across == 0; r++) {
        scales[0].codes[(patch.row + r) * 4 + patch.warp_across] =
            r < patch.rows_left ? code : 0;
    }
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        if (threadIdx.x % 2 == 0) {
            scales[1].codes[(patch.col + c) * 4 + patch.row / 32] =
                c < patch.cols_left ? code : 0;
        }
        factors[c] = factor;
    }
    oct_quantize_params one = q;
    if (q.row) {
        one.col = q.row;
        one.wide_col = q.wide_row;
        encode_cols<T, FORMAT>(patch, one, factors);
    }
    if (q.col) {
        encode_cols<T, FORMAT>(patch, q, factors);
    }
}

template <class T, int FORMAT> static inline void quantize(const oct_mxfp8_params &p) {
    __shared__ oct_tile_scales<1> scales[2];
    const oct_quantize_params &q = p.q;
    oct_patch<T> patch = oct_patch_of<T>(q);
    oct_patch_load(patch, q);
    if (p.square) {
        quantize_squares<T, FORMAT>(patch, q, scales);
    } else {
        if (q.row) {
            quantize_rows<T, FORMAT>(patch, q, scales[0]);
        }
        if (q.col) {
            quantize_cols<T, FORMAT>(patch, q, scales[1]);
        }
    }
    __syncthreads();
    oct_scales_place row = {(uint8_t *)q.row_scale, &q.row_at, patch.tile_row,
                            patch.tile_col / 32};
    oct_scales_place col = {(uint8_t *)q.col_scale, &q.col_at, patch.tile_col,
                            patch.tile_row / 32};
    if (q.row) {
        oct_tile_scales_store(scales[0], row);
    }
    if (q.col && q.col_at.tiles) {
        oct_tile_scales_store(scales[1], col);
    } else if (q.col) {
        oct_tile_scales_store_down(scales[1], col);
    }
}

#define KERNEL(name, T, format)                                                                \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads)                        \
        mxfp8_##name(oct_mxfp8_params p) {                                                     \
        quantize<T, format>(p);                                                                \
    }

KERNEL(f32_e4m3, float, OCTET_E4M3)
KERNEL(f32_e5m2, float, OCTET_E5M2)
KERNEL(bf16_e4m3, oct_bf16, OCTET_E4M3)
KERNEL(bf16_e5m2, oct_bf16, OCTET_E5M2)
KERNEL(f16_e4m3, oct_f16, OCTET_E4M3)
KERNEL(f16_e5m2, oct_f16, OCTET_E5M2)
