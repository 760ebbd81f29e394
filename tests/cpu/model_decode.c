/* model_decode.c - what quantized bytes stand for, by its definition. */
#include "model.h"

#include <math.h>
#include <stdlib.h>

static float factor_at(const oct_matrix *m, octet_use use, int64_t line, int64_t k) {
    const octet_quantizer *q = &m->quantizer;
    bool row = use == OCTET_USE_ROW;
    if (q->scheme == OCTET_FP8_TENSOR || q->scheme == OCTET_FP8_DELAYED) {
        return *(const float *)m->parts[OCTET_PART_SCALE];
    }
    const void *scales = m->parts[row ? OCTET_PART_ROW_SCALE : OCTET_PART_COL_SCALE];
    size_t at = model_scale_index(m, use, line, k / q->block_cols);
    if (q->scheme == OCTET_FP8_BLOCK) {
        return ((const float *)scales)[at];
    }
    uint8_t code = ((const uint8_t *)scales)[at];
    if (q->scheme == OCTET_MXFP8 || q->scheme == OCTET_MXFP4) {
        return ldexpf(1, (int)code - 127);
    }
    const float *amax = m->parts[row ? OCTET_PART_ROW_AMAX : OCTET_PART_COL_AMAX];
    float G = amax[q->row_scaled ? line : 0];
    float scaled = octet_decode(OCTET_E4M3, code) * G;
    return scaled * (q->max256 ? 1.0f / 1536.0f : 1.0f / 2688.0f);
}

static float value_at(const oct_matrix *m, octet_use use, int64_t line, int64_t k) {
    octet_dtype format = (octet_dtype)m->quantizer.format;
    return octet_decode(format, model_code(m, use, line, k)) * factor_at(m, use, line, k);
}

static float undone(const oct_matrix *m, int64_t col, int64_t row) {
    float y[16], x[16];
    for (int i = 0; i < 16; i++) {
        y[i] = value_at(m, OCTET_USE_COL, col, row / 16 * 16 + i);
    }
    model_hadamard_inverse(x, y, m->quantizer.hadamard == OCTET_HADAMARD_SIGNED);
    return x[row % 16];
}

float *model_dequantize(const cpu_tensor *q, octet_use use) {
    const oct_matrix *m = &q->m;
    float *out = calloc((size_t)(m->rows * m->cols) + 1, sizeof *out);
    for (int64_t r = 0; r < m->rows; r++) {
        for (int64_t c = 0; c < m->cols; c++) {
            bool turned = use == OCTET_USE_COL;
            out[r * m->cols + c] = turned && m->quantizer.hadamard ? undone(m, c, r)
                                   : turned                        ? value_at(m, use, c, r)
                                                                   : value_at(m, use, r, c);
        }
    }
    return out;
}
