/* mxfp8.cu - blocks of 32 with one E8M0 scale: along rows, along columns, or squares.
 *
 * Codes and scales are those of src/cpu/mxfp8.c, bit for bit. A warp's rows are blocks; two
 * patches below each other hold the blocks of their columns. A block of zeros has code 0, and
 * so have those outside the matrix: padding is made on the way. */
#include "cuda/kernels/patch.h"
#include "cuda/kernels/tile_scales.h"

#include "cuda/kernels/mxfp8.h"

/* A tile's scales in both directions. */
struct mx_scales {
    oct_tile_scales<1> row, col;
};

static inline uint8_t code_of(uint32_t most, int format) {
    return oct_mx_code(oct_bits_f32(most), oct_mx_unit((uint8_t)format));
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

/* Scales of rows; a square's is written to the lines that exist, those of others are 0 by
 * themselves. */
template <class T, int FORMAT>
static inline void scale_rows(mx_scales &scales, const oct_patch<T> &patch, bool square) {
    typedef oct_shape<T> shape;
    constexpr int each = OCT_PATCH_ROWS / shape::across;
    uint32_t most[OCT_PATCH_ROWS], all = square ? square_max(patch) : 0u;
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = oct_patch_row_max(patch, r);
    }
    oct_share_max<OCT_PATCH_ROWS, shape::across>(most, patch.lane_across, shape::down);
#pragma unroll
    for (int i = 0; i < each; i++) {
        int r = patch.lane_across * each + i;
        uint8_t code = code_of(square ? all : most[i], FORMAT);
        scales.row.codes[(patch.row + r) * 4 + patch.warp_across] =
            r < patch.rows_left ? code : 0;
    }
}

/* The same of columns, half of them by each of two lanes. */
template <class T, int FORMAT>
static inline void scale_cols(mx_scales &scales, const oct_patch<T> &patch, bool square) {
    typedef oct_shape<T> shape;
    constexpr int each = shape::cols / 2;
    int lower = (int)threadIdx.x % 2;
    uint32_t most[shape::cols], all = square ? square_max(patch) : 0u;
    oct_patch_col_max(most, patch);
    oct_share_max<shape::cols, 2>(most, lower, 1);
#pragma unroll
    for (int i = 0; i < each; i++) {
        int c = lower * each + i;
        uint8_t code = code_of(square ? all : most[i], FORMAT);
        scales.col.codes[(patch.col + c) * 4 + patch.row / 32] = c < patch.cols_left ? code : 0;
    }
}

template <class T>
static inline void store_scales(const mx_scales &scales, const oct_patch<T> &patch,
                                const oct_quantize_params &q) {
    oct_scales_place row = {(uint8_t *)q.row_scale, &q.row_at, patch.tile_row,
                            patch.tile_col / 32};
    oct_scales_place col = {(uint8_t *)q.col_scale, &q.col_at, patch.tile_col,
                            patch.tile_row / 32};
    if (q.row) {
        oct_tile_scales_store(scales.row, row);
    }
    if (q.col && q.col_at.tiles) {
        oct_tile_scales_store(scales.col, col);
    } else if (q.col) {
        oct_tile_scales_store_down(scales.col, col);
    }
}

/* Columns are stored as the rows lie. */
template <class T, int FORMAT> static inline void quantize(const oct_mxfp8_params &p) {
    __shared__ mx_scales scales;
    const oct_quantize_params &q = p.q;
    oct_patch<T> patch = oct_patch_of<T>(q);
    oct_patch_load(patch, q);
    if (q.row) {
        scale_rows<T, FORMAT>(scales, patch, p.square);
        __syncwarp();
        const uint8_t *codes = scales.row.codes + patch.row * 4 + patch.warp_across;
        oct_patch_encode_rows<T, FORMAT>(
            patch, oct_patch_rows_of(patch, q, q.row, q.wide_row),
            [=](int r, int) { return oct_e8m0_reciprocal(codes[4 * r]); });
    }
    if (q.col) {
        scale_cols<T, FORMAT>(scales, patch, p.square);
        __syncwarp();
        const uint8_t *codes = scales.col.codes + patch.col * 4 + patch.row / 32;
        float factors[oct_shape<T>::cols];
#pragma unroll
        for (int c = 0; c < oct_shape<T>::cols; c++) {
            factors[c] = oct_e8m0_reciprocal(codes[4 * c]);
        }
        oct_codes_place place = oct_patch_rows_of(patch, q, q.col, q.wide_col);
        if (place.wide) {
            oct_patch_encode_rows<T, FORMAT>(patch, place,
                                             [&](int, int c) { return factors[c]; });
        } else {
            oct_patch_encode_each<T, FORMAT>(
                patch, place, [=](int, int c) { return oct_e8m0_reciprocal(codes[4 * c]); });
        }
    }
    __syncthreads();
    store_scales(scales, patch, q);
}

#define KERNEL(name, T, format)                                                                \
    extern "C" __global__ void __launch_bounds__(                                              \
        oct_shape<T>::threads, oct_shape<T>::resident) mxfp8_##name(oct_mxfp8_params p) {      \
        quantize<T, format>(p);                                                                \
    }

KERNEL(f32_e4m3, float, OCTET_E4M3)
KERNEL(f32_e5m2, float, OCTET_E5M2)
KERNEL(bf16_e4m3, oct_bf16, OCTET_E4M3)
KERNEL(bf16_e5m2, oct_bf16, OCTET_E5M2)
KERNEL(f16_e4m3, oct_f16, OCTET_E4M3)
KERNEL(f16_e5m2, oct_f16, OCTET_E5M2)
