/* block.c - FP8 in blocks of 128, rows, columns or squares, with one fp32 scale each. */
#include "cpu/schemes.h"

#define BLOCK 128

/* Where there are rows only, a task reads them one by one, as far as prefetchers like. */
#define ROW_TILE_ROWS 4
#define ROW_TILE_COLS 4096
#define APPLIED_COLS 1024 /* where elements are computed */

typedef struct block_work {
    const oct_quantize_call *call;
    oct_grid grid;
    oct_scale_rule rule;
} block_work;

static float *scales_at(const oct_matrix *dst, octet_use use, int64_t at) {
    return (float *)dst->parts[oct_scale_part(use)] + at;
}

static void quantize_rows(const block_work *work, const oct_rect *rect, const oct_tile *tile) {
    const oct_quantize_call *call = work->call;
    uint32_t amaxes[BLOCK];
    float factors[BLOCK], inverses[BLOCK];
    int64_t across = oct_size_ceil_div(rect->cols, BLOCK), first = rect->col / BLOCK;
    call->kernels->absmax_blocks(amaxes, tile, BLOCK);
    call->kernels->fp8_scales(inverses, factors, amaxes, rect->rows * across, &work->rule);
    for (int64_t b = 0; b < across; b++) {
        int64_t at = oct_scale_at(&call->row, rect->row, first + b);
        float *scales = scales_at(call->dst, OCTET_USE_ROW, at);
        for (int64_t r = 0; r < rect->rows; r++) {
            scales[r] = inverses[r * across + b];
        }
    }
    oct_bytes out = oct_data_at(call->dst, OCTET_PART_ROW_DATA, rect);
    oct_factors by = {factors, BLOCK, across};
    call->kernels->encode(&out, tile, &by, oct_call_format(call));
}

static void quantize_columns(const block_work *work, const oct_rect *rect,
                             const oct_tile *tile) {
    const oct_quantize_call *call = work->call;
    uint32_t amaxes[BLOCK];
    float factors[BLOCK];
    uint8_t scratch[BLOCK * BLOCK];
    int64_t at = oct_scale_at(&call->col, rect->col, rect->row / BLOCK);
    float *inverses = scales_at(call->dst, OCTET_USE_COL, at);
    oct_bytes out = oct_turned_at(call->dst, OCTET_PART_COL_DATA, rect);
    call->kernels->absmax_columns(amaxes, tile);
    call->kernels->fp8_scales(inverses, factors, amaxes, rect->cols, &work->rule);
    oct_bytes codes = {scratch, BLOCK};
    oct_factors by = {factors, 1, 0};
    call->kernels->encode(&codes, tile, &by, oct_call_format(call));
    oct_turn(call, &out, &codes, rect->rows, rect->cols);
}

static void quantize_square(const block_work *work, const oct_rect *rect,
                            const oct_tile *tile) {
    const oct_quantize_call *call = work->call;
    uint8_t scratch[BLOCK * BLOCK];
    float factor = oct_scale_of(oct_bits_f32(call->kernels->absmax(tile)), &work->rule);
    oct_factors by = {&factor, OCT_WHOLE_ROW, 0};
    oct_bytes row = oct_data_at(call->dst, OCTET_PART_ROW_DATA, rect);
    oct_bytes col = oct_turned_at(call->dst, OCTET_PART_COL_DATA, rect);
    if (row.at) {
        int64_t at = oct_scale_at(&call->row, rect->row, rect->col / BLOCK);
        *scales_at(call->dst, OCTET_USE_ROW, at) = 1.0f / factor;
    } else {
        row = (oct_bytes){scratch, BLOCK};
    }
    call->kernels->encode(&row, tile, &by, oct_call_format(call));
    if (col.at) {
        int64_t at = oct_scale_at(&call->col, rect->col, rect->row / BLOCK);
        *scales_at(call->dst, OCTET_USE_COL, at) = 1.0f / factor;
        oct_turn(call, &col, &row, rect->rows, rect->cols);
    }
}

static void quantize_row_part(const void *arg, const oct_rect *rect, const oct_tile *x) {
    quantize_rows(arg, rect, x);
}

/* A 128 x 128 tile is read up to four times. 16-bit elements are read from a copy: rows a power
 * of two apart would push each other out of the cache. Computed elements are there already;
 * they have 16 bits. */
static void quantize_tile(const block_work *work, const oct_rect *rect) {
    _Alignas(float) uint16_t dense[BLOCK * BLOCK];
    const oct_matrix *dst = work->call->dst;
    oct_tile tile;
    if (work->call->apply) {
        tile = oct_applied_tile(dense, work->call->apply, rect);
    } else {
        tile = oct_tile_of(work->call->source, rect);
        tile = tile.dtype == OCTET_F32 ? tile : oct_dense_copy(dense, &tile);
    }
    if (oct_is_square(&dst->quantizer)) {
        quantize_square(work, rect, &tile);
        return;
    }
    if (dst->parts[OCTET_PART_ROW_DATA]) {
        quantize_rows(work, rect, &tile);
    }
    quantize_columns(work, rect, &tile);
}

static void rows_task(void *arg, int64_t begin, int64_t end) {
    const block_work *work = arg;
    const oct_parts rows = {1, ROW_TILE_COLS, quantize_row_part, work};
    const oct_parts applied = {ROW_TILE_ROWS, APPLIED_COLS, quantize_row_part, work};
    for (int64_t i = begin; i < end; i++) {
        oct_rect tile = oct_grid_at(&work->grid, i);
        if (work->call->apply) {
            oct_each_applied(work->call, &tile, &applied);
        } else {
            oct_each_part(work->call, &tile, &rows);
        }
    }
}

static void tiles_task(void *arg, int64_t begin, int64_t end) {
    const block_work *work = arg;
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_down(&work->grid, i);
        quantize_tile(work, &rect);
    }
}

void oct_quantize_block(const oct_quantize_call *call, const oct_threads *threads) {
    const octet_quantizer *q = &call->dst->quantizer;
    bool tiles = oct_is_square(q) || call->dst->parts[OCTET_PART_COL_DATA];
    block_work work = {.call = call};
    work.grid = (oct_grid){call->source->rows, call->source->cols,
                           tiles ? BLOCK : ROW_TILE_ROWS, tiles ? BLOCK : ROW_TILE_COLS};
    work.rule = (oct_scale_rule){oct_largest(q->format), q->epsilon,
                                 oct_largest(call->source->dtype), q->pow2};
    oct_parallel(threads, oct_grid_count(&work.grid), tiles ? tiles_task : rows_task, &work);
}
