/* pack_avx2.c - decoding to floats and laying out panels, 8 elements at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include <string.h>

#include "cpu/avx2.h"
#include "cpu/decode_loop.h"
#include "format/e8m0.h"

OCT_AVX2_INLINE __m256 widen_bf16(const uint8_t *codes) {
    __m128i words = _mm_loadu_si128((const __m128i *)codes);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

/* As a half with the same exponent field a value is 2^-8 times too small, subnormals too. The
 * largest magnitude, NaN, becomes a half's NaN first. */
OCT_AVX2_INLINE __m256 widen_e4m3(const uint8_t *codes) {
    __m128i bytes = _mm_loadl_epi64((const __m128i *)codes);
    __m128i words = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
    __m128i halves = _mm_and_si128(words, _mm_set1_epi16((short)0xbfff));
    __m128i magnitudes = _mm_and_si128(words, _mm_set1_epi16(0x3f80));
    __m128i nan = _mm_cmpeq_epi16(magnitudes, _mm_set1_epi16(0x3f80));
    halves = _mm_or_si128(halves, _mm_and_si128(nan, _mm_set1_epi16(0x7fff)));
    return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0f));
}

/* A code is the upper byte of a half. */
OCT_AVX2_INLINE __m256 widen_e5m2(const uint8_t *codes) {
    __m128i bytes = _mm_loadl_epi64((const __m128i *)codes);
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
}

/* Each lane shifts its four bits down. */
OCT_AVX2_INLINE __m256 widen_e2m1(const uint8_t *codes) {
    int32_t bits;
    memcpy(&bits, codes, sizeof bits);
    __m256i words = _mm256_srlv_epi32(_mm256_set1_epi32(bits),
                                      _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return oct_e2m1_values8(words);
}

/* As oct_e8m0_decode. */
OCT_AVX2_INLINE __m256 widen_e8m0(const uint8_t *codes) {
    __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)codes));
    __m256i least = _mm256_cmpeq_epi32(words, _mm256_setzero_si256());
    __m256i nan = _mm256_cmpeq_epi32(words, _mm256_set1_epi32(255));
    __m256i bits = _mm256_slli_epi32(words, 23);
    bits = _mm256_or_si256(bits, _mm256_and_si256(least, _mm256_set1_epi32(OCT_E8M0_LEAST)));
    bits = _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi32(OCT_E8M0_NAN)));
    return _mm256_castsi256_ps(bits);
}

/* Eight elements as floats. The format is a constant wherever this is called. */
OCT_AVX2_INLINE __m256 widen(const uint8_t *codes, octet_dtype format) {
    switch (format) {
    case OCTET_BF16:
        return widen_bf16(codes);
    case OCTET_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)codes));
    case OCTET_E4M3:
        return widen_e4m3(codes);
    case OCTET_E5M2:
        return widen_e5m2(codes);
    case OCTET_E2M1:
        return widen_e2m1(codes);
    case OCTET_E8M0:
        return widen_e8m0(codes);
    default:
        return _mm256_loadu_ps((const float *)codes);
    }
}

OCT_AVX2_INLINE __m256 scale_at(const oct_decode_call *call, int64_t c) {
    const float *scales = call->scales;
    return call->shift ? _mm256_set1_ps(scales[c >> call->shift]) : _mm256_loadu_ps(scales + c);
}

/* Eight elements times their scales, from element c on. */
OCT_AVX2_INLINE void put(const oct_decode_call *call, const uint8_t *codes, int64_t c,
                         octet_dtype format) {
    __m256 value = widen(codes, format);
    value = call->scales ? _mm256_mul_ps(value, scale_at(call, c)) : value;
    _mm256_storeu_ps((float *)call->out + c, value);
}

OCT_AVX2_INLINE void decode(const oct_decode_call *call, octet_dtype format, int64_t bits) {
    oct_decode_walk(call, format, bits, 8, put);
}

OCT_AVX2 static void decode_f32(const oct_decode_call *call) {
    decode(call, OCTET_F32, 32);
}

