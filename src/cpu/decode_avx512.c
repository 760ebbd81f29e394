/* decode_avx512.c - values of codes, plain rows to and from floats, and the transform. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"
#include "cpu/decode_loop.h"
#include "format/hadamard.h"

OCT_AVX512_INLINE __m512i word(uint32_t bits) {
    return _mm512_set1_epi32((int)bits);
}

/* As oct_e4m3_decode: below 8, where there is no leading bit, 2^-6 is added and taken away. */
OCT_AVX512_INLINE __m512 e4m3_values(__m512i code) {
    __m512i magnitude = _mm512_and_si512(code, word(0x7f));
    __mmask16 small = _mm512_cmplt_epu32_mask(magnitude, word(8));
    __mmask16 nan = _mm512_cmpeq_epu32_mask(magnitude, word(0x7f));
    __m512i bits = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), word(0x3c000000u));
    bits = _mm512_mask_add_epi32(bits, small, bits, word(0x00800000u));
    __m512 value = _mm512_castsi512_ps(bits);
    value = _mm512_mask_sub_ps(value, small, value, _mm512_set1_ps(0x1p-6f));
    bits = _mm512_mask_mov_epi32(_mm512_castps_si512(value), nan,
                                 word(OCT_F32_INF | OCT_F32_QUIET | 0x00300000u));
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, word(0x80)), 24);
    return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
}

/* E5M2 is the upper half of F16. */
OCT_AVX512_INLINE __m512 e5m2_values(__m128i codes) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
}

OCT_AVX512_INLINE __m512 values_of(const uint8_t *codes, __mmask16 some, octet_dtype format) {
    __m128i bytes = _mm_maskz_loadu_epi8(some, codes);
    switch (format) {
    case OCTET_E4M3:
        return e4m3_values(_mm512_cvtepu8_epi32(bytes));
    case OCTET_E5M2:
        return e5m2_values(bytes);
    default:
        return oct_e2m1_values16(_mm512_cvtepu8_epi32(bytes));
    }
}

OCT_AVX512_INLINE void decode_tile(const oct_tile *out, const oct_bytes *codes,
                                   const oct_factors *by, octet_dtype format,
                                   octet_dtype dtype) {
    int shift = by->block == 1 ? 0 : __builtin_ctzll((unsigned long long)by->block);
    for (int64_t r = 0; r < out->rows; r++) {
        const float *factors = by->factors + r * by->row_step;
        const uint8_t *from = codes->at + r * codes->stride;
        void *row = oct_tile_row(out, r);
        for (int64_t c = 0; c < out->cols; c += 16) {
            __mmask16 some = oct_some(out->cols - c);
            __m512 factor = shift == 0 ? _mm512_maskz_loadu_ps(some, factors + c)
                                       : _mm512_set1_ps(factors[c >> shift]);
            __m512 value = values_of(from + c, some, format);
            oct_store16(row, c, _mm512_mul_ps(value, factor), some, dtype);
        }
    }
}

OCT_AVX512 static void decode__avx512(const oct_tile *out, const oct_bytes *codes,
                                      const oct_factors *by, octet_dtype format) {
    oct_decode_any(out, codes, by, format, decode_tile);
}

/* ---- plain rows ------------------------------------------------------------------------ */

OCT_AVX512 static void widen__avx512(float *out, const void *x, int64_t count,
                                     octet_dtype dtype) {
    for (int64_t i = 0; i < count; i += 16) {
        __mmask16 some = oct_some(count - i);
        _mm512_mask_storeu_ps(out + i, some, oct_load16(x, i, some, dtype));
    }
}

OCT_AVX512 static void narrow__avx512(void *out, const float *x, int64_t count,
                                      octet_dtype dtype) {
    for (int64_t i = 0; i < count; i += 16) {
        __mmask16 some = oct_some(count - i);
        oct_store16(out, i, _mm512_maskz_loadu_ps(some, x + i), some, dtype);
    }
}

/* ---- the transform --------------------------------------------------------------------- */

OCT_AVX512_INLINE void stage(__m512 x[OCT_HADAMARD_ROWS], int distance) {
    for (int i = 0; i < OCT_HADAMARD_ROWS; i++) {
        if ((i & distance) == 0) {
            __m512 u = x[i], v = x[i + distance];
            x[i] = _mm512_add_ps(u, v);
            x[i + distance] = _mm512_sub_ps(u, v);
        }
    }
}

OCT_AVX512 static void hadamard__avx512(float *out, const oct_tile *x, uint32_t signs) {
    for (int64_t c = 0; c < x->cols; c += 16) {
        __mmask16 some = oct_some(x->cols - c);
        __m512 group[OCT_HADAMARD_ROWS];
        for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
            __m512 value = r < x->rows ? oct_load16(oct_tile_row(x, r), c, some, x->dtype)
                                       : _mm512_setzero_ps();
            group[r] = _mm512_mul_ps(value, _mm512_set1_ps(signs >> r & 1u ? -0.25f : 0.25f));
        }
        stage(group, 1);
        stage(group, 2);
        stage(group, 4);
        stage(group, 8);
        for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
            __m512i bits = oct_bf16_round16(group[r]);
            bits = _mm512_and_si512(bits, word(0xffff0000u));
            _mm512_mask_storeu_epi32(out + r * x->cols + c, some, bits);
        }
    }
}

void oct_decode__avx512(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->decode = decode__avx512;
    k->hadamard = hadamard__avx512;
    k->widen = widen__avx512;
    k->narrow = narrow__avx512;
}

#endif
