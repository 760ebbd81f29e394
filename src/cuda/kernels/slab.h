/* slab.h - a tile of 128 rows, 16 of them and 512 bytes of each to a warp.
 *
 * A warp loads 512 contiguous bytes of a row at a time and stores its codes as contiguously.
 * Turned codes go through shared memory, from where 128 contiguous bytes of a column are
 * stored. A thread's share is a patch, 16 rows of 16 bytes; what lies outside the matrix is 0
 * and is not written. */
#ifndef OCT_CUDA_KERNELS_SLAB_H
#define OCT_CUDA_KERNELS_SLAB_H

#include "cuda/kernels/patch.h"

#define OCT_SLAB_WARPS (OCT_TILE / OCT_PATCH_ROWS)

static_assert(OCT_SLAB_THREADS == OCT_WARP * OCT_SLAB_WARPS, "a warp has 16 rows");

template <class T> struct oct_slab {
    static constexpr int each = oct_vector_of<T>::count; /* columns of a patch: 8 or 4 */
    static constexpr int cols = OCT_WARP * each;         /* of a tile: 256 or 128 */
};

static_assert(oct_slab<oct_bf16>::cols == OCT_SLAB_COLS(2) &&
                  oct_slab<float>::cols == OCT_SLAB_COLS(4),
              "the host counts the same tiles");

/* This thread's patch of the block's tile. */
template <class T>
static inline oct_patch<T> oct_slab_patch(const oct_quantize_params &q, uint32_t tile) {
    oct_patch<T> p;
    uint32_t down = tile / q.across;
    p.tile_row = (int64_t)down * OCT_TILE;
    p.tile_col = (int64_t)(tile - down * q.across) * oct_slab<T>::cols;
    p.row = (int)(threadIdx.x / OCT_WARP * OCT_PATCH_ROWS);
    p.col = (int)(threadIdx.x % OCT_WARP * oct_slab<T>::each);
    int64_t cols = q.cols - p.tile_col;
    p.rows_left = oct_limited(q.rows - p.tile_row) - p.row;
    p.cols_left = (int)(cols < oct_slab<T>::cols ? cols : oct_slab<T>::cols) - p.col;
    p.full = p.rows_left >= OCT_PATCH_ROWS && p.cols_left >= oct_slab<T>::each;
    p.lane_across = p.warp_across = p.band = 0;
    return p;
}

/* ---- turned codes ---------------------------------------------------------------------- */

/* 128 codes of each column, in units of 16 rows. A column's units lie in another order than
 * those of the lanes beside it, so that neither lanes that write the same unit of their columns
 * nor lanes that read the units of one column meet in a bank. */
template <class T> struct oct_slab_turned {
    uint4 units[oct_slab<T>::cols][OCT_SLAB_WARPS];
};

template <class T> static inline int oct_slab_unit(int col, int unit) {
    return unit ^ (col / oct_slab<T>::each % OCT_SLAB_WARPS);
}

/* That of column c of a patch. */
template <class T>
static inline uint4 *oct_slab_unit_of(oct_slab_turned<T> &turned, const oct_patch<T> &p,
                                      int c) {
    return &turned.units[p.col + c][oct_slab_unit<T>(p.col, p.row / OCT_PATCH_ROWS)];
}

template <class T>
static inline void oct_slab_put(oct_slab_turned<T> &turned, const oct_patch<T> &p, int c,
                                uint4 codes) {
    *oct_slab_unit_of(turned, p, c) = codes;
}

/* Those of a tile with all its rows, where columns begin at multiples of `wide_col` bytes. */
template <class T>
static inline void oct_slab_store_units(const oct_slab_turned<T> &turned, const oct_patch<T> &p,
                                        const oct_quantize_params &q) {
    constexpr int step = OCT_SLAB_THREADS / OCT_SLAB_WARPS;
    int unit = (int)(threadIdx.x % OCT_SLAB_WARPS), first = (int)(threadIdx.x / OCT_SLAB_WARPS);
    int cols = p.cols_left + p.col;
    uint8_t *to = q.col + (p.tile_col + first) * q.rows + p.tile_row + unit * OCT_PATCH_ROWS;
#pragma unroll 4
    for (int col = first; col < oct_slab<T>::cols; col += step) {
        if (col < cols) {
            uint4 codes = turned.units[col][oct_slab_unit<T>(col, unit)];
            oct_store_col(to, codes, q.wide_col);
        }
        to += step * q.rows;
    }
}

/* By a warp, four bytes of a line to each lane; it begins anywhere and is `count` bytes long.
 * Words are moved to where memory has them, and those that lie whole in the line stored so. */
static inline void oct_store_line(uint8_t *line, uint32_t word, int count) {
    int lane = (int)(threadIdx.x % OCT_WARP), over = (int)((uintptr_t)line % 4);
    uint32_t before = __shfl_up_sync(OCT_ALL_LANES, word, 1);
    uint32_t moved = over ? word << 8 * over | before >> (32 - 8 * over) : word;
    int first = 4 * lane - over;
    if (first >= 0 && first + 4 <= count) {
        *(uint32_t *)(line + first) = moved;
    } else {
        oct_put_bytes(line, first, moved, count);
    }
    if (over && lane == OCT_WARP - 1) {
        oct_put_bytes(line, first + 4, word >> (32 - 8 * over),
                      count < OCT_TILE ? count : OCT_TILE);
    }
}

