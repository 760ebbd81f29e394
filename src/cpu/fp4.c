/* fp4.c - E2M1 in blocks of 16 or 32: scales of E4M3 under an fp32 amax, or of E8M0. */
#include "cpu/schemes.h"

#define DRAW 16       /* elements that random bytes are drawn for at once */
#define MOST_BLOCK 32 /* a block's elements, at least and at most */
#define LEAST_BLOCK 16
#define SCALES 256                  /* of a part, in either direction */
#define CODES (MOST_BLOCK * SCALES) /* of the same */

/* Where there are columns, a tile's line of codes grows by 64 bytes, a cache line. Where there
 * are rows only, a task reads them one by one, as far as prefetchers like. */
#define TALL 128
#define ROW_TILE_ROWS 4
#define ROW_TILE_COLS (LEAST_BLOCK * SCALES)
#define APPLIED_COLS 1024     /* where elements are computed; */
#define APPLIED_TILE_COLS 128 /* where there are columns, too */

typedef struct fp4_work {
    const oct_quantize_call *call;
    oct_grid grid;
} fp4_work;

/* Some rows of the source, seen in one direction; x may be transformed. */
typedef struct fp4_part {
    const oct_quantize_call *call;
    octet_use use;
    oct_rect rect;
    oct_tile x;
} fp4_part;

/* The scales of some lines of blocks. */
typedef struct fp4_scales {
    uint8_t codes[SCALES];
    float factors[SCALES];
} fp4_scales;

static int64_t block_of(const oct_quantize_call *call) {
    return call->dst->quantizer.block_cols;
}

/* amaxes: `blocks` for each of `lines`, which share an amax of the tensor, have their own, or
 * have none. */
static void scales_of(fp4_scales *out, const fp4_part *part, const uint32_t *amaxes,
                      int64_t lines, int64_t blocks) {
    const oct_quantize_call *call = part->call;
    const octet_quantizer *q = &call->dst->quantizer;
    const float *amax = call->dst->parts[oct_amax_part(part->use)];
    int64_t first = part->use == OCTET_USE_ROW ? part->rect.row : part->rect.col;
    if (!amax) {
        call->kernels->mx_scales(out->codes, out->factors, amaxes, lines * blocks, OCTET_E2M1);
        return;
    }
    if (!q->row_scaled) {
        oct_nv_global global = oct_nv_global_of(*amax, oct_nv_aim(q));
        call->kernels->nv_scales(out->codes, out->factors, amaxes, lines * blocks, &global);
        return;
    }
    for (int64_t i = 0; i < lines; i++) {
        oct_nv_global global = oct_nv_global_of(amax[first + i], oct_nv_aim(q));
        call->kernels->nv_scales(out->codes + i * blocks, out->factors + i * blocks,
                                 amaxes + i * blocks, blocks, &global);
    }
}

/* ---- codes ----------------------------------------------------------------------------- */

/* The random byte of each element, laid out as the codes are. Draws of 16 follow each other
 * along a row; columnwise ones run down the columns of 16 rows. */
static void random_bytes(uint8_t *out, const fp4_part *part) {
    uint8_t lines[DRAW * SCALES];
    const oct_quantize_call *call = part->call;
    const oct_rect *rect = &part->rect;
    oct_random which = {.seed = call->live->seed,
                        .step = 1,
                        .direction = part->use == OCTET_USE_COL,
                        .stream = call->live->stream};
    if (part->use == OCTET_USE_ROW) {
        int64_t draws = oct_size_ceil_div(call->source->cols, DRAW);
        for (int64_t r = 0; r < rect->rows; r++) {
            which.first = (uint64_t)((rect->row + r) * draws + rect->col / DRAW);
            call->kernels->random(lines, &which, oct_size_ceil_div(rect->cols, DRAW));
            memcpy(out + r * rect->cols, lines, (size_t)rect->cols);
        }
        return;
    }
    int64_t draws = oct_size_ceil_div(call->source->rows, DRAW);
    which.step = (uint64_t)draws;
    for (int64_t r = 0; r < rect->rows; r += DRAW) {
        which.first = (uint64_t)(rect->col * draws + (rect->row + r) / DRAW);
        call->kernels->random(lines, &which, rect->cols);
        oct_bytes turned = {out + r * rect->cols, rect->cols}, x = {lines, DRAW};
        call->kernels->transpose(&turned, &x, rect->cols, DRAW);
    }
}

/* One code a byte, to nearest or by random bytes. */
static void encode_part(uint8_t *codes, const fp4_part *part, const oct_factors *by) {
    const oct_kernels *kernels = part->call->kernels;
    oct_bytes out = {codes, part->rect.cols};
    if (part->call->dst->quantizer.stochastic) {
        uint8_t bytes[CODES];
        oct_bytes random = {bytes, part->rect.cols};
        random_bytes(bytes, part);
        kernels->encode_stochastic(&out, &part->x, by, &random);
    } else {
        kernels->encode(&out, &part->x, by, OCTET_E2M1);
    }
}

