/* decode.h - the numbers that a tensor's bytes stand for, from the documented layout alone. */
#ifndef OCTET_RUN_DECODE_H
#define OCTET_RUN_DECODE_H

#include "values.h"

/* A tensor in memory: its buffers by octet_part. */
typedef struct run_view {
    octet_quantizer quantizer;
    octet_dtype dtype;
    int64_t rows, cols;
    int64_t stride;
    const void *parts[OCTET_PARTS];
} run_view;

static inline int64_t run_ceil(int64_t n, int64_t by) {
    return (n + by - 1) / by;
}

static inline int64_t run_round(int64_t n, int64_t to) {
    return run_ceil(n, to) * to;
}

/* The place of the scale of line i, block j, in a compact buffer or in tensor-core order.
 * `length` is the lines' length in elements and `block` the elements of a scale. */
static inline int64_t run_scale_at(const octet_quantizer *q, int64_t i, int64_t j,
                                   int64_t length, int64_t block) {
    if (q->swizzled) {
        int64_t tiles = run_ceil(run_ceil(length, block), 4);
        return (i / 128 * tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
    }
    return i * run_round(run_ceil(length, block), 4) + j;
}

static inline double run_f32(const void *at, int64_t index) {
    return run_load(at, OCTET_F32, index);
}

/* fp8-block: squares have a scale per tile; rows one per 128, stored block by block. */
static inline double run_block_scale(const run_view *v, bool col, int64_t line, int64_t along) {
    const void *scale = v->parts[col ? OCTET_PART_COL_SCALE : OCTET_PART_ROW_SCALE];
    int64_t lines = col ? v->cols : v->rows, length = col ? v->rows : v->cols;
    if (v->quantizer.block_rows > 1) {
        return run_f32(scale, line / 128 * run_round(run_ceil(length, 128), 4) + along / 128);
    }
    return run_f32(scale, along / 128 * run_round(lines, 4) + line);
}

static inline double run_mx_scale(const run_view *v, bool col, int64_t r, int64_t c) {
    const uint8_t *scale = v->parts[col ? OCTET_PART_COL_SCALE : OCTET_PART_ROW_SCALE];
    int64_t at = run_scale_at(&v->quantizer, r, c / 32, v->cols, 32);
    if (col) {
        at = v->quantizer.swizzled ? run_scale_at(&v->quantizer, c, r / 32, v->rows, 32)
                                   : r / 32 * run_round(v->cols, 128) + c;
    }
    return (double)octet_decode(OCTET_E8M0, scale[at]);
}

static inline double run_fp4(const run_view *v, bool col, int64_t line, int64_t along) {
    const octet_quantizer *q = &v->quantizer;
    int64_t length = col ? v->rows : v->cols;
    int64_t pitch = col && q->hadamard ? run_round(length, 16) / 2 : run_ceil(length, 2);
    const uint8_t *data = v->parts[col ? OCTET_PART_COL_DATA : OCTET_PART_ROW_DATA];
    const uint8_t *scale = v->parts[col ? OCTET_PART_COL_SCALE : OCTET_PART_ROW_SCALE];
    const void *amax = v->parts[col ? OCTET_PART_COL_AMAX : OCTET_PART_ROW_AMAX];
    uint8_t byte = data[line * pitch + along / 2];
    double code = (double)octet_decode(OCTET_E2M1, along % 2 ? byte >> 4 : byte & 15);
    int64_t size = q->block_cols;
    uint8_t stored = scale[run_scale_at(q, line, along / size, length, size)];
    if (q->scheme == OCTET_MXFP4) {
        return code * (double)octet_decode(OCTET_E8M0, stored);
    }
    double block = (double)octet_decode(OCTET_E4M3, stored);
    double most = q->four_over_six && q->max256 ? 256 : 448;
    return code * (block * run_f32(amax, q->row_scaled ? line : 0) / (6 * most));
}

/* Element (r, c) by the bytes of one direction; with a Hadamard transform columnwise, of the
 * transformed tensor. */
static inline double run_decode_at(const run_view *v, octet_use use, int64_t r, int64_t c) {
    const octet_quantizer *q = &v->quantizer;
    bool col = use == OCTET_USE_COL;
    if (q->scheme == OCTET_SCHEME_NONE) {
        return run_load(v->parts[OCTET_PART_VALUES], v->dtype, r * v->stride + c);
    }
    if (q->format == OCTET_E2M1) {
        return col ? run_fp4(v, true, c, r) : run_fp4(v, false, r, c);
    }
    bool turned = col && q->scheme != OCTET_MXFP8;
    const uint8_t *data = v->parts[col ? OCTET_PART_COL_DATA : OCTET_PART_ROW_DATA];
    uint8_t code = data[turned ? c * v->rows + r : r * v->cols + c];
    double value = (double)octet_decode((octet_dtype)q->format, code);
    switch (q->scheme) {
    case OCTET_MXFP8:
        return value * run_mx_scale(v, col, r, c);
    case OCTET_FP8_BLOCK:
        return value * (col ? run_block_scale(v, true, c, r) : run_block_scale(v, false, r, c));
    default:
        return value * run_f32(v->parts[OCTET_PART_SCALE], 0);
    }
}

/* All of it; the transform's last group of rows is whole. */
static inline run_values run_decode(const run_view *v, octet_use use) {
    bool transformed = use == OCTET_USE_COL && v->quantizer.hadamard;
    run_values made = run_values_make(transformed ? run_round(v->rows, 16) : v->rows, v->cols);
    for (int64_t r = 0; r < made.rows; r++) {
        for (int64_t c = 0; c < made.cols; c++) {
            *run_cell(&made, r, c) = run_decode_at(v, use, r, c);
        }
    }
    return made;
}

/* The Hadamard transform of each 16 rows in double precision, missing rows 0. */
static inline run_values run_transform(const run_values *x, uint8_t hadamard) {
    uint32_t signs = hadamard == OCTET_HADAMARD_SIGNED ? 0xD7E8u : 0;
    run_values made = run_values_make(run_round(x->rows, 16), x->cols);
    for (int64_t i = 0; i < made.rows * 16; i++) {
        int64_t to = i / 16, from = to / 16 * 16 + i % 16;
        uint32_t both = (uint32_t)(i % 16 & to % 16), odd = 0;
        for (; both; both &= both - 1) {
            odd ^= 1;
        }
        double factor = (odd ^ (signs >> (i % 16) & 1)) ? -0.25 : 0.25;
        for (int64_t c = 0; c < x->cols && from < x->rows; c++) {
            *run_cell(&made, to, c) += factor * *run_cell(x, from, c);
        }
    }
    return made;
}

#endif
