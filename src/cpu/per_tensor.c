/* per_tensor.c - FP8 with one scale per tensor, from its own amax or given by the caller. */
#include "cpu/schemes.h"

/* 16384 elements either way: rows as long as they come, or squarer where columns are turned. */
#define ROW_TILE_ROWS 4
#define ROW_TILE_COLS 4096
#define TURN_TILE_ROWS 128
#define TURN_TILE_COLS 128

/* The same where elements are computed: some at a time. */
#define APPLIED_COLS 1024
#define APPLIED_ROWS 32

typedef struct tensor_work {
    const oct_quantize_call *call;
    oct_grid grid;
    float scale;
    oct_shared_max *most; /* delayed: the amax, measured on the way; else NULL */
} tensor_work;

/* Codes of some elements, and their amax where it is wanted. */
static void encode(const tensor_work *work, const oct_bytes *codes, const oct_tile *x) {
    const oct_quantize_call *call = work->call;
    oct_factors by = {&work->scale, OCT_WHOLE_ROW, 0};
    if (work->most) {
        oct_shared_max_put(work->most, call->kernels->absmax(x));
    }
    call->kernels->encode(codes, x, &by, oct_call_format(call));
}

static void encode_rows(const void *arg, const oct_rect *rect, const oct_tile *x) {
    const tensor_work *work = arg;
    oct_bytes row = oct_data_at(work->call->dst, OCTET_PART_ROW_DATA, rect);
    encode(work, &row, x);
}

/* Codes of a tile that are turned next. */
typedef struct turned_tile {
    const tensor_work *work;
    const oct_rect *tile;
    uint8_t codes[TURN_TILE_ROWS * TURN_TILE_COLS];
} turned_tile;

static void encode_turned(const void *arg, const oct_rect *rect, const oct_tile *x) {
    turned_tile *turned = *(turned_tile *const *)arg;
    int64_t first = (rect->row - turned->tile->row) * TURN_TILE_COLS;
    oct_bytes codes = {turned->codes + first, TURN_TILE_COLS};
    encode(turned->work, &codes, x);
}

static void quantize_turned(const tensor_work *work, const oct_rect *rect) {
    turned_tile turned, *to = &turned;
    const oct_quantize_call *call = work->call;
    oct_parts whole = {TURN_TILE_ROWS, TURN_TILE_COLS, encode_turned, &to};
    oct_bytes row = oct_data_at(call->dst, OCTET_PART_ROW_DATA, rect);
    oct_bytes col = oct_turned_at(call->dst, OCTET_PART_COL_DATA, rect);
    turned.work = work;
    turned.tile = rect;
    if (call->apply) {
        whole.rows = APPLIED_ROWS;
        oct_each_applied(call, rect, &whole);
    } else {
        oct_each_part(call, rect, &whole);
    }
    oct_bytes codes = {turned.codes, TURN_TILE_COLS};
    for (int64_t r = 0; row.at && r < rect->rows; r++) {
        memcpy(row.at + r * row.stride, codes.at + r * codes.stride, (size_t)rect->cols);
    }
    oct_turn(call, &col, &codes, rect->rows, rect->cols);
}

static void turned_task(void *arg, int64_t begin, int64_t end) {
    const tensor_work *work = arg;
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_down(&work->grid, i);
        quantize_turned(work, &rect);
    }
}

static void rows_task(void *arg, int64_t begin, int64_t end) {
    const tensor_work *work = arg;
    bool applies = work->call->apply != NULL;
    const oct_parts parts = {ROW_TILE_ROWS, applies ? APPLIED_COLS : ROW_TILE_COLS, encode_rows,
                             work};
    for (int64_t i = begin; i < end; i++) {
        oct_rect tile = oct_grid_at(&work->grid, i);
        if (applies) {
            oct_each_applied(work->call, &tile, &parts);
        } else {
            oct_each_part(work->call, &tile, &parts);
        }
    }
}

static float scale_of(const oct_quantize_call *call) {
    const octet_quantizer *q = &call->dst->quantizer;
    if (oct_scheme_of(q)->given_scale) {
        return *call->live->scale;
    }
    oct_scale_rule rule = {oct_largest(q->format), q->epsilon, FLT_MAX, q->pow2};
    return oct_scale_of(*call->live->amax, &rule);
}

void oct_quantize_per_tensor(const oct_quantize_call *call, const oct_threads *threads) {
    bool turns = call->dst->parts[OCTET_PART_COL_DATA] != NULL;
    bool delayed = oct_scheme_of(&call->dst->quantizer)->given_scale;
    oct_shared_max most = 0;
    tensor_work work = {call, {0}, scale_of(call), NULL};
    work.grid = (oct_grid){call->source->rows, call->source->cols,
                           turns ? TURN_TILE_ROWS : ROW_TILE_ROWS,
                           turns ? TURN_TILE_COLS : ROW_TILE_COLS};
    work.most = delayed && call->live->new_amax ? &most : NULL;
    oct_parallel(threads, oct_grid_count(&work.grid), turns ? turned_task : rows_task, &work);
    if (work.most) {
        *call->live->new_amax = oct_bits_f32(atomic_load(&most));
    }
    if (call->dst->parts[OCTET_PART_SCALE]) {
        *(float *)call->dst->parts[OCTET_PART_SCALE] = 1.0f / work.scale;
    }
}
