/* parallel.h - work divided among the caller's threads: items, tiles, and a maximum. */
#ifndef OCT_CPU_PARALLEL_H
#define OCT_CPU_PARALLEL_H

#include <stdatomic.h>

#include "core/size.h"
#include "cpu/cpu.h"
#include "cpu/float_mode.h"

/* A task as the caller's threads get it. */
typedef struct oct_shared_task {
    octet_task task;
    void *arg;
} oct_shared_task;

/* The thread may be in any mode, and keeps it. */
static inline void oct_share_of_task(void *arg, int64_t begin, int64_t end) {
    const oct_shared_task *shared = arg;
    oct_float_mode mode = oct_float_mode_take();
    shared->task(shared->arg, begin, end);
    oct_float_mode_give_back(mode);
}

/* Does `count` items by the caller's threads; whatever the division, every item is done once.
 */
static inline void oct_parallel(const oct_threads *threads, int64_t count, octet_task task,
                                void *arg) {
    if (count > 1 && threads && threads->parallel_for && threads->count > 1) {
        oct_shared_task shared = {task, arg};
        threads->parallel_for(threads->pool, count, oct_share_of_task, &shared);
    } else if (count > 0) {
        task(arg, 0, count);
    }
}

/* A matrix cut into tiles, numbered along the rows of tiles. */
typedef struct oct_grid {
    int64_t rows, cols;           /* of the matrix */
    int64_t tile_rows, tile_cols; /* of a tile; the last ones may be smaller */
} oct_grid;

typedef struct oct_rect {
    int64_t row, col, rows, cols;
} oct_rect;

static inline int64_t oct_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t oct_grid_count(const oct_grid *grid) {
    return oct_size_ceil_div(grid->rows, grid->tile_rows) *
           oct_size_ceil_div(grid->cols, grid->tile_cols);
}

static inline oct_rect oct_grid_at(const oct_grid *grid, int64_t index) {
    int64_t across = oct_size_ceil_div(grid->cols, grid->tile_cols);
    int64_t row = index / across * grid->tile_rows;
    int64_t col = index % across * grid->tile_cols;
    return (oct_rect){row, col, oct_min(grid->tile_rows, grid->rows - row),
                      oct_min(grid->tile_cols, grid->cols - col)};
}

/* The tiles numbered down their columns instead: work that writes a transposed buffer goes on
 * in the same pages then. */
static inline oct_rect oct_grid_down(const oct_grid *grid, int64_t index) {
    int64_t across = oct_size_ceil_div(grid->cols, grid->tile_cols);
    int64_t tall = oct_size_ceil_div(grid->rows, grid->tile_rows);
    return oct_grid_at(grid, index % tall * across + index / tall);
}

/* The same for a grid over a tile, which may lie anywhere. */
static inline oct_rect oct_grid_within(const oct_grid *grid, const oct_rect *tile,
                                       int64_t index) {
    oct_rect part = oct_grid_at(grid, index);
    part.row += tile->row;
    part.col += tile->col;
    return part;
}

/* The greatest of what the threads found, as encodings of floats that are not negative: their
 * order is that of integers, so the result does not depend on who comes first. */
typedef _Atomic uint32_t oct_shared_max;

static inline void oct_shared_max_put(oct_shared_max *shared, uint32_t found) {
    uint32_t seen = atomic_load_explicit(shared, memory_order_relaxed);
    while (seen < found &&
           !atomic_compare_exchange_weak_explicit(shared, &seen, found, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

#endif
