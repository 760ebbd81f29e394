/* amax.c - the largest magnitude: of a tensor, or of each row and column. */
#include "cpu/kernels.h"
#include "cpu/scales.h"
#include "format/hadamard.h"

#define TILE_ROWS 64   /* a whole number of groups of the transform */
#define TILE_COLS 1024 /* 64 KiB of bf16 a task: enough to be worth a thread's while */
#define STRIP_COLS 256 /* of the transform's scratch, and of a task by column */

typedef struct amax_work {
    const oct_matrix *source;
    oct_grid grid;
    uint32_t signs; /* of the transform */
    float *each;    /* per row or column */
    oct_shared_max most;
} amax_work;

static void plain_task(void *arg, int64_t begin, int64_t end) {
    amax_work *work = arg;
    uint32_t most = 0;
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        oct_tile tile = oct_tile_of(work->source, &rect);
        uint32_t found = oct_cpu_kernels()->absmax(&tile);
        most = found > most ? found : most;
    }
    oct_shared_max_put(&work->most, most);
}

/* Of the transformed columns, all 16 outputs of the last group counted. */
static void hadamard_task(void *arg, int64_t begin, int64_t end) {
    amax_work *work = arg;
    const oct_kernels *k = oct_cpu_kernels();
    float group[OCT_HADAMARD_ROWS * STRIP_COLS];
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        for (int64_t r = 0; r < rect.rows; r += OCT_HADAMARD_ROWS) {
            oct_rect part = {rect.row + r, rect.col, oct_min(OCT_HADAMARD_ROWS, rect.rows - r),
                             rect.cols};
            oct_tile tile = oct_tile_of(work->source, &part);
            k->hadamard(group, &tile, work->signs);
            oct_tile turned = {group, rect.cols, OCT_HADAMARD_ROWS, rect.cols, OCTET_F32};
            oct_shared_max_put(&work->most, k->absmax(&turned));
        }
    }
}

static void rows_task(void *arg, int64_t begin, int64_t end) {
    amax_work *work = arg;
    for (int64_t r = begin; r < end; r++) {
        oct_rect rect = {r, 0, 1, work->source->cols};
        oct_tile tile = oct_tile_of(work->source, &rect);
        work->each[r] = oct_bits_f32(oct_cpu_kernels()->absmax(&tile));
    }
}

static void columns_task(void *arg, int64_t begin, int64_t end) {
    amax_work *work = arg;
    uint32_t most[STRIP_COLS];
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        oct_tile tile = oct_tile_of(work->source, &rect);
        oct_cpu_kernels()->absmax_columns(most, &tile);
        memcpy(work->each + rect.col, most, (size_t)rect.cols * sizeof *most);
    }
}

/* Dense rows are one long row, cut where it suits. */
static oct_matrix flattened(const oct_matrix *source) {
    oct_matrix flat = *source;
    if (source->stride == source->cols && source->rows > 0) {
        flat.rows = 1;
        flat.cols = flat.stride = source->rows * source->cols;
    }
    return flat;
}

void oct_cpu_amax(float *out, const oct_matrix *source, const oct_threads *threads) {
    oct_matrix flat = flattened(source);
    int64_t wide = flat.rows == 1 ? TILE_ROWS * TILE_COLS : TILE_COLS;
    amax_work work = {&flat, {flat.rows, flat.cols, TILE_ROWS, wide}, 0, NULL, 0};
    oct_parallel(threads, oct_grid_count(&work.grid), plain_task, &work);
    *out = oct_bits_f32(atomic_load(&work.most));
}

static void hadamard_amax(float *out, const oct_matrix *source, uint32_t signs,
                          const oct_threads *threads) {
    oct_grid grid = {source->rows, source->cols, TILE_ROWS, STRIP_COLS};
    amax_work work = {source, grid, signs, NULL, 0};
    oct_parallel(threads, oct_grid_count(&grid), hadamard_task, &work);
    *out = oct_bits_f32(atomic_load(&work.most));
}

static void amax_by_line(const oct_matrix *dst, const oct_matrix *source,
                         const oct_threads *threads) {
    oct_grid grid = {source->rows, source->cols, source->rows + 1, STRIP_COLS};
    amax_work work = {source, grid, 0, dst->parts[OCTET_PART_ROW_AMAX], 0};
    if (work.each) {
        oct_parallel(threads, source->rows, rows_task, &work);
    }
    work.each = dst->parts[OCTET_PART_COL_AMAX];
    if (work.each && source->rows == 0) {
        memset(work.each, 0, (size_t)source->cols * sizeof *work.each);
    } else if (work.each) {
        oct_parallel(threads, oct_grid_count(&grid), columns_task, &work);
    }
}

void oct_cpu_amax_parts(const oct_matrix *dst, const oct_matrix *source,
                        const oct_threads *threads) {
    const octet_quantizer *q = &dst->quantizer;
    float *row = dst->parts[OCTET_PART_ROW_AMAX], *col = dst->parts[OCTET_PART_COL_AMAX];
    if (q->row_scaled) {
        amax_by_line(dst, source, threads);
        return;
    }
    if (col && q->hadamard) {
        hadamard_amax(col, source, oct_hadamard_signs(q), threads);
    }
    if (row || (col && !q->hadamard)) {
        float most;
        oct_cpu_amax(&most, source, threads);
        *(row ? row : col) = most;
        if (col && !q->hadamard) {
            *col = most;
        }
    }
}
