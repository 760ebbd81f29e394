/* column_sums.h - the order in which the columns of a matrix are summed.
 *
 * Leaves are 16 rows in order from +0, joined in pairs, pairs in pairs, as src/cpu/bias.c does
 * it: like 1 added to a binary number, level by level. A tile of 128 rows is a whole node of
 * that tree, or the last leaves of it. So what reads a matrix by threads that hold 16
 * rows each, a cast or an amax, leaves the sums of its tiles, and bias.cu joins them. */
#ifndef OCT_CUDA_KERNELS_COLUMN_SUMS_H
#define OCT_CUDA_KERNELS_COLUMN_SUMS_H

#include "cuda/kernels/patch.h"

#define OCT_LEAF_ROWS OCT_PATCH_ROWS
#define OCT_LEAVES (OCT_TILE / OCT_LEAF_ROWS) /* of a tile, a power of two */
#define OCT_LEAF_LEVELS 3                     /* log2 of it */

static_assert(OCT_LEAVES == 1 << OCT_LEAF_LEVELS, "a tile is a node of the tree");

/* Of a tile with so many rows behind its first; all of them make a node. */
static inline int oct_leaves_of(int64_t rows) {
    return (oct_limited(rows) + OCT_LEAF_ROWS - 1) / OCT_LEAF_ROWS;
}

/* The sums of a tile's leaves so far: level[l] that of 2^l of them, or of all. */
struct oct_leaf_sums {
    float level[OCT_LEAF_LEVELS + 1];
};

/* Leaf number `index`. */
static inline void oct_add_leaf(oct_leaf_sums &sums, float leaf, int index) {
#pragma unroll
    for (int l = 0; l <= OCT_LEAF_LEVELS; l++) {
        if (l == OCT_LEAF_LEVELS || !(index >> l & 1)) {
            sums.level[l] = leaf;
            break;
        }
        leaf = sums.level[l] + leaf;
    }
}

/* Of so many leaves: the node, or what is left on the levels, from the smallest up. */
static inline float oct_tile_sum(const oct_leaf_sums &sums, int leaves) {
    float sum = 0.0f;
#pragma unroll
    for (int l = 0; l <= OCT_LEAF_LEVELS; l++) {
        sum += leaves >> l & 1 ? sums.level[l] : 0.0f;
    }
    return sum;
}

/* ---- beside a cast --------------------------------------------------------------------- */

/* The leaves of a tile's columns. */
template <int COLS> struct oct_tile_leaves {
    alignas(16) float of[OCT_LEAVES][COLS];
};

/* A patch is a leaf of its columns. */
template <class T, int COLS>
static inline void oct_leaves_put(oct_tile_leaves<COLS> &leaves, const oct_patch<T> &p) {
    constexpr int cols = oct_shape<T>::cols;
    float sums[cols] = {};
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
#pragma unroll
        for (int c = 0; c < cols; c++) {
            sums[c] += oct_patch_at(p, r, c);
        }
    }
    float *to = &leaves.of[p.row / OCT_PATCH_ROWS][p.col];
#pragma unroll
    for (int c = 0; c < cols; c += 4) {
        oct_store16(to + c, uint4{oct_f32_bits(sums[c]), oct_f32_bits(sums[c + 1]),
                                  oct_f32_bits(sums[c + 2]), oct_f32_bits(sums[c + 3])});
    }
}

/* By all threads of a block, a column each, after a barrier. */
template <class T, int COLS>
static inline void oct_leaves_store(const oct_tile_leaves<COLS> &leaves, const oct_patch<T> &p,
                                    const oct_quantize_params &q) {
    int col = (int)threadIdx.x, count = oct_leaves_of(q.rows - p.tile_row);
    if (col >= COLS || p.tile_col + col >= q.cols || count <= 0) {
        return;
    }
    oct_leaf_sums sums = {};
#pragma unroll
    for (int i = 0; i < OCT_LEAVES; i++) {
        if (i < count) {
            oct_add_leaf(sums, leaves.of[i][col], i);
        }
    }
    q.sums[p.tile_row / OCT_TILE * q.cols + p.tile_col + col] = oct_tile_sum(sums, count);
}

#endif