OCT_AVX2 static void decode_bf16(const oct_decode_call *call) {
    decode(call, OCTET_BF16, 16);
}

OCT_AVX2 static void decode_f16(const oct_decode_call *call) {
    decode(call, OCTET_F16, 16);
}

OCT_AVX2 static void decode_e4m3(const oct_decode_call *call) {
    decode(call, OCTET_E4M3, 8);
}

OCT_AVX2 static void decode_e5m2(const oct_decode_call *call) {
    decode(call, OCTET_E5M2, 8);
}

OCT_AVX2 static void decode_e2m1(const oct_decode_call *call) {
    decode(call, OCTET_E2M1, 4);
}

OCT_AVX2 static void decode_e8m0(const oct_decode_call *call) {
    decode(call, OCTET_E8M0, 8);
}

/* Four rows of eight words: word 4h + w of row r becomes word r of half h of out[w]. */
OCT_AVX2_INLINE void turn_four(__m256 out[4], const float *rows, int64_t pitch) {
    __m256 r0 = _mm256_loadu_ps(rows), r1 = _mm256_loadu_ps(rows + pitch);
    __m256 r2 = _mm256_loadu_ps(rows + 2 * pitch), r3 = _mm256_loadu_ps(rows + 3 * pitch);
    __m256 low01 = _mm256_unpacklo_ps(r0, r1), high01 = _mm256_unpackhi_ps(r0, r1);
    __m256 low23 = _mm256_unpacklo_ps(r2, r3), high23 = _mm256_unpackhi_ps(r2, r3);
    out[0] = _mm256_shuffle_ps(low01, low23, 0x44);
    out[1] = _mm256_shuffle_ps(low01, low23, 0xee);
    out[2] = _mm256_shuffle_ps(high01, high23, 0x44);
    out[3] = _mm256_shuffle_ps(high01, high23, 0xee);
}

OCT_AVX2_INLINE void turn_square(float *out, int64_t stride, const float *rows, int64_t pitch) {
    __m256 upper[4], lower[4];
    turn_four(upper, rows, pitch);
    turn_four(lower, rows + 4 * pitch, pitch);
    for (int w = 0; w < 4; w++) {
        _mm256_storeu_ps(out + w * stride, _mm256_permute2f128_ps(upper[w], lower[w], 0x20));
        _mm256_storeu_ps(out + (w + 4) * stride,
                         _mm256_permute2f128_ps(upper[w], lower[w], 0x31));
    }
}

OCT_AVX2 static void turn(uint32_t *panel, int stride, const uint32_t *rows, int64_t pitch,
                          int64_t steps) {
    int64_t whole = oct_round_up(steps, 16);
    for (int64_t step = 0; step < whole; step += 8) {
        for (int r = 0; r < stride; r += 8) {
            turn_square((float *)panel + step * stride + r, stride,
                        (const float *)rows + r * pitch + step, pitch);
        }
    }
}

OCT_AVX2 static void spread(const oct_panels *panels, int64_t count, const float *row) {
    for (int64_t n = 0; n < count; n++) {
        float *out = (float *)(panels->out + n * panels->pitch);
        for (int c = 0; c < panels->stride; c += 8) {
            _mm256_storeu_ps(out + c, _mm256_loadu_ps(row + n * panels->used + c));
        }
    }
}

void oct_pack__avx2(oct_table *table) {
    oct_packer *p = &table->gemm.packer;
    p->f32[OCTET_F32] = decode_f32;
    p->f32[OCTET_BF16] = decode_bf16;
    p->f32[OCTET_F16] = decode_f16;
    p->f32[OCTET_E4M3] = decode_e4m3;
    p->f32[OCTET_E5M2] = decode_e5m2;
    p->f32[OCTET_E2M1] = decode_e2m1;
    p->f32[OCTET_E8M0] = decode_e8m0;
    p->turn = turn;
    p->spread = spread;
}

#endif
