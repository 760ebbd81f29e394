/* avx2.h - 8 floats at a time: loads, stores and sums. */
#ifndef OCT_CPU_AVX2_H
#define OCT_CPU_AVX2_H

#include <immintrin.h>

#include "cpu/isa.h"

#define OCT_AVX2 __attribute__((target("avx2,fma,f16c")))
#define OCT_AVX2_INLINE static inline __attribute__((always_inline)) OCT_AVX2

OCT_AVX2_INLINE __m256i oct_word8(uint32_t bits) {
    return _mm256_set1_epi32((int)bits);
}

/* Eight elements from `index` on, widened. */
OCT_AVX2_INLINE __m256 oct_load8(const void *row, int64_t index, octet_dtype dtype) {
    const void *at = oct_plain_at(row, index, dtype);
    if (dtype == OCTET_F32) {
        return _mm256_loadu_ps(at);
    }
    __m128i half = _mm_loadu_si128(at);
    if (dtype == OCTET_F16) {
        return _mm256_cvtph_ps(half);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* bf16 by integers: nearest even, NaN made quiet. The result is in the upper halves. */
OCT_AVX2_INLINE __m256i oct_bf16_round8(__m256 value) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), oct_word8(1));
    __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, odd), oct_word8(0x7fff));
    __m256i quiet = _mm256_or_si256(bits, oct_word8(OCT_F32_QUIET));
    __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(nearest, quiet, _mm256_castps_si256(nan));
}

/* The inverse of oct_load8, each element rounded once. */
OCT_AVX2_INLINE void oct_store8(void *row, int64_t index, __m256 value, octet_dtype dtype) {
    void *at = oct_plain_at(row, index, dtype);
    if (dtype == OCTET_F32) {
        _mm256_storeu_ps(at, value);
    } else if (dtype == OCTET_BF16) {
        __m256i bits = _mm256_srli_epi32(oct_bf16_round8(value), 16);
        __m128i half =
            _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
        _mm_storeu_si128(at, half);
    } else {
        _mm_storeu_si128(at, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    }
}

/* The values of eight codes of E2M1, in the lower bits of words; bits above the fourth do not
 * count. The magnitude is looked up, and the fourth bit is the sign. */
OCT_AVX2_INLINE __m256 oct_e2m1_values8(__m256i words) {
    const __m256 values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(words, oct_word8(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(values, words), _mm256_castsi256_ps(sign));
}

OCT_AVX2_INLINE float oct_sum8(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* As oct_kernels.transpose, for what a wider one leaves over. */
void oct_transpose__avx2(const oct_bytes *out, const oct_bytes *x, int64_t rows, int64_t cols);

#endif
