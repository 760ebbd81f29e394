/* stream_avx2.c - codes become floats in registers, twice 16 at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include <string.h>

#include "cpu/avx2.h"

#define GROUP 32
#define HALF 16
#define MOST 8 /* sums that stay in registers beside what they are made of */

OCT_AVX2_INLINE __m256 values_e2m1(__m256i words) {
    const __m256 values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(words, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(values, words), _mm256_castsi256_ps(sign));
}

/* Sixteen codes as floats. FP8: in order, E4M3 as halves with the same exponent field, 2^-8
 * times too small; arrange makes up for that. E2M1: the even ones, then the odd ones. */
OCT_AVX2_INLINE void decode(__m256 out[2], const uint8_t *codes, octet_dtype format) {
    if (format == OCTET_E2M1) {
        __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)codes));
        out[0] = values_e2m1(words);
        out[1] = values_e2m1(_mm256_srli_epi32(words, 4));
        return;
    }
    __m128i bytes = _mm_loadu_si128((const __m128i *)codes);
    __m256i halves = format == OCTET_E4M3
                         ? _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                            _mm256_set1_epi16((short)0xbfff))
                         : _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
    out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

/* What a kernel is made for: constants wherever it is inlined. Its sums fit the registers. */
typedef struct kind {
    octet_dtype format;
    int shift, rows, cols;
} kind;

/* Some rows of a and of b in a call, and where the kernel reads them, in registers. */
typedef struct place {
    const char *a;
    int64_t a_pitch;
    const uint8_t *codes[OCT_GEMM_ROWS];
    const float *scales[OCT_GEMM_ROWS];
    int64_t p;
} place;

OCT_AVX2_INLINE place place_of(const oct_stream_call *call, int row, int col, const kind of) {
    place in = {.a = (const char *)call->a + row * call->a_pitch, .a_pitch = call->a_pitch};
    OCT_UNROLL
    for (int j = 0; j < of.cols; j++) {
        in.codes[j] = call->codes[col + j];
        in.scales[j] = call->scales[col + j];
    }
    return in;
}

/* A row of b times those of a: both halves of a group, whose scale is one, or one for each. */
OCT_AVX2_INLINE void add_row(__m256 sums[], const place *in, const uint8_t *codes,
                             const float *scales, const kind of) {
    const int64_t half = of.format == OCTET_E2M1 ? HALF / 2 : HALF;
    __m256 parts[OCT_GEMM_ROWS];
    OCT_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256 b[2], scale = _mm256_setzero_ps();
        decode(b, codes + h * half, of.format);
        bool opens = h == 0 || of.shift == 4, closes = h == 1 || of.shift == 4;
        if (of.shift && closes) {
            scale = _mm256_set1_ps(scales[(in->p + h * HALF) >> of.shift]);
        }
        OCT_UNROLL
        for (int i = 0; i < of.rows; i++) {
            const float *a = (const float *)(in->a + i * in->a_pitch) + in->p + h * HALF;
            __m256 part = of.shift == 0 ? sums[i] : parts[i];
            part = of.shift && opens ? _mm256_mul_ps(b[0], _mm256_loadu_ps(a))
                                     : _mm256_fmadd_ps(b[0], _mm256_loadu_ps(a), part);
            parts[i] = _mm256_fmadd_ps(b[1], _mm256_loadu_ps(a + 8), part);
            if (of.shift == 0 || closes) {
                sums[i] = of.shift ? _mm256_fmadd_ps(parts[i], scale, sums[i]) : parts[i];
            }
        }
    }
}

/* One group: codes[j] are those of row j from p on. */
OCT_AVX2_INLINE void add_group(__m256 sums[MOST], const place *in,
                               const uint8_t *const codes[OCT_GEMM_ROWS], const kind of) {
    OCT_UNROLL
    for (int j = 0; j < of.cols; j++) {
        add_row(sums + j * of.rows, in, codes[j], in->scales[j], of);
    }
}

/* The greater of E4M3's magnitudes, byte by byte; of other formats, whose NaN is decoded,
 * nothing. */
OCT_AVX2_INLINE __m256i larger(__m256i most, const uint8_t *codes, octet_dtype format) {
    __m256i bytes = format == OCTET_E4M3 ? _mm256_loadu_si256((const __m256i *)codes) : most;
    return _mm256_max_epu8(most, _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f)));
}

static bool has_nan(const uint8_t *codes, int64_t count) {
    bool found = false;
    for (int64_t p = 0; p < count; p++) {
        found |= (codes[p] & 0x7f) == 0x7f;
    }
    return found;
}

