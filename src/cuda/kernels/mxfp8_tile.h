/* mxfp8_tile.h - a tile in blocks of 32 with one E8M0 scale: along rows, columns, or squares.
 *
 * Codes and scales are those of src/cpu/mxfp8.c, bit for bit. Codes of both directions lie as
 * the rows do. A block of zeros has code 0, and so have those outside the matrix: padding is
 * made on the way. `load` takes this thread's patch. */
#ifndef OCT_CUDA_KERNELS_MXFP8_TILE_H
#define OCT_CUDA_KERNELS_MXFP8_TILE_H

#include "cuda/kernels/chain.h"
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/decode.h"
#include "cuda/kernels/mxfp8_patch.h"

#include "cuda/kernels/mxfp8.h"

/* ---- codes ----------------------------------------------------------------------------- */

/* The scales of a patch's rows and columns. */
struct mx_codes {
    const uint8_t *row, *col; /* the first of each; others as oct_tile_scale_at says */
};

/* What is made of a patch, as bits. */
enum { ROW = 1, COL = 2, ROW_COPY = 4, COL_COPY = 8 };

/* E8M0 scales of two columns as bf16. */
static inline uint32_t scale_pair(uint8_t low, uint8_t high) {
    return oct_bf16_pair(oct_e8m0_decode(low), oct_e8m0_decode(high));
}

/* What MADE says, of a patch that lies whole in the matrix; elements are widened once. */
template <class T, int FORMAT, int MADE>
static inline void encode_whole(const oct_patch<T> &patch, const oct_mxfp8_params &p,
                                const mx_codes &scales) {
    constexpr int cols = oct_mx_shape<T>::cols;
    int64_t at = (patch.tile_row + patch.row) * p.q.cols + patch.tile_col + patch.col;
    float down[cols], along[cols], x[cols];
    uint32_t worth[4];
#pragma unroll
    for (int c = 0; c < cols; c++) {
        down[c] = MADE & COL ? oct_e8m0_reciprocal(scales.col[4 * c]) : 0.0f;
        if (MADE & COL_COPY && c % 2) {
            worth[c / 2] = scale_pair(scales.col[4 * c - 4], scales.col[4 * c]);
        }
    }
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint8_t scale = MADE & ROW ? scales.row[oct_tile_scale_at<1>(r, 0)] : 0;
        float factor = oct_e8m0_reciprocal(scale);
#pragma unroll
        for (int c = 0; c < cols; c++) {
            x[c] = oct_patch_at(patch, r, c);
            along[c] = factor;
        }
        if constexpr (MADE & ROW) {
            uint2 codes = oct_mx_encode_row<T, FORMAT>(x, along);
            if (!(MADE & ROW_COPY) || p.q.row) {
                oct_mx_store_row<T>(p.q.row + at, codes);
            }
            if constexpr (MADE & ROW_COPY) {
                uint32_t all = scale_pair(scale, scale), same[4] = {all, all, all, all};
                oct_write16(p.copies.row + at, oct_eight_bytes<FORMAT>(codes, same));
            }
        }
        if constexpr (MADE & COL) {
            uint2 codes = oct_mx_encode_row<T, FORMAT>(x, down);
            if (!(MADE & COL_COPY) || p.q.col) {
                oct_mx_store_row<T>(p.q.col + at, codes);
            }
            if constexpr (MADE & COL_COPY) {
                oct_write16(p.copies.col + at, oct_eight_bytes<FORMAT>(codes, worth));
            }
        }
        at += p.q.cols;
    }
}

/* The same with copies: of both directions, or of rows, or of the one direction that is made.
 */
template <class T, int FORMAT>
static inline void encode_copied(const oct_patch<T> &patch, const oct_mxfp8_params &p,
                                 const mx_codes &scales) {
    if constexpr (oct_mx_shape<T>::cols == 8) {
        if (!p.q.row && !p.copies.row) {
            encode_whole<T, FORMAT, COL | COL_COPY>(patch, p, scales);
        } else if (!p.q.col && !p.copies.col) {
            encode_whole<T, FORMAT, ROW | ROW_COPY>(patch, p, scales);
        } else if (p.copies.col) {
            encode_whole<T, FORMAT, ROW | COL | ROW_COPY | COL_COPY>(patch, p, scales);
        } else {
            encode_whole<T, FORMAT, ROW | COL | ROW_COPY>(patch, p, scales);
        }
    }
}

template <class T, int FORMAT>
static inline void encode(const oct_patch<T> &patch, const oct_mxfp8_params &p,
                          const mx_codes &scales) {
    const oct_quantize_params &q = p.q;
    bool rows = q.row && q.wide_row && patch.full, cols = q.col && q.wide_col && patch.full;
    if ((p.copies.row || p.copies.col) && patch.full) {
        encode_copied<T, FORMAT>(patch, p, scales);
        return;
    }
    if (rows && cols) {
        encode_whole<T, FORMAT, ROW | COL>(patch, p, scales);
        return;
    }
    if (rows) {
        encode_whole<T, FORMAT, ROW>(patch, p, scales);
    }
    if (cols) {
        encode_whole<T, FORMAT, COL>(patch, p, scales);
    }
    if (q.row && !rows) {
        oct_patch_encode_each<T, FORMAT>(
            patch, oct_patch_rows_of(patch, q, q.row, false), [=](int r, int) {
                return oct_e8m0_reciprocal(scales.row[oct_tile_scale_at<1>(r, 0)]);
            });
    }
    if (q.col && !cols) {
        oct_patch_encode_each<T, FORMAT>(
            patch, oct_patch_rows_of(patch, q, q.col, false),
            [=](int, int c) { return oct_e8m0_reciprocal(scales.col[4 * c]); });
    }
}

template <class T, int FORMAT, class F>
static inline void quantize(const oct_mxfp8_params &p, uint32_t tile, const F &load) {
    __shared__ oct_mx_scales scales;
    __shared__ oct_tile_leaves<OCT_TILE> leaves;
    const oct_quantize_params &q = p.q;
    oct_patch<T> patch = oct_mx_patch_of<T>(q, tile);
    load(patch, q);
    if (q.ahead) {
        oct_ask_for_tile<T, OCT_TILE>(q, tile + q.ahead);
    }
    if (q.sums) {
        oct_leaves_put(leaves, patch);
    }
    if (q.row || p.copies.row) {
        oct_mx_scale_rows<T, FORMAT>(scales, patch, p.square);
    }
    if (q.col || p.copies.col) {
        oct_mx_scale_cols<T, FORMAT>(scales, patch, p.square);
    }
    __syncwarp();
    encode<T, FORMAT>(
        patch, p,
        {scales.row.codes + oct_tile_scale_at<1>(patch.row, patch.warp_across),
         scales.col.codes + oct_tile_scale_at<1>(patch.col, patch.row / OCT_MX_BLOCK)});
    __syncthreads();
    oct_mx_store_scales(scales, patch, q);
    if (q.sums) {
        oct_leaves_store(leaves, patch, q);
    }
}

#endif
