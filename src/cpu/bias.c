/* bias.c - a bias added to every row, and its gradient: the sums of the columns. */
#include "cpu/column_sums.h"

#define TILE_ROWS 16
#define TILE_COLS 1024

typedef struct bias_work {
    const oct_matrix *dst, *source;
    const void *bias;
    octet_dtype bias_dtype;
    oct_grid grid;
    bool accumulate; /* sums are added to dst */
} bias_work;

static void add_task(void *arg, int64_t begin, int64_t end) {
    const bias_work *work = arg;
    const oct_kernels *kernels = oct_cpu_kernels();
    float bias[TILE_COLS], row[TILE_COLS];
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        oct_tile to = oct_tile_of(work->dst, &rect), from = oct_tile_of(work->source, &rect);
        const void *first = oct_plain_at(work->bias, rect.col, work->bias_dtype);
        kernels->widen(bias, first, rect.cols, work->bias_dtype);
        for (int64_t r = 0; r < rect.rows; r++) {
            kernels->widen(row, oct_tile_row(&from, r), rect.cols, from.dtype);
            for (int64_t c = 0; c < rect.cols; c++) {
                row[c] += bias[c];
            }
            kernels->narrow(oct_tile_row(&to, r), row, rect.cols, to.dtype);
        }
    }
}

/* The sum is an fp32 sum; it is rounded to dst's dtype. dst may be source. */
void oct_cpu_add_bias(const oct_matrix *dst, const oct_matrix *source, const void *bias,
                      octet_dtype bias_dtype, const oct_threads *threads) {
    bias_work work = {dst, source, bias, bias_dtype, {0}, false};
    work.grid = (oct_grid){source->rows, source->cols, TILE_ROWS, TILE_COLS};
    oct_parallel(threads, oct_grid_count(&work.grid), add_task, &work);
}

/* ---- column sums ---------------------------------------------------------------------- */

static void grad_task(void *arg, int64_t begin, int64_t end) {
    const bias_work *work = arg;
    const oct_kernels *kernels = oct_cpu_kernels();
    oct_sum_tree tree;
    for (int64_t i = begin; i < end; i++) {
        int64_t rows = work->source->rows, col = i * OCT_STRIP_COLS;
        oct_rect rect = {0, col, 0, oct_min(OCT_STRIP_COLS, work->source->cols - col)};
        tree.leaves = 0;
        for (rect.row = 0; rect.row < rows; rect.row += OCT_LEAF_ROWS) {
            rect.rows = oct_min(OCT_LEAF_ROWS, rows - rect.row);
            oct_tile tile = oct_tile_of(work->source, &rect);
            kernels->sum_columns(oct_next_leaf(&tree), &tile);
            oct_put_leaf(&tree, rect.cols);
        }
        octet_dtype dtype = (octet_dtype)work->dst->dtype;
        void *to = oct_plain_at(work->dst->parts[0], col, dtype);
        float *total = oct_total_of(&tree, rect.cols);
        if (work->accumulate) {
            kernels->widen(tree.sums[0], to, rect.cols, dtype);
            oct_sums_add(total, tree.sums[0], rect.cols);
        }
        kernels->narrow(to, total, rect.cols, dtype);
    }
}

/* The order of summation is fixed by the number of rows alone: leaves of 16 rows in order,
 * joined as a binary tree, so that a GPU can sum while it casts. Every sum starts from +0; what
 * dst holds is added last. */
void oct_cpu_bias_grad(const oct_matrix *dst, const oct_matrix *source, bool accumulate,
                       const oct_threads *threads) {
    bias_work work = {dst, source, NULL, OCTET_NONE, {0}, accumulate};
    oct_parallel(threads, oct_size_ceil_div(source->cols, OCT_STRIP_COLS), grad_task, &work);
}
