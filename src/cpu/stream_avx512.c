/* stream_avx512.c - codes become floats in registers, 32 at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include <string.h>

#include "cpu/avx512.h"

#define GROUP 32

/* Thirty-two codes as floats. FP8: in order, E4M3 as halves with the same exponent field, 2^-8
 * times too small; arrange makes up for that. E2M1: the even ones, then the odd ones, so lanes
 * 8 h .. 8 h + 7 are those of elements 16 h .. 16 h + 15. */
OCT_AVX512_INLINE void decode(__m512 out[2], const uint8_t *codes, octet_dtype format) {
    if (format == OCTET_E2M1) {
        const __m512 values =
            _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f,
                           -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
        __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
        out[0] = _mm512_permutexvar_ps(words, values);
        out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4), values);
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

/* What a kernel is made for: constants wherever it is inlined. Its sums fit the registers. */
typedef struct kind {
    octet_dtype format;
    int shift, rows, cols;
} kind;

#define MOST 16 /* sums */

/* Some rows of b in a call, and where the kernel reads them, in registers. */
typedef struct place {
    const char *a;
    int64_t a_pitch;
    const uint8_t *codes[OCT_GEMM_ROWS];
    const float *scales[OCT_GEMM_ROWS];
    int64_t p;
} place;

OCT_AVX512_INLINE place place_of(const oct_stream_call *call, int col, const kind of) {
    place in = {.a = call->a, .a_pitch = call->a_pitch};
    OCT_UNROLL
    for (int j = 0; j < of.cols; j++) {
        in.codes[j] = call->codes[col + j];
        in.scales[j] = call->scales[col + j];
    }
    return in;
}

/* A row of b times those of a. codes are those from p on. */
OCT_AVX512_INLINE void add_row(__m512 sums[], const place *in, const uint8_t *codes,
                               const float *scales, const kind of) {
    __m512 b[2], scale = _mm512_setzero_ps();
    decode(b, codes, of.format);
    if (of.shift) {
        scale = scales_at(scales, in->p, of.shift);
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

OCT_AVX512_INLINE void dot_part(const oct_stream_call *call, int col, const kind of) {
    const int64_t bits = of.format == OCTET_E2M1 ? 4 : 8, count = call->count;
    const int64_t ahead = call->ahead;
    place in = place_of(call, col, of);
    __m512 sums[MOST];
    uint32_t nans[OCT_GEMM_ROWS] = {0};
    OCT_UNROLL
    for (int n = 0; n < of.rows * of.cols; n++) {
        sums[n] = _mm512_setzero_ps();
    }
    for (; in.p + GROUP <= count; in.p += GROUP) {
        OCT_UNROLL
        for (int j = 0; j < of.cols; j++) {
            const uint8_t *codes = in.codes[j] + in.p * bits / 8;
            _mm_prefetch((const char *)codes + ahead, _MM_HINT_T0);
            nans[j] |= nan_codes(codes, of.format);
            add_row(sums + j * of.rows, &in, codes, in.scales[j], of);
        }
    }
    if (in.p < count) {
        OCT_UNROLL
        for (int j = 0; j < of.cols; j++) {
            uint8_t codes[GROUP] = {0};
            memcpy(codes, in.codes[j] + in.p * bits / 8,
                   (size_t)((count - in.p) * bits + 7) / 8);
            nans[j] |= nan_codes(codes, of.format);
            add_row(sums + j * of.rows, &in, codes, in.scales[j], of);
        }
    }
    float *out = call->out + col * call->rows;
    OCT_UNROLL
    for (int j = 0; j < of.cols; j++) {
        OCT_UNROLL
        for (int i = 0; i < of.rows; i++) {
            float sum = _mm512_reduce_add_ps(sums[j * of.rows + i]);
            out[j * call->rows + i] = nans[j] ? __builtin_nanf("") : sum;
        }
    }
}

OCT_AVX512_INLINE void dot_rows(const oct_stream_call *call, const kind of) {
    for (int col = 0; col < OCT_GEMM_ROWS; col += of.cols) {
        dot_part(call, col, of);
    }
}

/* Four rows of b where their sums fit the registers, else two at a time. */
OCT_AVX512_INLINE void dot(const oct_stream_call *call, octet_dtype format, const int shift) {
    switch (call->rows) {
    case 1:
        dot_rows(call, (kind){format, shift, 1, 4});
        break;
    case 2:
        dot_rows(call, (kind){format, shift, 2, 4});
        break;
    case 3:
        dot_rows(call, (kind){format, shift, 3, 4});
        break;
    case 4:
        dot_rows(call, (kind){format, shift, 4, 4});
        break;
    case 5:
        dot_rows(call, (kind){format, shift, 5, 2});
        break;
    case 6:
        dot_rows(call, (kind){format, shift, 6, 2});
        break;
    case 7:
        dot_rows(call, (kind){format, shift, 7, 2});
        break;
    default:
        dot_rows(call, (kind){format, shift, 8, 2});
    }
}

OCT_AVX512_INLINE void dot_fp8(const oct_stream_call *call, octet_dtype format) {
    switch (call->shift) {
    case 0:
        dot(call, format, 0);
        break;
    case 5:
        dot(call, format, 5);
        break;
    default:
        dot(call, format, 7);
    }
}

OCT_AVX512 static void dot_e4m3(const oct_stream_call *call) {
    dot_fp8(call, OCTET_E4M3);
}

OCT_AVX512 static void dot_e5m2(const oct_stream_call *call) {
    dot_fp8(call, OCTET_E5M2);
}

OCT_AVX512 static void dot_e2m1(const oct_stream_call *call) {
    dot(call, OCTET_E2M1, 4);
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
