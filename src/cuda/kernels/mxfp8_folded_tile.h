/* mxfp8_folded_tile.h - a tile as mxfp8_tile.h casts it, folded into blocks of 128 on the way.
 *
 * Codes and scales are those of src/cpu/mxfp8.c, bit for bit, and folded ones those that
 * fold.cu makes of them. A tile is one block of 128 along its rows and one along its columns.
 * For elements of 16 bits: a warp has 32 whole rows of the tile. `load` takes this thread's
 * patch. */
#ifndef OCT_CUDA_KERNELS_MXFP8_FOLDED_TILE_H
#define OCT_CUDA_KERNELS_MXFP8_FOLDED_TILE_H

#include "cuda/kernels/chain.h"
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/folding.h"
#include "cuda/kernels/mxfp8_patch.h"

#include "cuda/kernels/mxfp8_folded.h"

/* The four scales of a line. */
static inline uint32_t four_scales(const oct_tile_scales<1> &scales, int line) {
    return *(const uint32_t *)(scales.codes + oct_tile_scale_at<1>(line, 0));
}

/* ---- codes ----------------------------------------------------------------------------- */

/* What is made of a patch, as bits. */
enum { ROW = 1, COL = 2, FOLD_ROW = 4, FOLD_COL = 8 };

/* What a patch's columns are multiplied by: as elements, and as codes of their 128. */
template <class T> struct column_factors {
    float down[oct_shape<T>::cols];
    oct_shift by[oct_shape<T>::cols];
};

template <class T>
static inline void take_columns(column_factors<T> &out, const oct_mx_scales &scales,
                                const oct_patch<T> &patch) {
    int block = patch.row / OCT_MX_BLOCK;
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        uint32_t codes = four_scales(scales.col, patch.col + c);
        out.down[c] = oct_e8m0_reciprocal((uint8_t)oct_byte_of(codes, block));
        out.by[c] = oct_shift_of(codes, block);
    }
}

/* A row of a patch: its codes are stored, and folded. */
template <class T, int FORMAT, int MADE>
static inline void encode_along(const oct_mxfp8_folded_params &p, const float *x,
                                uint32_t scales, int block, int64_t at) {
    float along[oct_shape<T>::cols], factor;
    factor = oct_e8m0_reciprocal((uint8_t)oct_byte_of(scales, block));
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        along[c] = factor;
    }
    uint2 codes = oct_mx_encode_row<T, FORMAT>(x, along);
    if (p.q.row) {
        oct_mx_store_row<T>(p.q.row + at, codes);
    }
    if constexpr (MADE & FOLD_ROW) {
        oct_shift by = oct_shift_of(scales, block);
        oct_mx_store_row<T>(p.folds.row + at, uint2{oct_fold_four<FORMAT>(codes.x, by),
                                                    oct_fold_four<FORMAT>(codes.y, by)});
    }
}

/* Four rows of 8 columns, folded: a word of each column. */
template <int FORMAT>
static inline void turn_four(uint32_t *out, const uint2 codes[4], const oct_shift *by) {
    uint32_t low[4] = {codes[0].x, codes[1].x, codes[2].x, codes[3].x};
    uint32_t high[4] = {codes[0].y, codes[1].y, codes[2].y, codes[3].y};
    oct_turn4(out, low);
    oct_turn4(out + 4, high);
#pragma unroll
    for (int c = 0; c < 8; c++) {
        out[c] = oct_fold_four<FORMAT>(out[c], by[c]);
    }
}

