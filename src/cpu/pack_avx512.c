/* pack_avx512.c - decoding to floats and laying out panels, 16 elements at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"
#include "cpu/decode_loop.h"
#include "format/e8m0.h"

OCT_AVX512_INLINE __m512 widen_bf16(const uint8_t *codes) {
    __m256i words = _mm256_loadu_si256((const __m256i *)codes);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

/* As a half with the same exponent field a value is 2^-8 times too small, subnormals too. The
 * largest magnitude, NaN, becomes a half's NaN first. */
OCT_AVX512_INLINE __m512 widen_e4m3(const uint8_t *codes) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)codes);
    __m128i magnitudes = _mm_and_si128(bytes, _mm_set1_epi8(0x7f));
    __mmask16 nan = _mm_cmpeq_epi8_mask(magnitudes, _mm_set1_epi8(0x7f));
    __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    __m256i halves = _mm256_and_si256(words, _mm256_set1_epi16((short)0xbfff));
    halves = _mm256_mask_set1_epi16(halves, nan, 0x7fff);
    return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f));
}

/* A code is the upper byte of a half. */
OCT_AVX512_INLINE __m512 widen_e5m2(const uint8_t *codes) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)codes);
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}

/* As oct_e8m0_decode. */
OCT_AVX512_INLINE __m512 widen_e8m0(const uint8_t *codes) {
    __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
    __m512i bits = _mm512_slli_epi32(words, 23);
    __mmask16 least = _mm512_testn_epi32_mask(words, words);
    __mmask16 nan = _mm512_cmpeq_epi32_mask(words, _mm512_set1_epi32(255));
    bits = _mm512_mask_set1_epi32(bits, least, (int)OCT_E8M0_LEAST);
    return _mm512_castsi512_ps(_mm512_mask_set1_epi32(bits, nan, (int)OCT_E8M0_NAN));
}

/* Sixteen elements as floats. The format is a constant wherever this is called. */
OCT_AVX512_INLINE __m512 widen(const uint8_t *codes, octet_dtype format) {
    switch (format) {
    case OCTET_BF16:
        return widen_bf16(codes);
    case OCTET_F16:
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)codes));
    case OCTET_E4M3:
        return widen_e4m3(codes);
    case OCTET_E5M2:
        return widen_e5m2(codes);
    case OCTET_E2M1:
        return oct_e2m1_widen16(codes);
    case OCTET_E8M0:
        return widen_e8m0(codes);
    default:
        return _mm512_loadu_ps(codes);
    }
}

OCT_AVX512_INLINE __m512 scale_at(const oct_decode_call *call, int64_t c) {
    const float *scales = call->scales;
    return call->shift ? _mm512_set1_ps(scales[c >> call->shift]) : _mm512_loadu_ps(scales + c);
}

/* Sixteen elements times their scales, from element c on. */
OCT_AVX512_INLINE void put(const oct_decode_call *call, const uint8_t *codes, int64_t c,
                           octet_dtype format) {
    __m512 value = widen(codes, format);
    value = call->scales ? _mm512_mul_ps(value, scale_at(call, c)) : value;
    _mm512_storeu_ps((float *)call->out + c, value);
}

OCT_AVX512_INLINE void decode(const oct_decode_call *call, octet_dtype format, int64_t bits) {
    oct_decode_walk(call, format, bits, 16, put);
}

OCT_AVX512 static void decode_f32(const oct_decode_call *call) {
    decode(call, OCTET_F32, 32);
}

OCT_AVX512 static void decode_bf16(const oct_decode_call *call) {
    decode(call, OCTET_BF16, 16);
}

OCT_AVX512 static void decode_f16(const oct_decode_call *call) {
    decode(call, OCTET_F16, 16);
}

OCT_AVX512 static void decode_e4m3(const oct_decode_call *call) {
    decode(call, OCTET_E4M3, 8);
}

OCT_AVX512 static void decode_e5m2(const oct_decode_call *call) {
    decode(call, OCTET_E5M2, 8);
}

OCT_AVX512 static void decode_e2m1(const oct_decode_call *call) {
    decode(call, OCTET_E2M1, 4);
}

OCT_AVX512 static void decode_e8m0(const oct_decode_call *call) {
    decode(call, OCTET_E8M0, 8);
}

/* Rows 4g .. 4g + 3 of a 16 x 16 square: afterwards word 4q + r of row g + 4r' is word
 * 4q + r' of row 4g + r. */
OCT_AVX512_INLINE void turn_four(__m512i out[4], const uint32_t *rows, int64_t pitch) {
    __m512i r0 = _mm512_loadu_si512(rows), r1 = _mm512_loadu_si512(rows + pitch);
    __m512i r2 = _mm512_loadu_si512(rows + 2 * pitch);
    __m512i r3 = _mm512_loadu_si512(rows + 3 * pitch);
    __m512i low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    __m512i low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    out[0] = _mm512_unpacklo_epi64(low01, low23);
    out[1] = _mm512_unpackhi_epi64(low01, low23);
    out[2] = _mm512_unpacklo_epi64(high01, high23);
    out[3] = _mm512_unpackhi_epi64(high01, high23);
}

/* Sixteen words of sixteen rows: squares of four are turned, then moved to their places. */
OCT_AVX512_INLINE void turn_square(uint32_t *out, int64_t stride, const uint32_t *rows,
                                   int64_t pitch) {
    __m512i q[4][4];
    for (int g = 0; g < 4; g++) {
        turn_four(q[g], rows + 4 * g * pitch, pitch);
    }
    for (int w = 0; w < 4; w++) {
        __m512i low01 = _mm512_shuffle_i32x4(q[0][w], q[1][w], 0x44);
        __m512i high01 = _mm512_shuffle_i32x4(q[0][w], q[1][w], 0xee);
        __m512i low23 = _mm512_shuffle_i32x4(q[2][w], q[3][w], 0x44);
        __m512i high23 = _mm512_shuffle_i32x4(q[2][w], q[3][w], 0xee);
        uint32_t *at = out + w * stride;
        _mm512_storeu_si512(at, _mm512_shuffle_i32x4(low01, low23, 0x88));
        _mm512_storeu_si512(at + 4 * stride, _mm512_shuffle_i32x4(low01, low23, 0xdd));
        _mm512_storeu_si512(at + 8 * stride, _mm512_shuffle_i32x4(high01, high23, 0x88));
        _mm512_storeu_si512(at + 12 * stride, _mm512_shuffle_i32x4(high01, high23, 0xdd));
    }
}

OCT_AVX512 static void turn(uint32_t *panel, int stride, const uint32_t *rows, int64_t pitch,
                            int64_t steps) {
    for (int64_t step = 0; step < steps; step += 16) {
        for (int r = 0; r < stride; r += 16) {
            turn_square(panel + step * stride + r, stride, rows + r * pitch + step, pitch);
        }
    }
}

OCT_AVX512 static void spread(const oct_panels *panels, int64_t count, const float *row) {
    for (int64_t n = 0; n < count; n++) {
        uint32_t *out = panels->out + n * panels->pitch;
        for (int c = 0; c < panels->stride; c += 16) {
            _mm512_storeu_ps(out + c, _mm512_loadu_ps(row + n * panels->used + c));
        }
    }
}

void oct_pack__avx512(oct_table *table) {
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