/* A column to a warp at a time. */
template <class T>
static inline void oct_slab_store_lines(const oct_slab_turned<T> &turned, const oct_patch<T> &p,
                                        const oct_quantize_params &q) {
    int lane = (int)(threadIdx.x % OCT_WARP), rows = p.rows_left + p.row;
    int cols = p.cols_left + p.col;
    for (int col = (int)(threadIdx.x / OCT_WARP); col < cols; col += OCT_SLAB_WARPS) {
        const uint4 *units = turned.units[col];
        const uint32_t *words = (const uint32_t *)&units[oct_slab_unit<T>(col, lane / 4)];
        oct_store_line(q.col + (p.tile_col + col) * q.rows + p.tile_row, words[lane % 4], rows);
    }
}

/* By all threads of the block, after a barrier: what the patches have put there. */
template <class T>
static inline void oct_slab_store(const oct_slab_turned<T> &turned, const oct_patch<T> &p,
                                  const oct_quantize_params &q) {
    if (q.wide_col && p.rows_left + p.row == OCT_TILE) {
        oct_slab_store_units(turned, p, q);
    } else {
        oct_slab_store_lines(turned, p, q);
    }
}

/* ---- codes ----------------------------------------------------------------------------- */

/* Four rows from `first` on, as they lie and turned. */
template <class T, int FORMAT>
static inline void oct_slab_encode4(uint32_t (*codes)[4], uint32_t (*down)[4],
                                    const oct_patch<T> &p, int first, float one) {
#pragma unroll
    for (int w = 0; w < oct_shape<T>::words; w++) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            codes[w][r] = oct_encode4<FORMAT>(oct_patch_at(p, first + r, 4 * w) * one,
                                              oct_patch_at(p, first + r, 4 * w + 1) * one,
                                              oct_patch_at(p, first + r, 4 * w + 2) * one,
                                              oct_patch_at(p, first + r, 4 * w + 3) * one);
        }
        uint32_t turned[4];
        oct_turn4(turned, codes[w]);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            down[4 * w + c][first / 4] = turned[c];
        }
    }
}

/* Every element of a whole patch times one factor, encoded once: rows are stored, columns put
 * into shared memory. */
template <class T, int FORMAT>
static inline void oct_slab_encode_whole(oct_slab_turned<T> &turned, const oct_patch<T> &p,
                                         const oct_quantize_params &q, float one) {
    uint8_t *to = oct_patch_rows_of(p, q, q.row, true).to;
    uint32_t down[oct_slab<T>::each][4];
#pragma unroll
    for (int i = 0; i < OCT_PATCH_ROWS / 4; i++) {
        uint32_t codes[oct_shape<T>::words][4];
        oct_slab_encode4<T, FORMAT>(codes, down, p, 4 * i, one);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t row[2] = {codes[0][r], codes[oct_shape<T>::words - 1][r]};
            if (q.row) {
                oct_store_row<T>(to, row);
            }
            to += q.cols;
        }
    }
    if (q.col) {
#pragma unroll
        for (int c = 0; c < oct_slab<T>::each; c++) {
            oct_slab_put(turned, p, c, uint4{down[c][0], down[c][1], down[c][2], down[c][3]});
        }
    }
}

/* The same for a patch that lies partly outside, or rows that begin anywhere: four rows at a
 * time, from a copy, so that whole patches stay in registers. */
template <class T, int FORMAT>
static inline void oct_slab_encode_some(oct_slab_turned<T> &turned, const oct_patch<T> &p,
                                        const oct_quantize_params &q, float one) {
    uint4 rows[OCT_PATCH_ROWS];
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        rows[r] = p.raw[r];
    }
#pragma unroll 1
    for (int i = 0; i < OCT_PATCH_ROWS / 4; i++) {
        uint32_t codes[oct_shape<T>::words][4], down[oct_slab<T>::each][4];
        oct_patch<T> four;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            four.raw[r] = rows[4 * i + r];
        }
        oct_slab_encode4<T, FORMAT>(codes, down, four, 0, one);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t row[2] = {codes[0][r], codes[oct_shape<T>::words - 1][r]};
            if (q.row && 4 * i + r < p.rows_left) {
                oct_store_some<T>(q.row + (p.tile_row + p.row + 4 * i + r) * q.cols +
                                      p.tile_col + p.col,
                                  row, p.cols_left);
            }
        }
#pragma unroll
        for (int c = 0; c < oct_slab<T>::each; c++) {
            uint4 *unit = oct_slab_unit_of(turned, p, c);
            ((uint32_t *)unit)[i] = down[c][0];
        }
    }
}

template <class T, int FORMAT>
static inline void oct_slab_encode(oct_slab_turned<T> &turned, const oct_patch<T> &p,
                                   const oct_quantize_params &q, float one) {
    if (p.full && q.wide_row) {
        oct_slab_encode_whole<T, FORMAT>(turned, p, q, one);
    } else {
        oct_slab_encode_some<T, FORMAT>(turned, p, q, one);
    }
}

#endif
