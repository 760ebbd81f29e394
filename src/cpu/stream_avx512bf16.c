/* stream_avx512bf16.c - codes become bf16 by table, 64 at a time, and are multiplied in pairs.
 */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"
#include "cpu/stream_loop.h"

#define GROUP 64

/* What a format's codes are looked up in. */
typedef struct tables {
    __m512i high[2], low[2]; /* FP8: the bytes of a magnitude's bf16 */
    __m512i words;           /* E2M1: the bf16 of a code, twice */
} tables;

/* The upper or the lower bytes of the table's 128 words. */
OCT_BF16_INLINE void split_table(__m512i out[2], const uint16_t table[128], bool upper) {
    for (int i = 0; i < 2; i++) {
        __m512i first = _mm512_loadu_si512(table + 64 * i);
        __m512i second = _mm512_loadu_si512(table + 64 * i + 32);
        first = upper ? _mm512_srli_epi16(first, 8) : first;
        second = upper ? _mm512_srli_epi16(second, 8) : second;
        __m512i half = _mm512_castsi256_si512(_mm512_cvtepi16_epi8(first));
        out[i] = _mm512_inserti64x4(half, _mm512_cvtepi16_epi8(second), 1);
    }
}

/* 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. */
OCT_BF16_INLINE __m512i table_e2m1(void) {
    static const uint16_t values[16] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
                                        0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0,
                                        0xc000, 0xc040, 0xc080, 0xc0c0};
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)values));
}

OCT_BF16_INLINE tables tables_of(octet_dtype format) {
    tables t;
    if (format == OCTET_E2M1) {
        t.words = table_e2m1();
    } else {
        const uint16_t *table = format == OCTET_E4M3 ? oct_bf16_of_e4m3 : oct_bf16_of_e5m2;
        split_table(t.high, table, true);
        split_table(t.low, table, false);
    }
    return t;
}

/* Sixty-four codes as bf16. FP8: quarter q of out[h] holds elements 16 q + 8 h .. + 8. E2M1:
 * out[h] holds elements 2 w + h. Either way fp32 lanes 4 q .. 4 q + 3 of a dot product are
 * those of elements 16 q .. 16 q + 15. */
OCT_BF16_INLINE void decode(__m512i out[2], const uint8_t *codes, const tables *t,
                            octet_dtype format) {
    if (format == OCTET_E2M1) {
        /* Bit 4 of an index belongs to the other code: both halves of the table are alike. */
        __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)codes));
        out[0] = _mm512_permutexvar_epi16(words, t->words);
        out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), t->words);
        return;
    }
    __m512i bytes = _mm512_loadu_si512(codes);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], bytes, t->high[1]);
    __m512i low = _mm512_permutex2var_epi8(t->low[0], bytes, t->low[1]);
    /* high | (bytes & 0x80) */
    high = _mm512_ternarylogic_epi32(high, bytes, _mm512_set1_epi8((char)0x80), 0xf8);
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
}

/* The scales of the group of elements from p on, one for each fp32 lane. */
OCT_BF16_INLINE __m512 scales_at(const float *scales, int64_t p, int shift) {
    const __m512i fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i eights = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    if (shift == 7) {
        return _mm512_set1_ps(scales[p >> 7]);
    }
    return _mm512_permutexvar_ps(shift == 4 ? fours : eights,
                                 _mm512_loadu_ps(scales + (p >> shift)));
}

#define MOST 16 /* sums that stay in registers */

/* The sums of a kernel, and what it looks codes up in. */
typedef struct work {
    tables tables;
    __m512 sums[MOST];
} work;

/* Elements of b that are decoded before their scale is applied: a block of 128 as a whole. */
OCT_BF16_INLINE int group_of(const oct_stream_kind of) {
    return of.shift == 7 ? 2 * GROUP : GROUP;
}

