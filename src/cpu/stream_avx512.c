/* stream_avx512.c - codes become floats in registers, 32 at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"
#include "cpu/stream_loop.h"

#define GROUP 32

/* Thirty-two codes as floats. FP8: in order, E4M3 as halves with the same exponent field, 2^-8
 * times too small; arrange makes up for that. E2M1: the even ones, then the odd ones, so lanes
 * 8 h .. 8 h + 7 are those of elements 16 h .. 16 h + 15. */
OCT_AVX512_INLINE void decode(__m512 out[2], const uint8_t *codes, octet_dtype format) {
    if (format == OCTET_E2M1) {
        __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
        out[0] = oct_e2m1_values16(words);
        out[1] = oct_e2m1_values16(_mm512_srli_epi32(words, 4));
        return;
    }
    __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
    __m512i halves = format == OCTET_E4M3
                         ? _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(bytes), 7),
                                            _mm512_set1_epi16((short)0xbfff))
                         : _mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 8);
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}

/* Codes of E4M3's NaN among 32; other formats decode theirs. */
OCT_AVX512_INLINE uint32_t nan_codes(const uint8_t *codes, octet_dtype format) {
    if (format != OCTET_E4M3) {
        return 0;
    }
    __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
    __m256i magnitudes = _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f));
    return _mm256_cmpeq_epi8_mask(magnitudes, _mm256_set1_epi8(0x7f));
}

/* The scales of the group of elements from p on, one for each lane. */
OCT_AVX512_INLINE __m512 scales_at(const float *scales, int64_t p, int shift) {
    if (shift > 4) {
        return _mm512_set1_ps(scales[p >> shift]);
    }
    return _mm512_insertf32x8(_mm512_set1_ps(scales[p >> 4]),
                              _mm256_set1_ps(scales[(p >> 4) + 1]), 1);
}

#define MOST 16 /* sums that stay in registers */

/* The sums of a kernel, and where E4M3's NaN was among the codes of a row of b. */
typedef struct work {
    __m512 sums[MOST];
    uint32_t nans[OCT_GEMM_ROWS];
} work;

/* A row of b times those of a. */
OCT_AVX512_INLINE void add_row(void *to, const oct_stream_place *in, int j,
                               const uint8_t *codes, const oct_stream_kind of) {
    work *w = to;
    __m512 b[2], *sums = w->sums + j * of.rows, scale = _mm512_setzero_ps();
    w->nans[j] |= nan_codes(codes, of.format);
    decode(b, codes, of.format);
    if (of.shift) {
        scale = scales_at(in->scales[j], in->p, of.shift);
    }
    OCT_UNROLL
    for (int i = 0; i < of.rows; i++) {
        const float *a = (const float *)(in->a + i * in->a_pitch) + in->p;
        __m512 part = of.shift ? _mm512_mul_ps(b[0], _mm512_loadu_ps(a))
                               : _mm512_fmadd_ps(b[0], _mm512_loadu_ps(a), sums[i]);
        part = _mm512_fmadd_ps(b[1], _mm512_loadu_ps(a + 16), part);
        sums[i] = of.shift ? _mm512_fmadd_ps(part, scale, sums[i]) : part;
    }
}

/* E4M3's NaN, which was decoded as a number, becomes one in the sums it is part of. */
OCT_AVX512_INLINE void dot_part(const oct_stream_call *call, int row, int col,
                                const oct_stream_kind of) {
    oct_stream_place in = oct_stream_at(call, row, col, of);
    work w = {.nans = {0}};
    OCT_UNROLL
    for (int n = 0; n < of.rows * of.cols; n++) {
        w.sums[n] = _mm512_setzero_ps();
    }
    oct_stream_walk(&w, &in, GROUP, of, add_row);
    float *out = call->out + col * call->rows + row;
    OCT_UNROLL
    for (int n = 0; n < of.rows * of.cols; n++) {
        float sum = _mm512_reduce_add_ps(w.sums[n]);
        out[n / of.rows * call->rows + n % of.rows] =
            w.nans[n / of.rows] ? __builtin_nanf("") : sum;
    }
}

OCT_AVX512 static void dot_e4m3(const oct_stream_call *call) {
    oct_stream_fp8(call, OCTET_E4M3, MOST, dot_part);
}

OCT_AVX512 static void dot_e5m2(const oct_stream_call *call) {
    oct_stream_fp8(call, OCTET_E5M2, MOST, dot_part);
}

OCT_AVX512 static void dot_e2m1(const oct_stream_call *call) {
    oct_stream_rows(call, OCTET_E2M1, 4, MOST, dot_part);
}

OCT_AVX512 static void arrange_e4m3(void *row, int64_t count) {
    for (int64_t p = 0; p < count; p += 16) {
        float *at = (float *)row + p;
        _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), _mm512_set1_ps(256.0f)));
    }
}

OCT_AVX512 static void arrange_e2m1(void *row, int64_t count) {
    const __m512i evens =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    for (int64_t p = 0; p < count; p += GROUP) {
        float *at = (float *)row + p;
        __m512 first = _mm512_loadu_ps(at), second = _mm512_loadu_ps(at + 16);
        _mm512_storeu_ps(at, _mm512_permutex2var_ps(first, evens, second));
        _mm512_storeu_ps(at + 16, _mm512_permutex2var_ps(first, odds, second));
    }
}

void oct_stream__avx512(oct_table *table) {
    oct_gemm_kernels *k = &table->gemm;
    k->stream_f32[OCTET_E4M3] = (oct_streamer){dot_e4m3, arrange_e4m3};
    k->stream_f32[OCTET_E5M2] = (oct_streamer){dot_e5m2, NULL};
    k->stream_f32[OCTET_E2M1] = (oct_streamer){dot_e2m1, arrange_e2m1};
    k->stream_rows = OCT_GEMM_THIN;
}

#endif
