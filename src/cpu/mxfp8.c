/* mxfp8.c - blocks of 32 with one E8M0 scale: along rows, along columns, or squares. */
#include "cpu/schemes.h"

#define BLOCK 32
#define SCALES 256 /* of a part, in either direction */

/* A task reads its rows one by one, as far as prefetchers like; columns then come from the
 * cache. */
#define WIDE 4096
#define COL_PART_COLS SCALES
#define ROW_TILE_ROWS 4   /* where there are rows only */
#define APPLIED_COLS 1024 /* of these, where elements are computed */

typedef struct mx_work {
    const oct_quantize_call *call;
    oct_grid grid;
} mx_work;

static void quantize_rows(const void *work, const oct_rect *rect, const oct_tile *x) {
    const oct_quantize_call *call = work;
    uint32_t amaxes[SCALES];
    uint8_t codes[SCALES];
    float factors[SCALES];
    uint8_t *scales = call->dst->parts[OCTET_PART_ROW_SCALE];
    int64_t across = oct_size_ceil_div(rect->cols, BLOCK), first = rect->col / BLOCK;
    call->kernels->absmax_blocks(amaxes, x, BLOCK);
    call->kernels->mx_scales(codes, factors, amaxes, rect->rows * across,
                             oct_call_format(call));
    for (int64_t r = 0; r < rect->rows; r++) {
        oct_put_line(scales, &call->row, (int64_t[2]){rect->row + r, first}, codes + r * across,
                     across);
    }
    oct_bytes out = oct_data_at(call->dst, OCTET_PART_ROW_DATA, rect);
    oct_factors by = {factors, BLOCK, across};
    call->kernels->encode(&out, x, &by, oct_call_format(call));
}

static void quantize_columns(const void *work, const oct_rect *rect, const oct_tile *x) {
    const oct_quantize_call *call = work;
    uint32_t amaxes[SCALES];
    uint8_t codes[SCALES];
    float factors[SCALES];
    uint8_t *scales = call->dst->parts[OCTET_PART_COL_SCALE];
    call->kernels->absmax_columns(amaxes, x);
    call->kernels->mx_scales(codes, factors, amaxes, rect->cols, oct_call_format(call));
    oct_put_lines(scales, &call->col, (int64_t[2]){rect->col, rect->row / BLOCK}, codes,
                  rect->cols);
    oct_bytes out = oct_data_at(call->dst, OCTET_PART_COL_DATA, rect);
    oct_factors by = {factors, 1, 0};
    call->kernels->encode(&out, x, &by, oct_call_format(call));
}

/* One scale per 32 x 32, written to each of its lines in either direction. */
static void store_square(const oct_quantize_call *call, const oct_rect *rect,
                         const uint8_t *codes) {
    uint8_t *row = call->dst->parts[OCTET_PART_ROW_SCALE];
    uint8_t *col = call->dst->parts[OCTET_PART_COL_SCALE];
    int64_t across = oct_size_ceil_div(rect->cols, BLOCK), first = rect->col / BLOCK;
    for (int64_t r = 0; row && r < rect->rows; r++) {
        oct_put_line(row, &call->row, (int64_t[2]){rect->row + r, first}, codes, across);
    }
    for (int64_t c = 0; col && c < rect->cols; c++) {
        col[oct_scale_at(&call->col, rect->col + c, rect->row / BLOCK)] = codes[c / BLOCK];
    }
}

static void quantize_squares(const void *work, const oct_rect *rect, const oct_tile *x) {
    const oct_quantize_call *call = work;
    uint32_t columns[SCALES], amaxes[SCALES / BLOCK];
    uint8_t codes[SCALES / BLOCK];
    float factors[SCALES / BLOCK];
    int64_t across = oct_size_ceil_div(rect->cols, BLOCK);
    oct_tile line = {columns, SCALES, 1, rect->cols, OCTET_F32};
    call->kernels->absmax_columns(columns, x);
    call->kernels->absmax_blocks(amaxes, &line, BLOCK);
    call->kernels->mx_scales(codes, factors, amaxes, across, oct_call_format(call));
    store_square(call, rect, codes);
    oct_factors by = {factors, BLOCK, 0};
    for (int part = OCTET_PART_ROW_DATA; part <= OCTET_PART_COL_DATA; part += 2) {
        oct_bytes out = oct_data_at(call->dst, (octet_part)part, rect);
        if (out.at) {
            call->kernels->encode(&out, x, &by, oct_call_format(call));
        }
    }
}

/* Both directions, those that there are. */
static void quantize_part(const void *work, const oct_rect *rect, const oct_tile *x) {
    const oct_quantize_call *call = work;
    if (oct_is_square(&call->dst->quantizer)) {
        quantize_squares(work, rect, x);
        return;
    }
    if (call->dst->parts[OCTET_PART_ROW_DATA]) {
        quantize_rows(work, rect, x);
    }
    if (call->dst->parts[OCTET_PART_COL_DATA]) {
        quantize_columns(work, rect, x);
    }
}

static void quantize_task(void *arg, int64_t begin, int64_t end) {
    const mx_work *work = arg;
    const oct_matrix *dst = work->call->dst;
    bool row = dst->parts[OCTET_PART_ROW_DATA], col = dst->parts[OCTET_PART_COL_DATA];
    const oct_parts squares = {BLOCK, COL_PART_COLS, quantize_squares, work->call};
    const oct_parts rows = {1, WIDE, quantize_rows, work->call};
    const oct_parts columns = {BLOCK, COL_PART_COLS, quantize_columns, work->call};
    for (int64_t i = begin; i < end; i++) {
        oct_rect tile = oct_grid_at(&work->grid, i);
        if (oct_is_square(&dst->quantizer)) {
            oct_each_part(work->call, &tile, &squares);
            continue;
        }
        if (row) {
            oct_each_part(work->call, &tile, &rows);
        }
        if (col) {
            oct_each_part(work->call, &tile, &columns);
        }
    }
}

/* What is computed is cast in both directions while it is there. */
static void applied_task(void *arg, int64_t begin, int64_t end) {
    const mx_work *work = arg;
    int64_t whole = OCT_APPLIED_BYTES / oct_plain_bytes((octet_dtype)work->call->source->dtype);
    const oct_parts parts = {work->grid.tile_rows,
                             work->grid.tile_rows == BLOCK ? whole / BLOCK : APPLIED_COLS,
                             quantize_part, work->call};
    for (int64_t i = begin; i < end; i++) {
        oct_rect tile = oct_grid_at(&work->grid, i);
        oct_each_applied(work->call, &tile, &parts);
    }
}

void oct_quantize_mxfp8(const oct_quantize_call *call, const oct_threads *threads) {
    bool whole = oct_is_square(&call->dst->quantizer) || call->dst->parts[OCTET_PART_COL_DATA];
    mx_work work = {.call = call};
    work.grid =
        (oct_grid){call->source->rows, call->source->cols, whole ? BLOCK : ROW_TILE_ROWS, WIDE};
    oct_parallel(threads, oct_grid_count(&work.grid),
                 call->apply ? applied_task : quantize_task, &work);
}