static void store_rows(const oct_quantize_call *call, const oct_rect *rect,
                       const uint8_t *codes) {
    int64_t stride = oct_line_bytes(call->dst, OCTET_USE_ROW);
    uint8_t *data = call->dst->parts[OCTET_PART_ROW_DATA];
    for (int64_t r = 0; r < rect->rows; r++) {
        call->kernels->pack(data + (rect->row + r) * stride + rect->col / 2,
                            codes + r * rect->cols, rect->cols);
    }
}

/* Codes of a block's rows become half as many rows of pairs; a last row without a partner is
 * paired with zeros. */
static void pair_rows(uint8_t *pairs, const fp4_part *part, const uint8_t *codes) {
    static const uint8_t zeros[SCALES];
    int64_t rows = part->x.rows, cols = part->rect.cols;
    for (int64_t r = 0; r < rows; r += 2) {
        const uint8_t *low = codes + r * cols;
        part->call->kernels->pack_rows(pairs + r / 2 * cols, low,
                                       r + 1 < rows ? low + cols : zeros, cols);
    }
}

/* ---- a direction ----------------------------------------------------------------------- */

static void quantize_rows(const void *work, const oct_rect *rect, const oct_tile *x) {
    const oct_quantize_call *call = work;
    uint32_t amaxes[SCALES];
    uint8_t codes[CODES];
    fp4_scales made;
    fp4_part part = {call, OCTET_USE_ROW, *rect, *x};
    int64_t block = block_of(call), across = oct_size_ceil_div(rect->cols, block);
    call->kernels->absmax_blocks(amaxes, &part.x, block);
    scales_of(&made, &part, amaxes, rect->rows, across);
    for (int64_t r = 0; r < rect->rows; r++) {
        oct_put_line(call->dst->parts[OCTET_PART_ROW_SCALE], &call->row,
                     (int64_t[2]){rect->row + r, rect->col / block}, made.codes + r * across,
                     across);
    }
    encode_part(codes, &part, &(oct_factors){made.factors, block, across});
    store_rows(call, rect, codes);
}

/* Columnwise codes of a group of rows, as pairs. */
static void quantize_columns(const fp4_part *part, uint8_t *pairs) {
    const oct_quantize_call *call = part->call;
    const oct_rect *rect = &part->rect;
    uint32_t amaxes[SCALES];
    uint8_t codes[CODES];
    fp4_scales made;
    call->kernels->absmax_columns(amaxes, &part->x);
    scales_of(&made, part, amaxes, rect->cols, 1);
    oct_put_lines(call->dst->parts[OCTET_PART_COL_SCALE], &call->col,
                  (int64_t[2]){rect->col, rect->row / block_of(call)}, made.codes, rect->cols);
    encode_part(codes, part, &(oct_factors){made.factors, 1, 0});
    pair_rows(pairs, part, codes);
}

/* The transform is of 16 rows each, whatever the block. */
static void quantize_transformed(fp4_part part, uint8_t *pairs) {
    float turned[MOST_BLOCK * SCALES];
    uint32_t signs = oct_hadamard_signs(&part.call->dst->quantizer);
    int64_t cols = part.rect.cols, made = 0;
    for (; made < part.rect.rows; made += OCT_HADAMARD_ROWS) {
        oct_tile x = part.x;
        x.at = oct_tile_row(&part.x, made);
        x.rows = oct_min(OCT_HADAMARD_ROWS, part.rect.rows - made);
        part.call->kernels->hadamard(turned + made * cols, &x, signs);
    }
    part.x = (oct_tile){turned, cols, made, cols, OCTET_F32};
    quantize_columns(&part, pairs);
}

/* ---- squares --------------------------------------------------------------------------- */

/* One scale per square, written to each of its lines in either direction. */
static void store_square(const oct_quantize_call *call, const oct_rect *rect,
                         const uint8_t *codes) {
    uint8_t *row = call->dst->parts[OCTET_PART_ROW_SCALE];
    uint8_t *col = call->dst->parts[OCTET_PART_COL_SCALE];
    int64_t block = block_of(call), first = rect->col / block;
    int64_t across = oct_size_ceil_div(rect->cols, block);
    for (int64_t r = 0; row && r < rect->rows; r++) {
        oct_put_line(row, &call->row, (int64_t[2]){rect->row + r, first}, codes, across);
    }
    for (int64_t c = 0; col && c < rect->cols; c++) {
        col[oct_scale_at(&call->col, rect->col + c, rect->row / block)] = codes[c / block];
    }
}

