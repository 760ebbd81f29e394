/* column_sums.h - the one order in which columns are summed: leaves of 16 rows, then a tree.
 *
 * The order is fixed by the number of rows alone: leaves in order, joined as a binary tree, so
 * that a GPU can sum while it casts. Every sum starts from +0. */
#ifndef OCT_CPU_COLUMN_SUMS_H
#define OCT_CPU_COLUMN_SUMS_H

#include "cpu/kernels.h"

#define OCT_STRIP_COLS 256 /* of a task */
#define OCT_LEAF_ROWS 16   /* summed row after row */
#define OCT_SUM_LEVELS 19  /* leaves are joined in pairs, pairs in pairs, ... */

/* sums[l] holds the sum of 2^l leaves while bit l of `leaves` is set; the last level takes
 * whatever is more. */
typedef struct oct_sum_tree {
    float sums[OCT_SUM_LEVELS][OCT_STRIP_COLS];
    float leaf[OCT_STRIP_COLS];
    uint64_t leaves;
} oct_sum_tree;

static inline void oct_sums_add(float *sum, const float *more, int64_t count) {
    for (int64_t c = 0; c < count; c++) {
        sum[c] += more[c];
    }
}

static inline bool oct_sums_hold(const oct_sum_tree *tree, int level) {
    return level == OCT_SUM_LEVELS - 1 ? tree->leaves >> level != 0 : tree->leaves >> level & 1;
}

/* Where the next leaf is summed: where it stays, if there is room. */
static inline float *oct_next_leaf(oct_sum_tree *tree) {
    return oct_sums_hold(tree, 0) ? tree->leaf : tree->sums[0];
}

/* That leaf is carried upward like 1 added to a binary number. */
static inline void oct_put_leaf(oct_sum_tree *tree, int64_t count) {
    int level = 0;
    while (level < OCT_SUM_LEVELS - 1 && oct_sums_hold(tree, level)) {
        oct_sums_add(tree->leaf, tree->sums[level], count);
        level++;
    }
    if (oct_sums_hold(tree, level)) {
        oct_sums_add(tree->sums[level], tree->leaf, count);
    } else if (level > 0) {
        memcpy(tree->sums[level], tree->leaf, (size_t)count * sizeof *tree->leaf);
    }
    tree->leaves++;
}

/* What is left on the levels, from the smallest up. The levels are free then. */
static inline float *oct_total_of(oct_sum_tree *tree, int64_t count) {
    memset(tree->leaf, 0, (size_t)count * sizeof *tree->leaf);
    for (int level = 0; level < OCT_SUM_LEVELS; level++) {
        if (oct_sums_hold(tree, level)) {
            oct_sums_add(tree->leaf, tree->sums[level], count);
        }
    }
    return tree->leaf;
}

#endif
