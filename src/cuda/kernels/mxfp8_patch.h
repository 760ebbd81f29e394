/* mxfp8_patch.h - a patch of MXFP8: the scales of its columns, and the codes of its rows. */
#ifndef OCT_CUDA_KERNELS_MXFP8_PATCH_H
#define OCT_CUDA_KERNELS_MXFP8_PATCH_H

#include "cuda/kernels/mx_patch.h"

static inline uint8_t oct_mx_code_of(uint32_t most, int format) {
    return oct_mx_code(oct_bits_f32(most), oct_mx_unit((uint8_t)format));
}

/* Of columns, half of them by each of two lanes; those of rows are oct_mx_scale_rows'. */
template <class T, int FORMAT>
static inline void oct_mx_scale_cols(oct_mx_scales &scales, const oct_patch<T> &patch,
                                     bool square) {
    constexpr int each = oct_mx_shape<T>::cols / 2;
    int lower = (int)threadIdx.x % OCT_WARP / oct_mx_shape<T>::across;
    uint32_t most[oct_mx_shape<T>::cols], all = square ? oct_mx_square_max(patch) : 0u;
    oct_patch_col_max(most, patch);
    oct_share_max<oct_mx_shape<T>::cols, 2>(most, lower, oct_mx_shape<T>::across);
#pragma unroll
    for (int i = 0; i < each; i++) {
        int c = lower * each + i;
        uint8_t code = oct_mx_code_of(square ? all : most[i], FORMAT);
        scales.col.codes[oct_tile_scale_at<1>(patch.col + c, patch.row / OCT_MX_BLOCK)] =
            c < patch.cols_left ? code : 0;
    }
}

template <class T>
static inline void oct_mx_store_scales(const oct_mx_scales &scales, const oct_patch<T> &patch,
                                       const oct_quantize_params &q) {
    oct_scales_place row = {(uint8_t *)q.row_scale, &q.row_at, patch.tile_row,
                            patch.tile_col / OCT_MX_BLOCK};
    oct_scales_place col = {(uint8_t *)q.col_scale, &q.col_at, patch.tile_col,
                            patch.tile_row / OCT_MX_BLOCK};
    if (q.row) {
        oct_tile_scales_store(scales.row, row);
    }
    if (q.col && q.col_at.tiles) {
        oct_tile_scales_store(scales.col, col);
    } else if (q.col) {
        oct_tile_scales_store_down(scales.col, col);
    }
}

/* A row's codes; of 4 columns, in the first word. */
template <class T, int FORMAT>
static inline uint2 oct_mx_encode_row(const float *x, const float *factors) {
    uint32_t codes[2] = {0, 0};
#pragma unroll
    for (int w = 0; w < oct_shape<T>::words; w++) {
        const float *v = x + 4 * w, *f = factors + 4 * w;
        codes[w] = oct_encode4<FORMAT>(v[0] * f[0], v[1] * f[1], v[2] * f[2], v[3] * f[3]);
    }
    return {codes[0], codes[1]};
}

template <class T> static inline void oct_mx_store_row(uint8_t *to, uint2 both) {
    uint32_t codes[2] = {both.x, both.y};
    oct_store_row<T>(to, codes);
}

#endif
