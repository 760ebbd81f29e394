/* moves.c - elements that only change place or dtype, on a GPU. */
#include "cuda/kernels/moves.h"
#include "core/size.h"
#include "cuda/device.h"
#include "format/scheme.h"

static octet_status launch(const oct_cuda_on *on, oct_cuda_launch call, octet_error *err) {
    call.module = OCT_MODULE_moves;
    return oct_cuda_launch_kernel(on, &call, err);
}

/* Two matrices without gaps are one row of all their elements. */
octet_status oct_cuda_cast(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, octet_error *err) {
    oct_matrix to = *dst, from = *source;
    bool dense = dst->stride == source->cols && source->stride == source->cols;
    if (dense && source->cols % OCT_ROWS_COLS) {
        to.rows = from.rows = source->rows > 0;
        from.cols = source->rows * source->cols;
    }
    oct_cast_params p = {oct_rows_of(from.rows, from.cols), oct_plain_of(&to),
                         oct_plain_of(&from)};
    return launch(on,
                  (oct_cuda_launch){.kernel = "cast",
                                    .grid = {oct_rows_blocks(&p.shape), 1, 1},
                                    .threads = OCT_ROWS_THREADS,
                                    .params = &p,
                                    .params_bytes = sizeof p},
                  err);
}

/* ---- scales ---------------------------------------------------------------------------- */

static octet_status move_scales(const oct_cuda_on *on, oct_scales_params *p, octet_error *err) {
    int64_t blocks = oct_size_ceil_div(p->to_at.count, 4 * OCT_SCALES_THREADS);
    p->wide = (uintptr_t)p->to % (4u * p->bytes) == 0 && p->to_at.count % 4 == 0;
    return launch(on,
                  (oct_cuda_launch){.kernel = "move_scales",
                                    .grid = {(uint32_t)blocks, 1, 1},
                                    .threads = OCT_SCALES_THREADS,
                                    .params = p,
                                    .params_bytes = sizeof *p},
                  err);
}

octet_status oct_cuda_swizzle(const oct_cuda_on *on, const oct_matrix *dst,
                              const oct_matrix *source, octet_use use, octet_error *err) {
    oct_matrix compact = *source, turned = *source;
    compact.quantizer.swizzled = 0;
    turned.quantizer.swizzled = 1;
    oct_scales_params p = {.from = source->parts[oct_scale_part(use)],
                           .to = dst->parts[oct_scale_part(use)],
                           .from_at = oct_scales_of(&compact, use),
                           .to_at = oct_scales_of(&turned, use),
                           .way = OCT_SCALE_SAME,
                           .bytes = 1};
    return move_scales(on, &p, err);
}

/* ---- transpose ------------------------------------------------------------------------- */

static bool is_wide(const void *at, int64_t line_bytes) {
    return ((uintptr_t)at | (uintptr_t)line_bytes) % 16 == 0;
}

static oct_float_move float_move(void *to, const void *from) {
    bool moves = to && from && to != from;
    return (oct_float_move){moves ? to : NULL, moves ? from : NULL};
}

/* Where both directions are stored as the rows lie. */
static octet_status copy_data(const oct_cuda_on *on, const oct_matrix *dst,
                              const oct_matrix *source, octet_use have, octet_error *err) {
    octet_use want = have == OCTET_USE_ROW ? OCTET_USE_COL : OCTET_USE_ROW;
    return oct_cuda_copy(on, dst->parts[oct_data_part(want)],
                         source->parts[oct_data_part(have)], source->rows * source->cols, err);
}

static octet_status turn_data(const oct_cuda_on *on, const oct_matrix *dst,
                              const oct_matrix *source, octet_use have, octet_error *err) {
    bool row = have == OCTET_USE_ROW, nibbles = oct_scheme_of(&source->quantizer)->packed;
    octet_use want = row ? OCTET_USE_COL : OCTET_USE_ROW;
    oct_turn_params p = {.from = source->parts[oct_data_part(have)],
                         .to = dst->parts[oct_data_part(want)],
                         .lines = row ? source->rows : source->cols,
                         .length = row ? source->cols : source->rows};
    p.from_bytes = oct_line_bytes(source, have);
    p.to_bytes = oct_line_bytes(dst, want);
    p.wide_from = is_wide(p.from, p.from_bytes);
    p.wide_to = is_wide(p.to, p.to_bytes);
    p.floats[0] = float_move(dst->parts[OCTET_PART_SCALE], source->parts[OCTET_PART_SCALE]);
    p.floats[1] =
        float_move(dst->parts[oct_amax_part(want)], source->parts[oct_amax_part(have)]);
    int64_t across = oct_size_ceil_div(p.length, OCT_TURN_SIDE);
    int64_t down = oct_size_ceil_div(p.lines, OCT_TURN_SIDE);
    if (across * down == 0) { /* floats move alone */
        across = down = 1;
    }
    p.across = (uint32_t)across;
    return launch(on,
                  (oct_cuda_launch){.kernel = nibbles ? "turn_nibbles" : "turn_bytes",
                                    .grid = {(uint32_t)(across * down), 1, 1},
                                    .threads = OCT_TURN_THREADS,
                                    .params = &p,
                                    .params_bytes = sizeof p},
                  err);
}

