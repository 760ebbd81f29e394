/* gemm_avx512.c - products of floats and the way to dst, 16 at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"

#define MR OCT_AVX512_MR
#define MR_STRIDE OCT_AVX512_MR_STRIDE
#define NR OCT_AVX512_NR

/* One fused multiply-add per step. */
OCT_AVX512 static void tile_f32(const oct_tile_call *call) {
    const float *a = (const float *)call->a, *b = (const float *)call->b;
    __m512 sums[MR][2];
    OCT_UNROLL
    for (int i = 0; i < MR; i++) {
        sums[i][0] = call->fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(call->sums + i * NR);
        sums[i][1] =
            call->fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(call->sums + i * NR + 16);
    }
    for (int64_t p = 0; p < call->steps; p++) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        OCT_UNROLL
        for (int i = 0; i < MR; i++) {
            __m512 value = _mm512_set1_ps(a[i]);
            sums[i][0] = _mm512_fmadd_ps(value, b0, sums[i][0]);
            sums[i][1] = _mm512_fmadd_ps(value, b1, sums[i][1]);
        }
        a += MR_STRIDE;
        b += NR;
    }
    OCT_UNROLL
    for (int i = 0; i < MR; i++) {
        _mm512_storeu_ps(call->sums + i * NR, sums[i][0]);
        _mm512_storeu_ps(call->sums + i * NR + 16, sums[i][1]);
    }
}

OCT_AVX512_INLINE void dot_rows(const oct_dot_call *call, const int rows) {
    const char *a = call->a, *b = call->b;
    __m512 sums[OCT_GEMM_ROWS][OCT_GEMM_ROWS];
    OCT_UNROLL
    for (int n = 0; n < OCT_GEMM_ROWS * rows; n++) {
        sums[n / rows][n % rows] = _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < call->count * 4; p += 64) {
        OCT_UNROLL
        for (int j = 0; j < OCT_GEMM_ROWS; j++) {
            __m512 value = _mm512_loadu_ps(b + j * call->b_pitch + p);
            OCT_UNROLL
            for (int i = 0; i < rows; i++) {
                __m512 with = _mm512_loadu_ps(a + i * call->a_pitch + p);
                sums[j][i] = _mm512_fmadd_ps(value, with, sums[j][i]);
            }
        }
    }
    OCT_UNROLL
    for (int n = 0; n < OCT_GEMM_ROWS * rows; n++) {
        call->out[n] = _mm512_reduce_add_ps(sums[n / rows][n % rows]);
    }
}

OCT_AVX512 static void dot_f32(const oct_dot_call *call) {
    switch (call->rows) {
    case 1:
        dot_rows(call, 1);
        break;
    case 2:
        dot_rows(call, 2);
        break;
    case 3:
        dot_rows(call, 3);
        break;
    default:
        dot_rows(call, 4);
        break;
    }
}

/* Eight sums times their row's factor, times their columns'. */
OCT_AVX512_INLINE __m256 factor_eight(__m256 sums, double row_factor, const float *factors,
                                      __mmask8 mask) {
    __m512d wide = _mm512_mul_pd(_mm512_cvtps_pd(sums), _mm512_set1_pd(row_factor));
    if (factors) {
        __m256 columns = _mm256_maskz_loadu_ps(mask, factors);
        wide = _mm512_mul_pd(wide, _mm512_cvtps_pd(columns));
    }
    return _mm512_cvtpd_ps(wide);
}

/* The sum times its factors, as oct_finish says. */
OCT_AVX512_INLINE __m512 factored(const oct_finish *f, __m512 sum, __mmask16 mask, int64_t row,
                                  int64_t col) {
    if (!f->row_factors && !f->col_factors) {
        return _mm512_mul_ps(_mm512_mul_ps(sum, _mm512_set1_ps(f->scale[0])),
                             _mm512_set1_ps(f->scale[1]));
    }
    double row_factor = f->factor * (f->row_factors ? (double)f->row_factors[row] : 1.0);
    const float *low = f->col_factors ? f->col_factors + col : NULL;
    __m256 first = factor_eight(_mm512_castps512_ps256(sum), row_factor, low, (__mmask8)mask);
    __m256 second = factor_eight(_mm512_extractf32x8_ps(sum, 1), row_factor,
                                 low ? low + 8 : NULL, (__mmask8)(mask >> 8));
    return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
}

OCT_AVX512_INLINE void finish_dtype(const oct_finish *f, const oct_sums *s, octet_dtype dtype) {
    for (int64_t i = 0; i < s->rows; i++) {
        const float *sums = s->at + i * s->pitch;
        void *dst = oct_plain_at(f->dst, (s->row + i) * f->stride + s->col, dtype);
        for (int64_t j = 0; j < s->cols; j += 16) {
            __mmask16 mask = oct_some(s->cols - j);
            __m512 value = _mm512_maskz_loadu_ps(mask, sums + j);
            value = factored(f, value, mask, s->row + i, s->col + j);
            if (s->bias) {
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, s->bias + j));
            }
            if (f->accumulate) {
                value = _mm512_add_ps(value, oct_load16(dst, j, mask, dtype));
            }
            oct_store16(dst, j, value, mask, dtype);
        }
    }
}

OCT_AVX512 static void finish(const oct_finish *f, const oct_sums *s) {
    if (f->dtype == OCTET_F32) {
        finish_dtype(f, s, OCTET_F32);
    } else if (f->dtype == OCTET_BF16) {
        finish_dtype(f, s, OCTET_BF16);
    } else {
        finish_dtype(f, s, OCTET_F16);
    }
}

void oct_gemm__avx512(oct_table *table) {
    oct_gemm_kernels *k = &table->gemm;
    k->mr = MR;
    k->mr_stride = MR_STRIDE;
    k->nr = NR;
    k->steps = 512;
    k->tile_f32 = tile_f32;
    k->dot_f32 = dot_f32;
    k->finish = finish;
}

#endif