/* A row of b times those of a. */
OCT_BF16_INLINE void add_row(void *to, const oct_stream_place *in, int j, const uint8_t *codes,
                             const oct_stream_kind of) {
    work *w = to;
    const int halves = group_of(of) / 32;
    __m512i b[4];
    __m512 *sums = w->sums + j * of.rows;
    OCT_UNROLL
    for (int h = 0; h < halves; h += 2) {
        decode(b + h, codes + h * 32, &w->tables, of.format);
    }
    __m512 scale = of.shift ? scales_at(in->scales[j], in->p, of.shift) : _mm512_setzero_ps();
    OCT_UNROLL
    for (int i = 0; i < of.rows; i++) {
        const char *a = in->a + i * in->a_pitch + in->p * 2;
        __m512 part = of.shift ? _mm512_setzero_ps() : sums[i];
        OCT_UNROLL
        for (int h = 0; h < halves; h++) {
            __m512bh with = (__m512bh)_mm512_loadu_si512(a + 64 * h);
            part = _mm512_dpbf16_ps(part, (__m512bh)b[h], with);
        }
        sums[i] = of.shift ? _mm512_fmadd_ps(part, scale, sums[i]) : part;
    }
}

OCT_BF16_INLINE void dot_part(const oct_stream_call *call, int row, int col,
                              const oct_stream_kind of) {
    oct_stream_place in = oct_stream_at(call, row, col, of);
    work w = {.tables = tables_of(of.format)};
    OCT_UNROLL
    for (int n = 0; n < of.rows * of.cols; n++) {
        w.sums[n] = _mm512_setzero_ps();
    }
    oct_stream_walk(&w, &in, group_of(of), of, add_row);
    float *out = call->out + col * call->rows + row;
    OCT_UNROLL
    for (int n = 0; n < of.rows * of.cols; n++) {
        out[n / of.rows * call->rows + n % of.rows] = _mm512_reduce_add_ps(w.sums[n]);
    }
}

OCT_BF16 static void dot_e4m3(const oct_stream_call *call) {
    oct_stream_fp8(call, OCTET_E4M3, MOST, dot_part);
}

OCT_BF16 static void dot_e5m2(const oct_stream_call *call) {
    oct_stream_fp8(call, OCTET_E5M2, MOST, dot_part);
}

OCT_BF16 static void dot_e2m1(const oct_stream_call *call) {
    oct_stream_rows(call, OCTET_E2M1, 4, MOST, dot_part);
}

OCT_BF16 static void arrange_fp8(void *row, int64_t count) {
    for (int64_t p = 0; p < count; p += GROUP) {
        uint16_t *at = (uint16_t *)row + p;
        __m512i first = _mm512_loadu_si512(at), second = _mm512_loadu_si512(at + 32);
        _mm512_storeu_si512(at, _mm512_shuffle_i64x2(first, second, 0x88));
        _mm512_storeu_si512(at + 32, _mm512_shuffle_i64x2(first, second, 0xdd));
    }
}

OCT_BF16 static void arrange_e2m1(void *row, int64_t count) {
    for (int64_t p = 0; p < count; p += GROUP) {
        uint16_t *at = (uint16_t *)row + p;
        __m512i first = _mm512_loadu_si512(at), second = _mm512_loadu_si512(at + 32);
        __m512i even = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(first));
        __m512i odd =
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(first, 16)));
        even = _mm512_inserti64x4(even, _mm512_cvtepi32_epi16(second), 1);
        odd = _mm512_inserti64x4(odd, _mm512_cvtepi32_epi16(_mm512_srli_epi32(second, 16)), 1);
        _mm512_storeu_si512(at, even);
        _mm512_storeu_si512(at + 32, odd);
    }
}

void oct_stream__avx512bf16(oct_table *table) {
    oct_gemm_kernels *k = &table->gemm;
    k->stream_bf16[OCTET_E4M3] = (oct_streamer){dot_e4m3, arrange_fp8};
    k->stream_bf16[OCTET_E5M2] = (oct_streamer){dot_e5m2, arrange_fp8};
    k->stream_bf16[OCTET_E2M1] = (oct_streamer){dot_e2m1, arrange_e2m1};
}

#endif
