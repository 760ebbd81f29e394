/* stream_avx2.c - codes become floats in registers, twice 16 at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx2.h"
#include "cpu/stream_loop.h"

#define GROUP 32
#define HALF 16
#define MOST 8 /* sums that stay in registers beside what they are made of */

/* Sixteen codes as floats. FP8: in order, E4M3 as halves with the same exponent field, 2^-8
 * times too small; arrange makes up for that. E2M1: the even ones, then the odd ones. */
OCT_AVX2_INLINE void decode(__m256 out[2], const uint8_t *codes, octet_dtype format) {
    if (format == OCTET_E2M1) {
        __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)codes));
        out[0] = oct_e2m1_values8(words);
        out[1] = oct_e2m1_values8(_mm256_srli_epi32(words, 4));
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

/* The sums of a kernel, and of E4M3's codes the greatest magnitudes, byte by byte. */
typedef struct work {
    __m256 sums[MOST];
    __m256i most;
} work;

/* E4M3's NaN is looked for among the greatest; other formats decode theirs. */
OCT_AVX2_INLINE __m256i larger(__m256i most, const uint8_t *codes, octet_dtype format) {
    __m256i bytes = format == OCTET_E4M3 ? _mm256_loadu_si256((const __m256i *)codes) : most;
    return _mm256_max_epu8(most, _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f)));
}

/* A row of b times those of a: both halves of a group, whose scale is one, or one for each. */
OCT_AVX2_INLINE void add_row(void *to, const oct_stream_place *in, int j, const uint8_t *codes,
                             const oct_stream_kind of) {
    work *w = to;
    const int64_t half = of.format == OCTET_E2M1 ? HALF / 2 : HALF;
    __m256 *sums = w->sums + j * of.rows, parts[OCT_GEMM_ROWS];
    w->most = larger(w->most, codes, of.format);
    OCT_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256 b[2], scale = _mm256_setzero_ps();
        decode(b, codes + h * half, of.format);
        bool opens = h == 0 || of.shift == 4, closes = h == 1 || of.shift == 4;
        if (of.shift && closes) {
            scale = _mm256_set1_ps(in->scales[j][(in->p + h * HALF) >> of.shift]);
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

static bool has_nan(const uint8_t *codes, int64_t count) {
    bool found = false;
    for (int64_t p = 0; p < count; p++) {
        found |= (codes[p] & 0x7f) == 0x7f;
    }
    return found;
}

/* E4M3's NaN, which was decoded as a number, becomes one in the sums it is part of. */
OCT_AVX2_INLINE void dot_part(const oct_stream_call *call, int row, int col,
                              const oct_stream_kind of) {
    oct_stream_place in = oct_stream_at(call, row, col, of);
    work w = {.most = _mm256_setzero_si256()};
    OCT_UNROLL
    for (int n = 0; n < of.rows * of.cols; n++) {
        w.sums[n] = _mm256_setzero_ps();
    }
    oct_stream_walk(&w, &in, GROUP, of, add_row);
    __m256i nans = _mm256_cmpeq_epi8(w.most, _mm256_set1_epi8(0x7f));
    bool any = _mm256_movemask_epi8(nans);
    float *out = call->out + col * call->rows + row;
    for (int j = 0; j < of.cols; j++) {
        bool nan = any && has_nan(in.codes[j], call->count);
        for (int i = 0; i < of.rows; i++) {
            float sum = oct_sum8(w.sums[j * of.rows + i]);
            out[j * call->rows + i] = nan ? __builtin_nanf("") : sum;
        }
    }
}

OCT_AVX2 static void dot_e4m3(const oct_stream_call *call) {
    oct_stream_fp8(call, OCTET_E4M3, MOST, dot_part);
}

OCT_AVX2 static void dot_e5m2(const oct_stream_call *call) {
    oct_stream_fp8(call, OCTET_E5M2, MOST, dot_part);
}

OCT_AVX2 static void dot_e2m1(const oct_stream_call *call) {
    oct_stream_rows(call, OCTET_E2M1, 4, MOST, dot_part);
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
