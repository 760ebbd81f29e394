/* assemble.c - the shards of a quantized tensor, stacked by a gather, as one tensor.
 *
 * Ranks hold consecutive rows, each a whole number of blocks (or there is one rank), so every
 * byte and scale of the whole is one of a shard's: only its place changes. */
#include "cpu/scales.h"

#include <string.h>

/* (m, width) per shard, one below the other. */
static void stack_rows(uint8_t *out, const uint8_t *x, int64_t bytes) {
    memcpy(out, x, (size_t)bytes);
}

/* (lines, length) per shard: every line is the shards' lines one after the other. */
static void join_lines(uint8_t *out, const uint8_t *x, int64_t lines, int64_t length,
                       int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; rank++) {
        for (int64_t i = 0; i < lines; i++) {
            memcpy(out + (i * ranks + rank) * length, x + (rank * lines + i) * length,
                   (size_t)length);
        }
    }
}

/* Shards with an odd number of rows end their lines in half a byte. */
static void join_nibbles(const oct_matrix *dst, const oct_matrix *source, int64_t ranks) {
    const uint8_t *x = source->parts[OCTET_PART_COL_DATA];
    uint8_t *out = dst->parts[OCTET_PART_COL_DATA];
    int64_t from = oct_line_bytes(source, OCTET_USE_COL);
    int64_t to = oct_line_bytes(dst, OCTET_USE_COL);
    memset(out, 0, (size_t)(to * dst->cols));
    for (int64_t i = 0; i < dst->cols; i++) {
        for (int64_t r = 0; r < ranks * source->rows; r++) {
            int64_t row = r % source->rows, rank = r / source->rows;
            uint8_t byte = x[(rank * source->cols + i) * from + row / 2];
            int code = byte >> (row % 2 * 4) & 0xf;
            out[i * to + r / 2] = (uint8_t)(out[i * to + r / 2] | code << (r % 2 * 4));
        }
    }
}

static void join_columns(const oct_matrix *dst, const oct_matrix *source, int64_t ranks) {
    const octet_quantizer *q = &source->quantizer;
    const uint8_t *x = source->parts[OCTET_PART_COL_DATA];
    uint8_t *out = dst->parts[OCTET_PART_COL_DATA];
    bool halves = oct_scheme_of(q)->packed && source->rows % 2 != 0;
    if (oct_scheme_of(q)->as_rows) {
        stack_rows(out, x, ranks * source->rows * source->cols);
    } else if (!halves || ranks == 1) { /* one rank's lines are the whole's */
        join_lines(out, x, source->cols, oct_line_bytes(source, OCTET_USE_COL), ranks);
    } else {
        join_nibbles(dst, source, ranks);
    }
}

/* A shard's lines (rowwise) or blocks (columnwise) follow those of the shards before it. */
static void join_scales(const oct_matrix *dst, const oct_matrix *source, octet_use use,
                        int64_t ranks) {
    oct_scales from = oct_scales_of(source, use), to = oct_scales_of(dst, use);
    size_t size = (size_t)oct_scale_bytes(&source->quantizer);
    const uint8_t *x = source->parts[oct_scale_part(use)];
    uint8_t *out = dst->parts[oct_scale_part(use)];
    bool row = use == OCTET_USE_ROW;
    memset(out, 0, (size_t)to.count * size);
    for (int64_t rank = 0; rank < ranks; rank++) {
        int64_t line = row ? rank * from.lines : 0, block = row ? 0 : rank * from.blocks;
        for (int64_t k = 0; k < from.lines * from.blocks; k++) {
            int64_t i = k / from.blocks, j = k % from.blocks;
            int64_t at = rank * from.count + oct_scale_at(&from, i, j);
            if (line + i < to.lines && block + j < to.blocks) {
                memcpy(out + (size_t)oct_scale_at(&to, line + i, block + j) * size,
                       x + (size_t)at * size, size);
            }
        }
    }
}

void oct_cpu_assemble(const oct_matrix *dst, const oct_matrix *source, int64_t ranks) {
    void *const *from = source->parts;
    void *const *to = dst->parts;
    const octet_quantizer *q = &source->quantizer;
    int64_t line = oct_line_bytes(source, OCTET_USE_ROW);
    if (from[OCTET_PART_ROW_DATA]) {
        stack_rows(to[OCTET_PART_ROW_DATA], from[OCTET_PART_ROW_DATA],
                   ranks * source->rows * line);
    }
    if (from[OCTET_PART_COL_DATA]) {
        join_columns(dst, source, ranks);
    }
    if (from[OCTET_PART_ROW_SCALE]) {
        join_scales(dst, source, OCTET_USE_ROW, ranks);
    }
    if (from[OCTET_PART_COL_SCALE]) {
        join_scales(dst, source, OCTET_USE_COL, ranks);
    }
    if (from[OCTET_PART_SCALE]) {
        memcpy(to[OCTET_PART_SCALE], from[OCTET_PART_SCALE], sizeof(float));
    }
    if (from[OCTET_PART_ROW_AMAX]) {
        int64_t count = q->row_scaled ? ranks * source->rows : 1;
        stack_rows(to[OCTET_PART_ROW_AMAX], from[OCTET_PART_ROW_AMAX],
                   count * (int64_t)sizeof(float));
    }
    if (from[OCTET_PART_COL_AMAX]) {
        int64_t count = q->row_scaled ? source->cols : 1;
        stack_rows(to[OCTET_PART_COL_AMAX], from[OCTET_PART_COL_AMAX],
                   count * (int64_t)sizeof(float));
    }
}