/* What MADE says, of a patch that lies whole in the matrix. */
template <class T, int FORMAT, int MADE>
static inline void encode_whole(const oct_patch<T> &patch, const oct_mxfp8_folded_params &p,
                                const oct_mx_scales &scales) {
    constexpr int cols = oct_shape<T>::cols;
    int64_t row = patch.tile_row + patch.row, col = patch.tile_col + patch.col;
    column_factors<T> columns;
    uint32_t turned[OCT_PATCH_ROWS / 4][cols];
    uint2 four[4];
    float x[cols];
    if constexpr (MADE & COL) {
        take_columns(columns, scales, patch);
    }
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        int64_t at = (row + r) * p.q.cols + col;
#pragma unroll
        for (int c = 0; c < cols; c++) {
            x[c] = oct_patch_at(patch, r, c);
        }
        if constexpr (MADE & ROW) {
            encode_along<T, FORMAT, MADE>(p, x, four_scales(scales.row, patch.row + r),
                                          patch.warp_across, at);
        }
        if constexpr (MADE & COL) {
            four[r % 4] = oct_mx_encode_row<T, FORMAT>(x, columns.down);
            if (p.q.col) {
                oct_mx_store_row<T>(p.q.col + at, four[r % 4]);
            }
        }
        if constexpr (MADE & FOLD_COL) {
            if (r % 4 == 3) {
                turn_four<FORMAT>(turned[r / 4], four, columns.by);
            }
        }
    }
    if constexpr (MADE & FOLD_COL) {
#pragma unroll
        for (int c = 0; c < cols; c++) {
            oct_write16(p.folds.col + (col + c) * p.q.rows + row,
                        uint4{turned[0][c], turned[1][c], turned[2][c], turned[3][c]});
        }
    }
}

/* Both directions are folded, or the rows, or the one direction that is made. */
template <class T, int FORMAT>
static inline void encode(const oct_patch<T> &patch, const oct_mxfp8_folded_params &p,
                          const oct_mx_scales &scales) {
    if (!p.q.row && !p.folds.row) {
        encode_whole<T, FORMAT, COL | FOLD_COL>(patch, p, scales);
    } else if (!p.q.col && !p.folds.col) {
        encode_whole<T, FORMAT, ROW | FOLD_ROW>(patch, p, scales);
    } else if (p.folds.col) {
        encode_whole<T, FORMAT, ROW | COL | FOLD_ROW | FOLD_COL>(patch, p, scales);
    } else {
        encode_whole<T, FORMAT, ROW | COL | FOLD_ROW>(patch, p, scales);
    }
}

/* ---- scales of 128 --------------------------------------------------------------------- */

static inline void store_folded_scales(float *to, const oct_tile_scales<1> &scales,
                                       int64_t block, int64_t lines, int64_t first) {
    for (int i = (int)threadIdx.x; to && i < OCT_TILE; i += (int)blockDim.x) {
        if (first + i < lines) {
            to[block * lines + first + i] =
                oct_e8m0_decode((uint8_t)oct_most_of_four(four_scales(scales, i)));
        }
    }
}

template <class T, int FORMAT, class F>
static inline void quantize(const oct_mxfp8_folded_params &p, uint32_t tile, const F &load) {
    __shared__ oct_mx_scales scales;
    __shared__ oct_tile_leaves<OCT_TILE> leaves;
    const oct_quantize_params &q = p.q;
    oct_patch<T> patch = oct_mx_patch_of<T>(q, tile);
    load(patch, q);
    if (q.sums) {
        oct_leaves_put(leaves, patch);
    }
    if (q.row || p.folds.row) {
        oct_mx_scale_rows<T, FORMAT>(scales, patch, p.square);
    }
    if (q.col || p.folds.col) {
        oct_mx_scale_cols<T, FORMAT>(scales, patch, p.square);
    }
    __syncthreads();
    if (patch.full) {
        encode<T, FORMAT>(patch, p, scales);
    }
    oct_mx_store_scales(scales, patch, q);
    store_folded_scales(p.folds.row_scale, scales.row, patch.tile_col / OCT_TILE, q.rows,
                        patch.tile_row);
    store_folded_scales(p.folds.col_scale, scales.col, patch.tile_row / OCT_TILE, q.cols,
                        patch.tile_col);
    if (q.sums) {
        oct_leaves_store(leaves, patch, q);
    }
}

#endif
