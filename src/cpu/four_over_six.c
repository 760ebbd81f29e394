/* four_over_six.c - NVFP4's choice per block: its amax becomes 6, or 4 where that errs less.
 *
 * The work is cut into 16 x 16 squares, read along the lines of the direction: 16 lines with
 * one block of 16 each. */
#include "cpu/schemes.h"
#include "format/e2m1.h"

#define SIDE 16

typedef struct square_work {
    const oct_quantize_call *call;
    octet_use use;
    oct_grid grid; /* of the matrix in memory, whatever the direction */
} square_work;

/* A square as its direction sees it; what lies outside the matrix is 0. */
typedef struct square {
    int64_t line, block;     /* the first line, and the block along each */
    int64_t lines, elements; /* that exist */
    float x[SIDE][SIDE];
} square;

/* A block's scale and what its elements are multiplied by. */
typedef struct block_scale {
    uint8_t code;
    float factor;
} block_scale;

static void load_square(square *out, const square_work *work, const oct_rect *rect) {
    oct_tile tile = oct_tile_of(work->call->source, rect);
    bool row = work->use == OCTET_USE_ROW;
    memset(out->x, 0, sizeof out->x);
    for (int64_t r = 0; r < rect->rows; r++) {
        for (int64_t c = 0; c < rect->cols; c++) {
            float value = oct_plain_load(oct_tile_row(&tile, r), c, tile.dtype);
            *(row ? &out->x[r][c] : &out->x[c][r]) = value;
        }
    }
    out->line = row ? rect->row : rect->col;
    out->block = (row ? rect->col : rect->row) / SIDE;
    out->lines = row ? rect->rows : rect->cols;
    out->elements = row ? rect->cols : rect->rows;
}

/* The two candidates. The amax is divided by six before it is scaled. */
static block_scale candidate(float amax, bool four, const oct_nv_global *global) {
    float base = amax / 6.0f * global->encode;
    uint8_t code = oct_e4m3_encode(oct_least(four ? base * 1.5f : base, 448.0f));
    return (block_scale){code, oct_nv_multiplier(code, global)};
}

/* The error of 16 elements in order, in fp32: the sum of |d| or of d d. */
static float error_of(const float x[SIDE], block_scale scale, const oct_nv_global *global,
                      const octet_quantizer *q) {
    float error = 0.0f, aim = oct_nv_aim(q), step = oct_e4m3_decode(scale.code);
    for (int i = 0; i < SIDE; i++) {
        float value = oct_e2m1_decode(oct_e2m1_encode(x[i] * scale.factor));
        float d = value * step * global->amax / aim - x[i];
        error += q->four_over_six == OCTET_4OVER6_MSE ? d * d : (d < 0.0f ? -d : d);
    }
    return error;
}

/* 16 errors summed as a tree: i with i + 8, then + 4, + 2, + 1. */
static float tree_sum(float errors[SIDE]) {
    for (int half = SIDE / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            errors[i] += errors[i + half];
        }
    }
    return errors[0];
}

/* Of `lines` lines that share a scale. A tie, or an error that is NaN, is for six. */
static block_scale choose(float (*x)[SIDE], int64_t lines, const oct_nv_global *global,
                          const oct_quantize_call *call) {
    const octet_quantizer *q = &call->dst->quantizer;
    oct_tile tile = {x[0], SIDE, lines, SIDE, OCTET_F32};
    float amax = oct_bits_f32(call->kernels->absmax(&tile));
    block_scale four = candidate(amax, true, global), six = candidate(amax, false, global);
    float by_four[SIDE] = {0}, by_six[SIDE] = {0};
    for (int64_t i = 0; i < lines; i++) {
        by_four[i] = error_of(x[i], four, global, q);
        by_six[i] = error_of(x[i], six, global, q);
    }
    return tree_sum(by_four) < tree_sum(by_six) ? four : six;
}

/* The codes of one line, packed. */
static void encode_line(const square_work *work, const square *s, int64_t i, float factor) {
    const oct_matrix *dst = work->call->dst;
    uint8_t *data = dst->parts[oct_data_part(work->use)];
    int64_t stride = oct_line_bytes(dst, work->use);
    uint8_t codes[SIDE];
    for (int64_t k = 0; k < s->elements; k++) {
        codes[k] = oct_e2m1_encode(s->x[i][k] * factor);
    }
    work->call->kernels->pack(data + (s->line + i) * stride + s->block * (SIDE / 2), codes,
                              s->elements);
}

static void quantize_square(const square_work *work, square *s) {
    const oct_quantize_call *call = work->call;
    const octet_quantizer *q = &call->dst->quantizer;
    const float *amax = call->dst->parts[oct_amax_part(work->use)];
    uint8_t *scales = call->dst->parts[oct_scale_part(work->use)];
    const oct_scales *where = work->use == OCTET_USE_ROW ? &call->row : &call->col;
    block_scale scale = {0, 0.0f};
    for (int64_t i = 0; i < s->lines; i++) {
        if (i == 0 || !oct_is_square(q)) {
            float most = amax[q->row_scaled ? s->line + i : 0];
            oct_nv_global global = oct_nv_global_of(most, oct_nv_aim(q));
            scale = choose(&s->x[i], oct_is_square(q) ? SIDE : 1, &global, call);
        }
        scales[oct_scale_at(where, s->line + i, s->block)] = scale.code;
        encode_line(work, s, i, scale.factor);
    }
}

static void square_task(void *arg, int64_t begin, int64_t end) {
    const square_work *work = arg;
    square s;
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        load_square(&s, work, &rect);
        quantize_square(work, &s);
    }
}

void oct_quantize_four_over_six(const oct_quantize_call *call, const oct_threads *threads) {
    oct_grid grid = {call->source->rows, call->source->cols, SIDE, SIDE};
    for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
        square_work work = {call, (octet_use)use, grid};
        if (call->dst->parts[oct_data_part(work.use)]) {
            oct_parallel(threads, oct_grid_count(&grid), square_task, &work);
        }
    }
}
