/* cast.c - a plain tensor in another dtype, each element rounded once to nearest even. */
#include "cpu/kernels.h"

#define TILE_ROWS 8
#define TILE_COLS 2048

typedef struct cast_work {
    const oct_matrix *dst, *source;
    oct_grid grid;
} cast_work;

/* A copy keeps every bit, NaN payloads included. */
static void copy_tile(const oct_tile *to, const oct_tile *from) {
    size_t bytes = (size_t)(from->cols * oct_plain_bytes(from->dtype));
    for (int64_t r = 0; r < from->rows; r++) {
        memcpy(oct_tile_row(to, r), oct_tile_row(from, r), bytes);
    }
}

static void cast_task(void *arg, int64_t begin, int64_t end) {
    const cast_work *work = arg;
    const oct_kernels *kernels = oct_cpu_kernels();
    float row[TILE_COLS];
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        oct_tile to = oct_tile_of(work->dst, &rect), from = oct_tile_of(work->source, &rect);
        if (to.dtype == from.dtype) {
            copy_tile(&to, &from);
            continue;
        }
        for (int64_t r = 0; r < rect.rows; r++) {
            kernels->widen(row, oct_tile_row(&from, r), rect.cols, from.dtype);
            kernels->narrow(oct_tile_row(&to, r), row, rect.cols, to.dtype);
        }
    }
}

void oct_cpu_cast(const oct_matrix *dst, const oct_matrix *source, const oct_threads *threads) {
    cast_work work = {dst, source, {source->rows, source->cols, TILE_ROWS, TILE_COLS}};
    oct_parallel(threads, oct_grid_count(&work.grid), cast_task, &work);
}
