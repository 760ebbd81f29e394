/* gemm_avx512bf16.c - products of bf16 pairs: two per lane and instruction. */
#include "cpu/gemm_avx512.h"

#if OCT_X86

#include <immintrin.h>

#include "cpu/pack_avx512.h"
#include "cpu/pack_avx512bf16.h"

#define ISA __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define INLINE static inline __attribute__((always_inline)) ISA

#define MR OCT_AVX512_MR
#define NR OCT_AVX512_NR

/* Both products are exact, the additions round to nearest; results and operands below 2^-126
 * count as zero. */
ISA static void tile_bf16(const oct_tile_call *call) {
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
        a += OCT_AVX512_MR_STRIDE;
        b += NR;
    }
    OCT_UNROLL
    for (int i = 0; i < MR; i++) {
        _mm512_storeu_ps(call->sums + i * NR, sums[i][0]);
        _mm512_storeu_ps(call->sums + i * NR + 16, sums[i][1]);
    }
}

INLINE void dot_rows(const oct_dot_call *call, const int rows) {
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

ISA static void dot_bf16(const oct_dot_call *call) {
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

const oct_gemm_kernels oct_gemm_avx512bf16 = {
    .packer = {.f32 = oct_decode_avx512,
               .bf16 = oct_decode_avx512bf16,
               .turn = oct_turn_avx512,
               .spread = oct_spread_avx512,
               .zip = oct_zip_avx512bf16},
    .mr = MR,
    .mr_stride = OCT_AVX512_MR_STRIDE,
    .nr = NR,
    .steps = OCT_AVX512_STEPS,
    .tile_f32 = oct_tile_f32_avx512,
    .tile_bf16 = tile_bf16,
    .dot_f32 = oct_dot_f32_avx512,
    .dot_bf16 = dot_bf16,
    .stream_f32 = oct_stream_avx512,
    .stream_bf16 = oct_stream_avx512bf16,
    .stream_rows = OCT_GEMM_THIN,
    .stream_least = OCT_STREAM_LEAST,
    .finish = oct_finish_avx512,
};

#endif