/* Both directions share scales; their codes differ only by the random bytes they draw. */
static void quantize_squares(fp4_part part, uint8_t *pairs) {
    const oct_quantize_call *call = part.call;
    uint32_t columns[SCALES], amaxes[SCALES / LEAST_BLOCK];
    uint8_t codes[CODES];
    fp4_scales made;
    bool row = call->dst->parts[OCTET_PART_ROW_DATA], col = pairs != NULL;
    int64_t cols = part.rect.cols, block = block_of(call);
    part.use = row ? OCTET_USE_ROW : OCTET_USE_COL;
    call->kernels->absmax_columns(columns, &part.x);
    call->kernels->absmax_blocks(amaxes, &(oct_tile){columns, cols, 1, cols, OCTET_F32}, block);
    scales_of(&made, &part, amaxes, 1, oct_size_ceil_div(cols, block));
    store_square(call, &part.rect, made.codes);
    oct_factors by = {made.factors, block, 0};
    encode_part(codes, &part, &by);
    if (row) {
        store_rows(call, &part.rect, codes);
    }
    if (row && col && call->dst->quantizer.stochastic) {
        part.use = OCTET_USE_COL;
        encode_part(codes, &part, &by);
    }
    if (col) {
        pair_rows(pairs, &part, codes);
    }
}

/* ---- tiles ----------------------------------------------------------------------------- */

/* Both directions of up to a block's rows; columnwise codes as pairs. */
static void quantize_group(const fp4_part *group, uint8_t *pairs) {
    fp4_part part = *group;
    const oct_quantize_call *call = part.call;
    const octet_quantizer *q = &call->dst->quantizer;
    if (oct_is_square(q)) {
        quantize_squares(part, pairs);
        return;
    }
    if (call->dst->parts[OCTET_PART_ROW_DATA]) {
        quantize_rows(call, &part.rect, &part.x);
    }
    if (q->hadamard) {
        quantize_transformed(part, pairs);
    } else {
        quantize_columns(&part, pairs);
    }
}

/* Pairs of a tile, which are turned into lines when they are there. */
typedef struct fp4_tile {
    const oct_quantize_call *call;
    const oct_rect *rect;
    uint8_t pairs[TALL / 2 * SCALES];
} fp4_tile;

static void quantize_tile_part(const void *work, const oct_rect *rect, const oct_tile *x) {
    fp4_tile *tile = *(fp4_tile *const *)work;
    fp4_part part = {tile->call, OCTET_USE_COL, *rect, *x};
    uint8_t *pairs = tile->pairs + (rect->row - tile->rect->row) / 2 * rect->cols;
    quantize_group(&part, tile->call->dst->parts[OCTET_PART_COL_DATA] ? pairs : NULL);
}

/* Up to 128 rows, group by group. */
static void quantize_tile(const oct_quantize_call *call, const oct_rect *rect) {
    fp4_tile tile, *to = &tile;
    uint8_t *data = call->dst->parts[OCTET_PART_COL_DATA];
    int64_t stride = oct_line_bytes(call->dst, OCTET_USE_COL);
    int64_t bytes = oct_min(TALL / 2, stride - rect->row / 2);
    oct_bytes out = {data ? data + rect->col * stride + rect->row / 2 : NULL, stride};
    const oct_parts groups = {block_of(call), SCALES, quantize_tile_part, &to};
    tile.call = call;
    tile.rect = rect;
    if (call->apply) {
        oct_each_applied(call, rect, &groups);
    } else {
        oct_each_part(call, rect, &groups);
    }
    if (data) {
        oct_turn(call, &out, &(oct_bytes){tile.pairs, rect->cols}, bytes, rect->cols);
    }
}

static void rows_task(void *arg, int64_t begin, int64_t end) {
    const fp4_work *work = arg;
    const oct_parts rows = {1, ROW_TILE_COLS, quantize_rows, work->call};
    const oct_parts applied = {ROW_TILE_ROWS, APPLIED_COLS, quantize_rows, work->call};
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
    const fp4_work *work = arg;
    for (int64_t i = begin; i < end; i++) {
        oct_rect tile = oct_grid_down(&work->grid, i);
        quantize_tile(work->call, &tile);
    }
}

void oct_quantize_fp4(const oct_quantize_call *call, const oct_threads *threads) {
    const octet_quantizer *q = &call->dst->quantizer;
    if (q->four_over_six) {
        oct_quantize_four_over_six(call, threads);
        return;
    }
    bool tiles = oct_is_square(q) || call->dst->parts[OCTET_PART_COL_DATA];
    fp4_work work = {.call = call};
    work.grid = (oct_grid){call->source->rows, call->source->cols, tiles ? TALL : ROW_TILE_ROWS,
                           tiles ? (call->apply ? APPLIED_TILE_COLS : SCALES) : ROW_TILE_COLS};
    oct_parallel(threads, oct_grid_count(&work.grid), tiles ? tiles_task : rows_task, &work);
}
