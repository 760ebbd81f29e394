/* gemm_avx512bf16.c - products of bf16 pairs: two per lane and instruction. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"

#define MR OCT_AVX512_MR
#define MR_STRIDE OCT_AVX512_MR_STRIDE
#define NR OCT_AVX512_NR

/* Both products are exact, the additions round to nearest; results and operands below 2^-126
 * count as zero. */
OCT_BF16 static void tile_bf16(const oct_tile_call *call) {
    const uint32_t *a = call->a, *b = call->b;
    __m512 sums[MR][2];
    OCT_UNROLL
    for (int i = 0; i < MR; i++) {
        sums[i][0] = call->fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(call->sums + i * NR);
        sums[i][1] =
            call->fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(call->sums + i * NR + 16);
    }
    for (int64_t p = 0; p < call->steps; p++) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
        __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + 16);
        OCT_UNROLL
        for (int i = 0; i < MR; i++) {
            __m512bh value = (__m512bh)_mm512_set1_epi32((int)a[i]);
            sums[i][0] = _mm512_dpbf16_ps(sums[i][0], value, b0);
            sums[i][1] = _mm512_dpbf16_ps(sums[i][1], value, b1);
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

OCT_BF16_INLINE void dot_rows(const oct_dot_call *call, const int rows) {
    const char *a = call->a, *b = call->b;
    __m512 sums[OCT_GEMM_ROWS][OCT_GEMM_ROWS];
    OCT_UNROLL
    for (int n = 0; n < OCT_GEMM_ROWS * rows; n++) {
        sums[n / rows][n % rows] = _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < call->count * 2; p += 64) {
        OCT_UNROLL
        for (int j = 0; j < OCT_GEMM_ROWS; j++) {
            __m512bh value = (__m512bh)_mm512_loadu_si512(b + j * call->b_pitch + p);
            OCT_UNROLL
            for (int i = 0; i < rows; i++) {
                __m512bh with = (__m512bh)_mm512_loadu_si512(a + i * call->a_pitch + p);
                sums[j][i] = _mm512_dpbf16_ps(sums[j][i], value, with);
            }
        }
    }
    OCT_UNROLL
    for (int n = 0; n < OCT_GEMM_ROWS * rows; n++) {
        call->out[n] = _mm512_reduce_add_ps(sums[n / rows][n % rows]);
    }
}

OCT_BF16 static void dot_bf16(const oct_dot_call *call) {
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

void oct_gemm__avx512bf16(oct_table *table) {
    oct_gemm_kernels *k = &table->gemm;
    k->tile_bf16 = tile_bf16;
    k->dot_bf16 = dot_bf16;
}

#endif