octet_status oct_cuda_transpose(const oct_cuda_on *on, const oct_matrix *dst,
                                const oct_matrix *source, octet_use have, octet_error *err) {
    octet_use want = have == OCTET_USE_ROW ? OCTET_USE_COL : OCTET_USE_ROW;
    octet_status status = oct_scheme_of(&source->quantizer)->as_rows
                              ? copy_data(on, dst, source, have, err)
                              : turn_data(on, dst, source, have, err);
    if (status || !source->quantizer.block_cols) {
        return status;
    }
    oct_scales_params p = {.from = source->parts[oct_scale_part(have)],
                           .to = dst->parts[oct_scale_part(want)],
                           .from_at = oct_scales_of(source, have),
                           .to_at = oct_scales_of(dst, want),
                           .side = dst->quantizer.block_rows,
                           .way = OCT_SCALE_TURNED,
                           .bytes = (uint8_t)oct_scale_bytes(&source->quantizer)};
    return move_scales(on, &p, err);
}

/* ---- padding --------------------------------------------------------------------------- */

static oct_pad_params pad_of(const oct_cuda_padding *padding) {
    const oct_matrix *dst = padding->dst;
    oct_pad_params p = {.shape = oct_rows_of(dst->rows, dst->cols / 2),
                        .from = padding->from,
                        .to = dst->parts[OCTET_PART_VALUES],
                        .lines = padding->lines,
                        .length = padding->length,
                        .from_pitch = padding->pitch ? padding->pitch : padding->length,
                        .pitch = dst->cols};
    p.wide = is_wide(p.from, 0);
    return p;
}

octet_status oct_cuda_pad(const oct_cuda_on *on, const oct_cuda_padding *paddings, int count,
                          octet_error *err) {
    oct_pad_all p = {0};
    uint32_t blocks = 0;
    for (int i = 0; i < OCT_CUDA_PADDINGS; i++) {
        if (i < count) {
            p.of[i] = pad_of(&paddings[i]);
        }
        p.of[i].block = blocks;
        blocks += i < count ? oct_rows_blocks(&p.of[i].shape) : 0;
    }
    return launch(on,
                  (oct_cuda_launch){.kernel = "pad_lines",
                                    .grid = {blocks, 1, 1},
                                    .threads = OCT_ROWS_THREADS,
                                    .params = &p,
                                    .params_bytes = sizeof p},
                  err);
}

/* ---- assemble -------------------------------------------------------------------------- */

static octet_status join_columns(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, int64_t ranks, octet_error *err) {
    const oct_scheme *scheme = oct_scheme_of(&source->quantizer);
    bool halves =
        scheme->packed && source->rows % 2 && ranks > 1; /* one rank's lines are whole */
    oct_join_params p = {.from = source->parts[OCTET_PART_COL_DATA],
                         .to = dst->parts[OCTET_PART_COL_DATA],
                         .lines = source->cols,
                         .ranks = ranks,
                         .rows = source->rows};
    p.bytes = oct_line_bytes(source, OCTET_USE_COL);
    p.to_bytes = oct_line_bytes(dst, OCTET_USE_COL);
    p.wide = is_wide(p.from, p.bytes) && is_wide(p.to, p.bytes);
    if (scheme->as_rows) {
        return oct_cuda_copy(on, dst->parts[OCTET_PART_COL_DATA], p.from,
                             ranks * source->rows * source->cols, err);
    }
    uint32_t lines = source->rows ? (uint32_t)source->cols : 0;
    return launch(on,
                  (oct_cuda_launch){.kernel = halves ? "join_nibbles" : "join_lines",
                                    .grid = {lines, halves ? 1 : (uint32_t)ranks, 1},
                                    .threads = OCT_JOIN_THREADS,
                                    .params = &p,
                                    .params_bytes = sizeof p},
                  err);
}

/* What an assembly is made of: shards of source's layout, stacked in its parts. */
typedef struct assembly {
    const oct_matrix *dst, *source;
    int64_t ranks;
} assembly;

static octet_status join_scales(const oct_cuda_on *on, const assembly *a, octet_use use,
                                octet_error *err) {
    oct_scales_params p = {.from = a->source->parts[oct_scale_part(use)],
                           .to = a->dst->parts[oct_scale_part(use)],
                           .from_at = oct_scales_of(a->source, use),
                           .to_at = oct_scales_of(a->dst, use),
                           .ranks = a->ranks,
                           .bytes = (uint8_t)oct_scale_bytes(&a->source->quantizer)};
    p.way = use == OCTET_USE_ROW ? OCT_SCALE_JOIN_LINES : OCT_SCALE_JOIN_BLOCKS;
    return move_scales(on, &p, err);
}

