/* per_tensor.c - FP8 with one scale per tensor, from its own amax or given by the caller. */
#include "cpu/schemes.h"

/* 16384 elements either way: rows as long as they come, or squarer where columns are turned. */
#define ROW_TILE_ROWS 4
#define ROW_TILE_COLS 4096
#define TURN_TILE_ROWS 128
#define TURN_TILE_COLS 128

typedef struct tensor_work {
    const oct_quantize_call *call;
    oct_grid grid;
    float scale;
    oct_shared_max *most; /* delayed: the amax, measured on the way; else NULL */
} tensor_work;

static void quantize_tile(const tensor_work *work, const oct_rect *rect) {
    uint8_t scratch[TURN_TILE_ROWS * TURN_TILE_COLS];
    const oct_quantize_call *call = work->call;
    oct_tile tile = oct_tile_of(call->source, rect);
    oct_factors by = {&work->scale, OCT_WHOLE_ROW, 0};
    oct_bytes row = oct_data_at(call->dst, OCTET_PART_ROW_DATA, rect);
    oct_bytes col = oct_turned_at(call->dst, OCTET_PART_COL_DATA, rect);
    if (work->most) {
        oct_shared_max_put(work->most, call->kernels->absmax(&tile));
    }
    if (!col.at) {
        call->kernels->encode(&row, &tile, &by, oct_call_format(call));
        return;
    }
    oct_bytes codes = {scratch, TURN_TILE_COLS};
    call->kernels->encode(&codes, &tile, &by, oct_call_format(call));
    for (int64_t r = 0; row.at && r < rect->rows; r++) {
        memcpy(row.at + r * row.stride, codes.at + r * codes.stride, (size_t)rect->cols);
    }
    oct_turn(call, &col, &codes, rect->rows, rect->cols);
}

static void quantize_task(void *arg, int64_t begin, int64_t end) {
    const tensor_work *work = arg;
    bool turns = work->call->dst->parts[OCTET_PART_COL_DATA] != NULL;
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = turns ? oct_grid_down(&work->grid, i) : oct_grid_at(&work->grid, i);
        quantize_tile(work, &rect);
    }
}

static float scale_of(const oct_quantize_call *call) {
    const octet_quantizer *q = &call->dst->quantizer;
    if (oct_scheme_of(q)->given) {
        return *call->live->scale;
    }
    oct_scale_rule rule = {oct_largest(q->format), q->epsilon, FLT_MAX, q->pow2};
    return oct_scale_of(*call->live->amax, &rule);
}

void oct_quantize_per_tensor(const oct_quantize_call *call, const oct_threads *threads) {
    bool turns = call->dst->parts[OCTET_PART_COL_DATA] != NULL;
    bool delayed = oct_scheme_of(&call->dst->quantizer)->given;
    oct_shared_max most = 0;
    tensor_work work = {call, {0}, scale_of(call), NULL};
    work.grid = (oct_grid){call->source->rows, call->source->cols,
                           turns ? TURN_TILE_ROWS : ROW_TILE_ROWS,
                           turns ? TURN_TILE_COLS : ROW_TILE_COLS};
    work.most = delayed && call->live->new_amax ? &most : NULL;
    oct_parallel(threads, oct_grid_count(&work.grid), quantize_task, &work);
    if (work.most) {
        *call->live->new_amax = oct_bits_f32(atomic_load(&most));
    }
    if (call->dst->parts[OCTET_PART_SCALE]) {
        *(float *)call->dst->parts[OCTET_PART_SCALE] = 1.0f / work.scale;
    }
}