/* The sums to where they belong; E4M3's NaN, which was decoded as a number, becomes one. */
OCT_AVX2_INLINE void put_sums(const oct_stream_call *call, float *out, const place *in,
                              const __m256 sums[MOST], __m256i most, const kind of) {
    __m256i nans = _mm256_cmpeq_epi8(most, _mm256_set1_epi8(0x7f));
    bool any = _mm256_movemask_epi8(nans);
    for (int j = 0; j < of.cols; j++) {
        bool nan = any && has_nan(in->codes[j], call->count);
        for (int i = 0; i < of.rows; i++) {
            float sum = oct_sum8(sums[j * of.rows + i]);
            out[j * call->rows + i] = nan ? __builtin_nanf("") : sum;
        }
    }
}

OCT_AVX2_INLINE void dot_part(const oct_stream_call *call, int row, int col, const kind of) {
    const int64_t bits = of.format == OCTET_E2M1 ? 4 : 8, count = call->count;
    const int64_t ahead = call->ahead;
    place in = place_of(call, row, col, of);
    __m256i most = _mm256_setzero_si256();
    __m256 sums[MOST];
    const uint8_t *codes[OCT_GEMM_ROWS];
    OCT_UNROLL
    for (int n = 0; n < of.rows * of.cols; n++) {
        sums[n] = _mm256_setzero_ps();
    }
    for (; in.p + GROUP <= count; in.p += GROUP) {
        OCT_UNROLL
        for (int j = 0; j < of.cols; j++) {
            codes[j] = in.codes[j] + in.p * bits / 8;
            _mm_prefetch((const char *)codes[j] + ahead, _MM_HINT_T0);
            most = larger(most, codes[j], of.format);
        }
        add_group(sums, &in, codes, of);
    }
    if (in.p < count) {
        uint8_t tails[OCT_GEMM_ROWS][GROUP] = {{0}};
        for (int j = 0; j < of.cols; j++) {
            size_t bytes = (size_t)((count - in.p) * bits + 7) / 8;
            codes[j] = memcpy(tails[j], in.codes[j] + in.p * bits / 8, bytes);
            most = larger(most, codes[j], of.format);
        }
        add_group(sums, &in, codes, of);
    }
    put_sums(call, call->out + col * call->rows + row, &in, sums, most, of);
}

/* Four rows of b where their sums with one or two of a fit the registers, else two at a time.
 */
OCT_AVX2_INLINE void dot(const oct_stream_call *call, octet_dtype format, const int shift) {
    int row = 0;
    for (; row + 3 <= call->rows; row += row + 4 <= call->rows ? 4 : 3) {
        for (int col = 0; col < OCT_GEMM_ROWS; col += 2) {
            if (row + 4 <= call->rows) {
                dot_part(call, row, col, (kind){format, shift, 4, 2});
            } else {
                dot_part(call, row, col, (kind){format, shift, 3, 2});
            }
        }
    }
    if (row + 2 == call->rows) {
        dot_part(call, row, 0, (kind){format, shift, 2, 4});
    } else if (row + 1 == call->rows) {
        dot_part(call, row, 0, (kind){format, shift, 1, 4});
    }
}

OCT_AVX2_INLINE void dot_fp8(const oct_stream_call *call, octet_dtype format) {
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

OCT_AVX2 static void dot_e4m3(const oct_stream_call *call) {
    dot_fp8(call, OCTET_E4M3);
}

OCT_AVX2 static void dot_e5m2(const oct_stream_call *call) {
    dot_fp8(call, OCTET_E5M2);
}

OCT_AVX2 static void dot_e2m1(const oct_stream_call *call) {
    dot(call, OCTET_E2M1, 4);
}

OCT_AVX2 static void arrange_e4m3(void *row, int64_t count) {
    for (int64_t p = 0; p < count; p += 8) {
        float *at = (float *)row + p;
        _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), _mm256_set1_ps(256.0f)));
    }
}

OCT_AVX2 static void arrange_e2m1(void *row, int64_t count) {
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    for (int64_t p = 0; p < count; p += HALF) {
        float *at = (float *)row + p;
        __m256 first = _mm256_loadu_ps(at), second = _mm256_loadu_ps(at + 8);
        __m256 even = _mm256_shuffle_ps(first, second, 0x88);
        __m256 odd = _mm256_shuffle_ps(first, second, 0xdd);
        _mm256_storeu_ps(at, _mm256_permutevar8x32_ps(even, order));
        _mm256_storeu_ps(at + 8, _mm256_permutevar8x32_ps(odd, order));
    }
}

void oct_stream__avx2(oct_table *table) {
    oct_gemm_kernels *k = &table->gemm;
    k->stream_f32[OCTET_E4M3] = (oct_streamer){dot_e4m3, arrange_e4m3};
    k->stream_f32[OCTET_E5M2] = (oct_streamer){dot_e5m2, NULL};
    k->stream_f32[OCTET_E2M1] = (oct_streamer){dot_e2m1, arrange_e2m1};
    k->stream_rows = 8;
}

#endif