/* Bytes that lie one below the other already; none where source lacks the part. */
static octet_status stack(const oct_cuda_on *on, const assembly *a, octet_part part,
                          int64_t bytes, octet_error *err) {
    const void *from = a->source->parts[part];
    return from ? oct_cuda_copy(on, a->dst->parts[part], from, bytes, err) : OCTET_OK;
}

static octet_status stack_amaxes(const oct_cuda_on *on, const assembly *a, octet_error *err) {
    const int64_t one = (int64_t)sizeof(float);
    bool each = a->source->quantizer.row_scaled;
    octet_status status = stack(on, a, OCTET_PART_SCALE, one, err);
    if (!status) {
        int64_t count = each ? a->ranks * a->source->rows : 1;
        status = stack(on, a, OCTET_PART_ROW_AMAX, count * one, err);
    }
    if (!status) {
        status = stack(on, a, OCTET_PART_COL_AMAX, (each ? a->source->cols : 1) * one, err);
    }
    return status;
}

octet_status oct_cuda_assemble(const oct_cuda_on *on, const oct_matrix *dst,
                               const oct_matrix *source, int64_t ranks, octet_error *err) {
    assembly a = {dst, source, ranks};
    int64_t line = oct_line_bytes(source, OCTET_USE_ROW);
    octet_status status = stack(on, &a, OCTET_PART_ROW_DATA, ranks * source->rows * line, err);
    if (!status && source->parts[OCTET_PART_COL_DATA]) {
        status = join_columns(on, dst, source, ranks, err);
    }
    if (!status && source->parts[OCTET_PART_ROW_SCALE]) {
        status = join_scales(on, &a, OCTET_USE_ROW, err);
    }
    if (!status && source->parts[OCTET_PART_COL_SCALE]) {
        status = join_scales(on, &a, OCTET_USE_COL, err);
    }
    return status ? status : stack_amaxes(on, &a, err);
}

/* ---- chunks of rows -------------------------------------------------------------------- */

/* Each shard seems to begin with the first line of the chunk and to have no more than its. */
static octet_status take_scales(const oct_cuda_on *on, const oct_matrix *dst,
                                const oct_matrix *source, const oct_chunk *chunk,
                                octet_error *err) {
    int64_t rows = dst->rows / chunk->ranks;
    oct_scales_params p = {.to = dst->parts[OCTET_PART_ROW_SCALE],
                           .from_at = oct_scales_of(source, OCTET_USE_ROW),
                           .to_at = oct_scales_of(dst, OCTET_USE_ROW),
                           .ranks = chunk->ranks,
                           .way = OCT_SCALE_JOIN_LINES,
                           .bytes = (uint8_t)oct_scale_bytes(&source->quantizer)};
    int64_t first = oct_scale_at(&p.from_at, chunk->index * rows, 0);
    p.from = (const char *)source->parts[OCTET_PART_ROW_SCALE] + first * p.bytes;
    p.from_at.lines = rows;
    return move_scales(on, &p, err);
}

octet_status oct_cuda_take(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, const oct_chunk *chunk, octet_error *err) {
    const float *amaxes = source->parts[OCTET_PART_ROW_AMAX];
    float *to = dst->parts[OCTET_PART_ROW_AMAX];
    int64_t rows = dst->rows / chunk->ranks;
    octet_status status = OCTET_OK;
    if (rows && source->parts[OCTET_PART_ROW_SCALE]) {
        status = take_scales(on, dst, source, chunk, err);
    }
    for (int64_t rank = 0; !status && amaxes && rank < chunk->ranks; rank++) {
        const float *from = amaxes + rank * source->rows + chunk->index * rows;
        status = oct_cuda_copy(on, to + rank * rows, from, rows * (int64_t)sizeof *to, err);
    }
    return status;
}

octet_status oct_cuda_join(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, const oct_chunk *chunk, octet_error *err) {
    bool plain = source->parts[OCTET_PART_VALUES] != NULL;
    octet_part part = plain ? OCTET_PART_VALUES : OCTET_PART_ROW_DATA;
    int64_t line = plain ? source->cols * octet_dtype_bits((octet_dtype)source->dtype) / 8
                         : oct_line_bytes(source, OCTET_USE_ROW);
    int64_t bytes = source->rows / chunk->ranks * line;
    const char *from = source->parts[part];
    char *to = dst->parts[part];
    octet_status status = OCTET_OK;
    for (int64_t rank = 0; !status && rank < chunk->ranks; rank++) {
        int64_t at = rank * chunk->chunks + chunk->index;
        status = oct_cuda_copy(on, to + at * bytes, from + rank * bytes, bytes, err);
    }
    return status;
}
