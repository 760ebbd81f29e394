/* gemm_avx512.c - products of floats and the way to dst, 16 at a time. */
#include "cpu/gemm_avx512.h"

#if OCT_X86

#include <immintrin.h>

#include "cpu/pack_avx512.h"
#include "cpu/plain.h"

#define ISA __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#define INLINE static inline __attribute__((always_inline)) ISA

#define MR OCT_AVX512_MR
#define NR OCT_AVX512_NR

/* One fused multiply-add per step. */
ISA void oct_tile_f32_avx512(const oct_tile_call *call) {
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

ISA void oct_dot_f32_avx512(const oct_dot_call *call) {
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

INLINE __m512 load_plain(const void *at, __mmask16 mask, octet_dtype dtype) {
    if (dtype == OCTET_F32) {
        return _mm512_maskz_loadu_ps(mask, at);
    }
    __m256i words = _mm256_maskz_loadu_epi16(mask, at);
    return dtype == OCTET_F16
               ? _mm512_cvtph_ps(words)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

/* As oct_bf16_encode: nearest even, NaN made quiet, subnormals kept. */
INLINE __m256i round_bf16(__m512 value) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

INLINE void store_plain(void *at, __mmask16 mask, octet_dtype dtype, __m512 value) {
    if (dtype == OCTET_F32) {
        _mm512_mask_storeu_ps(at, mask, value);
    } else if (dtype == OCTET_BF16) {
        _mm256_mask_storeu_epi16(at, mask, round_bf16(value));
    } else {
        _mm256_mask_storeu_epi16(at, mask, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    }
}

/* Eight sums times their row's factor, times their columns'. */
INLINE __m256 factor_eight(__m256 sums, double row_factor, const float *factors,
                           __mmask8 mask) {
    __m512d wide = _mm512_mul_pd(_mm512_cvtps_pd(sums), _mm512_set1_pd(row_factor));
    if (factors) {
        __m256 columns = _mm256_maskz_loadu_ps(mask, factors);
        wide = _mm512_mul_pd(wide, _mm512_cvtps_pd(columns));
    }
    return _mm512_cvtpd_ps(wide);
}

/* The sum times its factors, as oct_finish says. */
INLINE __m512 factored(const oct_finish *f, __m512 sum, __mmask16 mask, int64_t row,
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

INLINE void finish_dtype(const oct_finish *f, const oct_sums *s, octet_dtype dtype) {
    for (int64_t i = 0; i < s->rows; i++) {
        const float *sums = s->at + i * s->pitch;
        char *dst = oct_plain_at(f->dst, (s->row + i) * f->stride + s->col, dtype);
        for (int64_t j = 0; j < s->cols; j += 16) {
            __mmask16 mask = (__mmask16)(s->cols - j < 16 ? (1u << (s->cols - j)) - 1 : 0xffff);
            void *at = dst + j * oct_plain_bytes(dtype);
            __m512 value = _mm512_maskz_loadu_ps(mask, sums + j);
            value = factored(f, value, mask, s->row + i, s->col + j);
            if (s->bias) {
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, s->bias + j));
            }
            if (f->accumulate) {
                value = _mm512_add_ps(value, load_plain(at, mask, dtype));
            }
            store_plain(at, mask, dtype, value);
        }
    }
}

ISA void oct_finish_avx512(const oct_finish *f, const oct_sums *s) {
    if (f->dtype == OCTET_F32) {
        finish_dtype(f, s, OCTET_F32);
    } else if (f->dtype == OCTET_BF16) {
        finish_dtype(f, s, OCTET_BF16);
    } else {
        finish_dtype(f, s, OCTET_F16);
    }
}

const oct_gemm_kernels oct_gemm_avx512 = {
    .packer = {.f32 = oct_decode_avx512, .turn = oct_turn_avx512, .spread = oct_spread_avx512},
    .mr = MR,
    .mr_stride = OCT_AVX512_MR_STRIDE,
    .nr = NR,
    .steps = OCT_AVX512_STEPS,
    .tile_f32 = oct_tile_f32_avx512,
    .dot_f32 = oct_dot_f32_avx512,
    .stream_f32 = oct_stream_avx512,
    .stream_rows = OCT_GEMM_THIN,
    .stream_least = OCT_STREAM_LEAST,
    .finish = oct_finish_avx512,
};

#endif
