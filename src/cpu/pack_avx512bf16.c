/* pack_avx512bf16.c - decoding to bf16, 32 elements at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include <string.h>

#include "cpu/avx512.h"

/* bf16 encodings of the magnitudes: those of one exponent field, the mantissas in order. */
#define E4M3_ROW(e)                                                                            \
    (e) * 128, (e) * 128 + 16, (e) * 128 + 32, (e) * 128 + 48, (e) * 128 + 64, (e) * 128 + 80, \
        (e) * 128 + 96, (e) * 128 + 112
#define E5M2_ROW(e) (e) * 128, (e) * 128 + 32, (e) * 128 + 64, (e) * 128 + 96
#define QUIET 0x7fc0

/* Subnormals are multiples of 2^-9; the last code is NaN. */
const uint16_t oct_bf16_of_e4m3[128] = {
    0x0000,        0x3b00,        0x3b80,        0x3bc0,        0x3c00,        0x3c20,
    0x3c40,        0x3c60,        E4M3_ROW(121), E4M3_ROW(122), E4M3_ROW(123), E4M3_ROW(124),
    E4M3_ROW(125), E4M3_ROW(126), E4M3_ROW(127), E4M3_ROW(128), E4M3_ROW(129), E4M3_ROW(130),
    E4M3_ROW(131), E4M3_ROW(132), E4M3_ROW(133), E4M3_ROW(134), 0x4380,        0x4390,
    0x43a0,        0x43b0,        0x43c0,        0x43d0,        0x43e0,        QUIET,
};

/* Subnormals are multiples of 2^-16; the last exponent field holds Inf and NaN. */
const uint16_t oct_bf16_of_e5m2[128] = {
    0x0000,        0x3780,        0x3800,        0x3840,        E5M2_ROW(113), E5M2_ROW(114),
    E5M2_ROW(115), E5M2_ROW(116), E5M2_ROW(117), E5M2_ROW(118), E5M2_ROW(119), E5M2_ROW(120),
    E5M2_ROW(121), E5M2_ROW(122), E5M2_ROW(123), E5M2_ROW(124), E5M2_ROW(125), E5M2_ROW(126),
    E5M2_ROW(127), E5M2_ROW(128), E5M2_ROW(129), E5M2_ROW(130), E5M2_ROW(131), E5M2_ROW(132),
    E5M2_ROW(133), E5M2_ROW(134), E5M2_ROW(135), E5M2_ROW(136), E5M2_ROW(137), E5M2_ROW(138),
    E5M2_ROW(139), E5M2_ROW(140), E5M2_ROW(141), E5M2_ROW(142), 0x7f80,        QUIET,
    QUIET,         QUIET,
};

/* The codes from c on: in place, or, fewer than 32, in `tail` with zeros after them. */
OCT_BF16_INLINE const uint8_t *codes_at(const oct_decode_call *call, int64_t c, int64_t bits,
                                        uint8_t tail[64]) {
    const uint8_t *codes = call->codes + c * bits / 8;
    if (call->count - c >= 32) {
        return codes;
    }
    memset(tail, 0, 64);
    memcpy(tail, codes, (size_t)((call->count - c) * bits + 7) / 8);
    return tail;
}

/* Adds the scale's exponent to all encodings but those of 0, Inf and NaN. */
OCT_BF16_INLINE __m512i add_exponents(const oct_decode_call *call, int64_t c,
                                      __m512i magnitudes) {
    const int16_t *scales = call->scales;
    __m512i exponents = call->shift ? _mm512_set1_epi16(scales[c >> call->shift])
                                    : _mm512_loadu_si512(scales + c);
    __m512i less = _mm512_sub_epi16(magnitudes, _mm512_set1_epi16(1));
    __mmask32 ordinary = _mm512_cmplt_epu16_mask(less, _mm512_set1_epi16(0x7f7f));
    return _mm512_mask_add_epi16(magnitudes, ordinary, magnitudes, exponents);
}

OCT_BF16_INLINE void decode_fp8(const oct_decode_call *call, const uint16_t table[128]) {
    const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 32);
    const __m512i t2 = _mm512_loadu_si512(table + 64), t3 = _mm512_loadu_si512(table + 96);
    uint16_t *out = call->out;
    for (int64_t c = 0; c < call->count; c += 32) {
        uint8_t tail[64];
        const uint8_t *codes = codes_at(call, c, 8, tail);
        __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)codes));
        __mmask32 upper = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x40));
        __m512i low = _mm512_permutex2var_epi16(t0, words, t1);
        __m512i high = _mm512_permutex2var_epi16(t2, words, t3);
        __m512i value = _mm512_mask_blend_epi16(upper, low, high);
        value = call->scales ? add_exponents(call, c, value) : value;
        /* value | (sign & 0x8000) */
        value = _mm512_ternarylogic_epi32(value, _mm512_slli_epi16(words, 8),
                                          _mm512_set1_epi16((short)0x8000), 0xf8);
        _mm512_storeu_si512(out + c, value);
    }
}

OCT_BF16 static void decode_e4m3(const oct_decode_call *call) {
    decode_fp8(call, oct_bf16_of_e4m3);
}

OCT_BF16 static void decode_e5m2(const oct_decode_call *call) {
    decode_fp8(call, oct_bf16_of_e5m2);
}

/* Element times scale has at most 6 bits; blocks are 16 or 32: the conversion is exact. */
OCT_BF16 static void decode_e2m1(const oct_decode_call *call) {
    const float *scales = call->scales;
    uint16_t *out = call->out;
    for (int64_t c = 0; c < call->count; c += 32) {
        uint8_t tail[64];
        const uint8_t *codes = codes_at(call, c, 4, tail);
        bool more = call->count - c > 16;
        __m512 low = oct_e2m1_widen16(codes), high = oct_e2m1_widen16(codes + 8);
        low = _mm512_mul_ps(low, _mm512_set1_ps(scales[c >> call->shift]));
        high =
            _mm512_mul_ps(high, _mm512_set1_ps(more ? scales[(c + 16) >> call->shift] : 0.0f));
        _mm512_storeu_si512(out + c, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

OCT_BF16 static void decode_bf16(const oct_decode_call *call) {
    memcpy(call->out, call->codes, (size_t)call->count * 2);
}

OCT_BF16 static void zip(const oct_panels *panels, int64_t count, const uint16_t *even,
                         const uint16_t *odd) {
    for (int64_t n = 0; n < count; n++) {
        uint32_t *out = panels->out + n * panels->pitch;
        for (int c = 0; c < panels->stride; c += 16) {
            int64_t at = n * panels->used + c;
            __m256i low = _mm256_loadu_si256((const __m256i *)(even + at));
            __m256i high = _mm256_loadu_si256((const __m256i *)(odd + at));
            __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16);
            _mm512_storeu_si512(out + c, _mm512_or_si512(_mm512_cvtepu16_epi32(low), upper));
        }
    }
}

void oct_pack__avx512bf16(oct_table *table) {
    oct_packer *p = &table->gemm.packer;
    p->bf16[OCTET_BF16] = decode_bf16;
    p->bf16[OCTET_E4M3] = decode_e4m3;
    p->bf16[OCTET_E5M2] = decode_e5m2;
    p->bf16[OCTET_E2M1] = decode_e2m1;
    p->zip = zip;
}

#endif
