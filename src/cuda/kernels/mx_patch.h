/* mx_patch.h - patches where blocks are 32 long: a warp's lie 16 beside each other, two below.
 *
 * A load or a store takes two whole pieces of rows, eight lanes a line of the cache. Two
 * patches below each other hold the blocks of their columns; 4 or 8 beside each other those of
 * their rows. */
#ifndef OCT_CUDA_KERNELS_MX_PATCH_H
#define OCT_CUDA_KERNELS_MX_PATCH_H

#include "cuda/kernels/patch.h"
#include "cuda/kernels/tile_scales.h"
#include "format/scaling.h"

#define OCT_MX_BLOCK 32

template <class T> struct oct_mx_shape {
    static constexpr int cols = oct_shape<T>::cols;
    static constexpr int lanes = OCT_MX_BLOCK / cols;        /* that share the blocks of rows */
    static constexpr int across = OCT_WARP / 2;              /* patches of a warp */
    static constexpr int warps = OCT_TILE / (across * cols); /* beside each other */
};

/* lane_across is the place among the lanes that share blocks, warp_across the block. */
template <class T>
static inline oct_patch<T> oct_mx_patch_of(const oct_quantize_params &q, uint32_t tile) {
    typedef oct_mx_shape<T> shape;
    int lane = (int)threadIdx.x % OCT_WARP, warp = (int)threadIdx.x / OCT_WARP;
    int beside = warp % shape::warps * shape::across + lane % shape::across;
    oct_patch<T> p = oct_patch_in_tile<T>(
        q, tile, warp / shape::warps * OCT_MX_BLOCK + lane / shape::across * OCT_PATCH_ROWS,
        beside * shape::cols);
    p.lane_across = beside % shape::lanes;
    p.warp_across = beside / shape::lanes;
    p.band = warp / shape::warps;
    return p;
}

/* The amax of the 32 x 32 that the patch lies in. */
template <class T> static inline uint32_t oct_mx_square_max(const oct_patch<T> &patch) {
    uint32_t most = oct_patch_max(patch);
#pragma unroll
    for (int step = 1; step < oct_mx_shape<T>::lanes; step *= 2) {
        most = oct_max_bits(most, __shfl_xor_sync(OCT_ALL_LANES, most, step));
    }
    return oct_max_bits(most, __shfl_xor_sync(OCT_ALL_LANES, most, oct_mx_shape<T>::across));
}

/* A tile's scales in both directions. */
struct oct_mx_scales {
    oct_tile_scales<1> row, col;
};

/* Scales of rows; a square's is written to the lines that exist, those of others are 0 by
 * themselves. */
template <class T, int FORMAT>
static inline void oct_mx_scale_rows(oct_mx_scales &scales, const oct_patch<T> &patch,
                                     bool square) {
    typedef oct_mx_shape<T> shape;
    constexpr int each = OCT_PATCH_ROWS / shape::lanes;
    uint32_t most[OCT_PATCH_ROWS], all = square ? oct_mx_square_max(patch) : 0u;
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = oct_patch_row_max(patch, r);
    }
    oct_share_max<OCT_PATCH_ROWS, shape::lanes>(most, patch.lane_across, 1);
#pragma unroll
    for (int i = 0; i < each; i++) {
        int r = patch.lane_across * each + i;
        uint8_t code = oct_mx_code(oct_bits_f32(square ? all : most[i]), oct_mx_unit(FORMAT));
        scales.row.codes[oct_tile_scale_at<1>(patch.row + r, patch.warp_across)] =
            r < patch.rows_left ? code : 0;
    }
}

#endif
