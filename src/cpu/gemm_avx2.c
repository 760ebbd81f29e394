/* gemm_avx2.c - products of floats and the way to dst, 8 at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx2.h"

/* A register tile is 6 rows of two vectors: 12 sums, two words of b and one of a. A step of an
 * a panel is half a cache line, so its last two words are not used. */
#define MR 6
#define MR_STRIDE 8
#define NR 16

/* One fused multiply-add per step. */
OCT_AVX2 static void tile_f32(const oct_tile_call *call) {
    const float *a = (const float *)call->a, *b = (const float *)call->b;
    __m256 sums[MR][2];
    OCT_UNROLL
    for (int i = 0; i < MR; i++) {
        sums[i][0] = call->fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(call->sums + i * NR);
        sums[i][1] =
            call->fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(call->sums + i * NR + 8);
    }
    for (int64_t p = 0; p < call->steps; p++) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
        OCT_UNROLL
        for (int i = 0; i < MR; i++) {
            __m256 value = _mm256_broadcast_ss(a + i);
            sums[i][0] = _mm256_fmadd_ps(value, b0, sums[i][0]);
            sums[i][1] = _mm256_fmadd_ps(value, b1, sums[i][1]);
        }
        a += MR_STRIDE;
        b += NR;
    }
    OCT_UNROLL
    for (int i = 0; i < MR; i++) {
        _mm256_storeu_ps(call->sums + i * NR, sums[i][0]);
        _mm256_storeu_ps(call->sums + i * NR + 8, sums[i][1]);
    }
}

/* Rows [from, from + rows) of a: at most two, for their sums must fit the registers. */
OCT_AVX2_INLINE void dot_rows(const oct_dot_call *call, int from, const int rows) {
    const char *a = (const char *)call->a + from * call->a_pitch, *b = call->b;
    __m256 sums[OCT_GEMM_ROWS][2];
    OCT_UNROLL
    for (int n = 0; n < OCT_GEMM_ROWS * rows; n++) {
        sums[n / rows][n % rows] = _mm256_setzero_ps();
    }
    for (int64_t p = 0; p < call->count * 4; p += 32) {
        OCT_UNROLL
        for (int j = 0; j < OCT_GEMM_ROWS; j++) {
            __m256 value = _mm256_loadu_ps((const float *)(b + j * call->b_pitch + p));
            OCT_UNROLL
            for (int i = 0; i < rows; i++) {
                __m256 with = _mm256_loadu_ps((const float *)(a + i * call->a_pitch + p));
                sums[j][i] = _mm256_fmadd_ps(value, with, sums[j][i]);
            }
        }
    }
    OCT_UNROLL
    for (int n = 0; n < OCT_GEMM_ROWS * rows; n++) {
        call->out[n / rows * call->rows + from + n % rows] = oct_sum8(sums[n / rows][n % rows]);
    }
}

OCT_AVX2 static void dot_f32(const oct_dot_call *call) {
    int row = 0;
    for (; row + 2 <= call->rows; row += 2) {
        dot_rows(call, row, 2);
    }
    if (row < call->rows) {
        dot_rows(call, row, 1);
    }
}

/* Whole vectors of columns; without factors per row or column. */
OCT_AVX2_INLINE void finish_dtype(const oct_finish *f, const oct_sums *s, octet_dtype dtype) {
    for (int64_t i = 0; i < s->rows; i++) {
        const float *sums = s->at + i * s->pitch;
        void *dst = oct_plain_at(f->dst, (s->row + i) * f->stride + s->col, dtype);
        for (int64_t j = 0; j + 8 <= s->cols; j += 8) {
            __m256 value =
                _mm256_mul_ps(_mm256_loadu_ps(sums + j), _mm256_set1_ps(f->scale[0]));
            value = _mm256_mul_ps(value, _mm256_set1_ps(f->scale[1]));
            if (s->bias) {
                value = _mm256_add_ps(value, _mm256_loadu_ps(s->bias + j));
            }
            if (f->accumulate) {
                value = _mm256_add_ps(value, oct_load8(dst, j, dtype));
            }
            oct_store8(dst, j, value, dtype);
        }
    }
}

OCT_AVX2 static void finish(const oct_finish *f, const oct_sums *s) {
    oct_sums rest = *s;
    if (!f->row_factors && !f->col_factors) {
        int64_t whole = s->cols & ~(int64_t)7;
        if (f->dtype == OCTET_F32) {
            finish_dtype(f, s, OCTET_F32);
        } else if (f->dtype == OCTET_BF16) {
            finish_dtype(f, s, OCTET_BF16);
        } else {
            finish_dtype(f, s, OCTET_F16);
        }
        rest.at += whole;
        rest.col += whole;
        rest.cols -= whole;
        rest.bias = s->bias ? s->bias + whole : NULL;
    }
    oct_finish_reference(f, &rest);
}

void oct_gemm__avx2(oct_table *table) {
    oct_gemm_kernels *k = &table->gemm;
    k->mr = MR;
    k->mr_stride = MR_STRIDE;
    k->nr = NR;
    k->tile_f32 = tile_f32;
    k->dot_f32 = dot_f32;
    k->finish = finish;
}

#endif
