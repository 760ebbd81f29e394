/* gemm_avx2.c - products of floats and the way to dst, 8 at a time. */
#include "cpu/gemm.h"

#if OCT_X86

#include <immintrin.h>

#include "cpu/pack_avx2.h"
#include "cpu/plain.h"

#define ISA __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) ISA

/* A register tile is 6 rows of two vectors: 12 sums, two words of b and one of a. A step of an
 * a panel is half a cache line, so its last two words are not used. */
#define MR 6
#define MR_STRIDE 8
#define NR 16

/* One fused multiply-add per step. */
ISA static void tile_f32(const oct_tile_call *call) {
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

INLINE float sum_of(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Rows [from, from + rows) of a: at most two, for their sums must fit the registers. */
INLINE void dot_rows(const oct_dot_call *call, int from, const int rows) {
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
        call->out[n / rows * call->rows + from + n % rows] = sum_of(sums[n / rows][n % rows]);
    }
}

ISA static void dot_f32(const oct_dot_call *call) {
    int row = 0;
    for (; row + 2 <= call->rows; row += 2) {
        dot_rows(call, row, 2);
    }
    if (row < call->rows) {
        dot_rows(call, row, 1);
    }
}

INLINE __m256 load_plain(const void *at, octet_dtype dtype) {
    if (dtype == OCTET_F32) {
        return _mm256_loadu_ps(at);
    }
    __m128i words = _mm_loadu_si128(at);
    return dtype == OCTET_F16
               ? _mm256_cvtph_ps(words)
               : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

/* As oct_bf16_encode: nearest even, NaN made quiet, subnormals kept. */
INLINE __m128i round_bf16(__m256 value) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    up = _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(nan));
    up = _mm256_srli_epi32(up, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}

INLINE void store_plain(void *at, octet_dtype dtype, __m256 value) {
    if (dtype == OCTET_F32) {
        _mm256_storeu_ps(at, value);
    } else if (dtype == OCTET_BF16) {
        _mm_storeu_si128(at, round_bf16(value));
    } else {
        _mm_storeu_si128(at, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    }
}

/* Whole vectors of columns; without factors per row or column. */
INLINE void finish_dtype(const oct_finish *f, const oct_sums *s, octet_dtype dtype) {
    for (int64_t i = 0; i < s->rows; i++) {
        const float *sums = s->at + i * s->pitch;
        char *dst = oct_plain_at(f->dst, (s->row + i) * f->stride + s->col, dtype);
        for (int64_t j = 0; j + 8 <= s->cols; j += 8) {
            void *at = dst + j * oct_plain_bytes(dtype);
            __m256 value =
                _mm256_mul_ps(_mm256_loadu_ps(sums + j), _mm256_set1_ps(f->scale[0]));
            value = _mm256_mul_ps(value, _mm256_set1_ps(f->scale[1]));
            if (s->bias) {
                value = _mm256_add_ps(value, _mm256_loadu_ps(s->bias + j));
            }
            if (f->accumulate) {
                value = _mm256_add_ps(value, load_plain(at, dtype));
            }
            store_plain(at, dtype, value);
        }
    }
}

ISA static void finish(const oct_finish *f, const oct_sums *s) {
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

const oct_gemm_kernels oct_gemm_avx2 = {
    .packer = {.f32 = oct_decode_avx2, .turn = oct_turn_avx2, .spread = oct_spread_avx2},
    .mr = MR,
    .mr_stride = MR_STRIDE,
    .nr = NR,
    .steps = 256,
    .tile_f32 = tile_f32,
    .dot_f32 = dot_f32,
    .stream_f32 = oct_stream_avx2,
    .stream_rows = 8,
    .stream_least = OCT_STREAM_LEAST,
    .finish = finish,
};

#endif
