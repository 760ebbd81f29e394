/* avx512.h - 16 floats at a time: loads and stores of plain rows, some or all of them, and the
 * shape of products. */
#ifndef OCT_CPU_AVX512_H
#define OCT_CPU_AVX512_H

#include <immintrin.h>

#include "cpu/isa.h"

#define OCT_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#define OCT_AVX512_INLINE static inline __attribute__((always_inline)) OCT_AVX512

/* With bf16 dot products and byte permutations. */
#define OCT_BF16                                                                               \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,avx512vbmi,avx512bf16")))
#define OCT_BF16_INLINE static inline __attribute__((always_inline)) OCT_BF16

/* A register tile of a product is 14 rows of two vectors: 28 sums, two words of b and one of a.
 * A step of an a panel is one cache line, so its last two words are not used. */
#define OCT_AVX512_MR 14
#define OCT_AVX512_MR_STRIDE 16
#define OCT_AVX512_NR 32

/* The first n of 16; all of them from 16 on. */
OCT_AVX512_INLINE __mmask16 oct_some(int64_t n) {
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1u);
}

/* Elements from `index` on, widened; 0 where the mask is not set. */
OCT_AVX512_INLINE __m512 oct_load16(const void *row, int64_t index, __mmask16 some,
                                    octet_dtype dtype) {
    const void *at = oct_plain_at(row, index, dtype);
    bool all = some == (__mmask16)0xffff;
    if (dtype == OCTET_F32) {
        return all ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps(some, at);
    }
    __m256i half = all ? _mm256_loadu_si256(at) : _mm256_maskz_loadu_epi16(some, at);
    if (dtype == OCTET_F16) {
        return _mm512_cvtph_ps(half);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* bf16 by integers, for the instruction flushes subnormals: nearest even, NaN made quiet. */
OCT_AVX512_INLINE __m512i oct_bf16_round16(__m512 value) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(nearest, nan, bits, _mm512_set1_epi32((int)OCT_F32_QUIET));
}

/* The inverse of oct_load16, each element rounded once. */
OCT_AVX512_INLINE void oct_store16(void *row, int64_t index, __m512 value, __mmask16 some,
                                   octet_dtype dtype) {
    void *at = oct_plain_at(row, index, dtype);
    if (dtype == OCTET_F32) {
        _mm512_mask_storeu_ps(at, some, value);
    } else if (dtype == OCTET_BF16) {
        __m512i bits = _mm512_srli_epi32(oct_bf16_round16(value), 16);
        _mm256_mask_storeu_epi16(at, some, _mm512_cvtepi32_epi16(bits));
    } else {
        __m256i half =
            _mm512_maskz_cvtps_ph(some, value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16(at, some, half);
    }
}

/* The values of 16 codes of E2M1, in the lower bits of words; bits above the fourth do not
 * count. */
OCT_AVX512_INLINE __m512 oct_e2m1_values16(__m512i words) {
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                         -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(words, values);
}

/* The same of 16 codes in eight bytes: each lane shifts its four bits down. */
OCT_AVX512_INLINE __m512 oct_e2m1_widen16(const uint8_t *codes) {
    const __m512i shifts =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m128i bytes = _mm_loadl_epi64((const __m128i *)codes);
    __m512i words = _mm512_permutexvar_epi32(halves, _mm512_castsi128_si512(bytes));
    return oct_e2m1_values16(_mm512_srlv_epi32(words, shifts));
}

/* bf16 encodings of the magnitudes of an FP8 format, by code: pack_avx512bf16.c. */
extern const uint16_t oct_bf16_of_e4m3[128], oct_bf16_of_e5m2[128];

#endif
