/* gemm_reference.c - the micro-kernels in plain C: what the others are compared with. */
#include "cpu/isa.h"

#define MR 4
#define NR 8

/* Multiply and add in fp32, each rounded, step by step. */
static void tile_f32(const oct_tile_call *call) {
    const float *a = (const float *)call->a, *b = (const float *)call->b;
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NR; j++) {
            float sum = call->fresh ? 0.0f : call->sums[i * NR + j];
            for (int64_t p = 0; p < call->steps; p++) {
                sum += a[p * MR + i] * b[p * NR + j];
            }
            call->sums[i * NR + j] = sum;
        }
    }
}

static const float *row_at(const void *rows, int64_t pitch, int64_t index) {
    return (const float *)((const char *)rows + pitch * index);
}

static void dot_f32(const oct_dot_call *call) {
    for (int j = 0; j < OCT_GEMM_ROWS; j++) {
        for (int i = 0; i < call->rows; i++) {
            const float *a = row_at(call->a, call->a_pitch, i);
            const float *b = row_at(call->b, call->b_pitch, j);
            float sum = 0.0f;
            for (int64_t p = 0; p < call->count; p++) {
                sum += a[p] * b[p];
            }
            call->out[j * call->rows + i] = sum;
        }
    }
}

static float factored(const oct_finish *f, float sum, int64_t row, int64_t col) {
    if (!f->row_factors && !f->col_factors) {
        return sum * f->scale[0] * f->scale[1];
    }
    double row_factor = f->row_factors ? (double)f->row_factors[row] : 1.0;
    double col_factor = f->col_factors ? (double)f->col_factors[col] : 1.0;
    return (float)((double)sum * (f->factor * row_factor) * col_factor);
}

void oct_finish_reference(const oct_finish *f, const oct_sums *s) {
    for (int64_t i = 0; i < s->rows; i++) {
        int64_t row = s->row + i;
        void *dst = oct_plain_at(f->dst, row * f->stride + s->col, f->dtype);
        for (int64_t j = 0; j < s->cols; j++) {
            float value = factored(f, s->at[i * s->pitch + j], row, s->col + j);
            value = s->bias ? value + s->bias[j] : value;
            value = f->accumulate ? value + oct_plain_load(dst, j, f->dtype) : value;
            oct_plain_store(dst, j, value, f->dtype);
        }
    }
}

void oct_gemm__reference(oct_table *table) {
    oct_gemm_kernels *k = &table->gemm;
    k->mr = MR;
    k->mr_stride = MR;
    k->nr = NR;
    k->steps = 256;
    k->tile_f32 = tile_f32;
    k->dot_f32 = dot_f32;
    k->finish = oct_finish_reference;
}
