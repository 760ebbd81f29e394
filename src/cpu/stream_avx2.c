/* stream_avx2.c - codes become floats in registers, 16 at a time. */
#include "cpu/stream.h"

#if OCT_X86

#include <immintrin.h>
#include <string.h>

#include "cpu/gemm.h"

#define ISA __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) ISA

#define GROUP 16
#define MOST 4 /* sums that stay in registers beside what they are made of */

INLINE __m256 values_e2m1(__m256i words) {
    const __m256 values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(words, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(values, words), _mm256_castsi256_ps(sign));
}

/* Sixteen codes as floats. FP8: in order, E4M3 as halves with the same exponent field, 2^-8
 * times too small; arrange makes up for that. E2M1: the even ones, then the odd ones. */
INLINE void decode(__m256 out[2], const uint8_t *codes, octet_dtype format) {
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

/* A part of a call: some rows of a with some of b, such that their sums fit the registers. */
typedef struct part {
    const oct_stream_call *call;
    int row, col;      /* the first ones */
    __m128i magnitude; /* the largest code of E4M3, byte by byte */
} part;

/* One group: codes[j] are those of row j from p on. */
INLINE void add_group(__m256 sums[MOST], part *of, const uint8_t *const codes[OCT_GEMM_ROWS],
                      int64_t p, octet_dtype format, const int shift, const int rows) {
    const oct_stream_call *call = of->call;
    const int cols = MOST / rows;
    OCT_UNROLL
    for (int j = 0; j < cols; j++) {
        __m256 b[2], scale = _mm256_setzero_ps();
        decode(b, codes[j], format);
        if (format == OCTET_E4M3) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)codes[j]);
            of->magnitude =
                _mm_max_epu8(of->magnitude, _mm_and_si128(bytes, _mm_set1_epi8(0x7f)));
        }
        if (shift) {
            scale = _mm256_set1_ps(call->scales[of->col + j][p >> shift]);
        }
        OCT_UNROLL
        for (int i = 0; i < rows; i++) {
            const char *row = (const char *)call->a + (of->row + i) * call->a_pitch;
            const float *a = (const float *)row + p;
            __m256 *sum = &sums[j * rows + i];
            __m256 both = shift ? _mm256_mul_ps(b[0], _mm256_loadu_ps(a))
                                : _mm256_fmadd_ps(b[0], _mm256_loadu_ps(a), *sum);
            both = _mm256_fmadd_ps(b[1], _mm256_loadu_ps(a + 8), both);
            *sum = shift ? _mm256_fmadd_ps(both, scale, *sum) : both;
        }
    }
}

INLINE float sum_of(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static bool has_nan(const uint8_t *codes, int64_t count) {
    bool found = false;
    for (int64_t p = 0; p < count; p++) {
        found |= (codes[p] & 0x7f) == 0x7f;
    }
    return found;
}

/* The sums to where they belong; E4M3's NaN, which was decoded as a number, becomes one. */
INLINE void put_sums(const part *of, const __m256 sums[MOST], octet_dtype format,
                     const int rows) {
    const oct_stream_call *call = of->call;
    __m128i nans = _mm_cmpeq_epi8(of->magnitude, _mm_set1_epi8(0x7f));
    bool any = format == OCTET_E4M3 && _mm_movemask_epi8(nans);
    OCT_UNROLL
    for (int n = 0; n < MOST / rows * rows; n++) {
        int col = of->col + n / rows;
        float sum = sum_of(sums[n]);
        bool nan = any && has_nan(call->codes[col], call->count);
        call->out[col * call->rows + of->row + n % rows] = nan ? __builtin_nanf("") : sum;
    }
}

INLINE void dot_part(const oct_stream_call *call, int row, int col, octet_dtype format,
                     const int shift, const int rows) {
    const int64_t bits = format == OCTET_E2M1 ? 4 : 8;
    const int cols = MOST / rows;
    part of = {call, row, col, _mm_setzero_si128()};
    __m256 sums[MOST];
    OCT_UNROLL
    for (int n = 0; n < MOST; n++) {
        sums[n] = _mm256_setzero_ps();
    }
    int64_t p = 0;
    for (; p + GROUP <= call->count; p += GROUP) {
        const uint8_t *codes[OCT_GEMM_ROWS];
        OCT_UNROLL
        for (int j = 0; j < cols; j++) {
            codes[j] = call->codes[col + j] + p * bits / 8;
            _mm_prefetch((const char *)codes[j] + call->ahead, _MM_HINT_T0);
        }
        add_group(sums, &of, codes, p, format, shift, rows);
    }
    if (p < call->count) {
        uint8_t tails[OCT_GEMM_ROWS][GROUP] = {{0}};
        const uint8_t *codes[OCT_GEMM_ROWS];
        for (int j = 0; j < cols; j++) {
            size_t bytes = (size_t)((call->count - p) * bits + 7) / 8;
            codes[j] = memcpy(tails[j], call->codes[col + j] + p * bits / 8, bytes);
        }
        add_group(sums, &of, codes, p, format, shift, rows);
    }
    put_sums(&of, sums, format, rows);
}

/* Rows of a by twos, which need two rows of b for their four sums; a single one needs four. */
INLINE void dot(const oct_stream_call *call, octet_dtype format, const int shift) {
    int row = 0;
    for (; row + 2 <= call->rows; row += 2) {
        for (int col = 0; col < OCT_GEMM_ROWS; col += 2) {
            dot_part(call, row, col, format, shift, 2);
        }
    }
    if (row < call->rows) {
        dot_part(call, row, 0, format, shift, 1);
    }
}

INLINE void dot_fp8(const oct_stream_call *call, octet_dtype format) {
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

ISA static void dot_e4m3(const oct_stream_call *call) {
    dot_fp8(call, OCTET_E4M3);
}

ISA static void dot_e5m2(const oct_stream_call *call) {
    dot_fp8(call, OCTET_E5M2);
}

ISA static void dot_e2m1(const oct_stream_call *call) {
    dot(call, OCTET_E2M1, 4);
}

ISA static void arrange_e4m3(void *row, int64_t count) {
    for (int64_t p = 0; p < count; p += 8) {
        float *at = (float *)row + p;
        _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), _mm256_set1_ps(256.0f)));
    }
}

ISA static void arrange_e2m1(void *row, int64_t count) {
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    for (int64_t p = 0; p < count; p += GROUP) {
        float *at = (float *)row + p;
        __m256 first = _mm256_loadu_ps(at), second = _mm256_loadu_ps(at + 8);
        __m256 even = _mm256_shuffle_ps(first, second, 0x88);
        __m256 odd = _mm256_shuffle_ps(first, second, 0xdd);
        _mm256_storeu_ps(at, _mm256_permutevar8x32_ps(even, order));
        _mm256_storeu_ps(at + 8, _mm256_permutevar8x32_ps(odd, order));
    }
}

const oct_streamer oct_stream_avx2[OCTET_DTYPES] = {
    [OCTET_E4M3] = {dot_e4m3, arrange_e4m3},
    [OCTET_E5M2] = {dot_e5m2, NULL},
    [OCTET_E2M1] = {dot_e2m1, arrange_e2m1},
};

#endif
