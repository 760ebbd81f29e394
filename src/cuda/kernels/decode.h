/* decode.h - values of codes, many at a time: as floats, and as bf16 times block scales. */
#ifndef OCT_CUDA_KERNELS_DECODE_H
#define OCT_CUDA_KERNELS_DECODE_H

#include "cuda/kernels/common.h"

/* Two codes of E4M3 or E5M2, the first in the low byte. */
static inline void oct_decode_two(float *out, uint32_t codes, uint8_t format) {
    uint32_t halves;
    if (format == OCTET_E5M2) { /* the upper byte of an f16 */
        halves = (codes & 0xffu) << 8 | (codes & 0xff00u) << 16;
    } else {
#if OCT_PTX && __CUDA_ARCH__ >= 890
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)codes));
#else
        out[0] = oct_e4m3_decode((uint8_t)codes);
        out[1] = oct_e4m3_decode((uint8_t)(codes >> 8));
        return;
#endif
    }
#if OCT_PTX
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2;"
        "  cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(out[0]), "=f"(out[1])
        : "r"(halves));
#else
    out[0] = oct_f16_decode(oct_low_u16(halves));
    out[1] = oct_f16_decode(oct_high_u16(halves));
#endif
}

/* 8 codes of a byte each. */
static inline void oct_decode_eight(float *out, const uint2 &codes, uint8_t format) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        oct_decode_two(out + 2 * i, (i < 2 ? codes.x : codes.y) >> (i % 2 * 16) & 0xffffu,
                       format);
    }
}

/* Two bf16 times two plus two, rounded once; products are exact as floats, and so are sums. */
static inline uint32_t oct_sum2(uint32_t a, uint32_t b, uint32_t c) {
#if OCT_PTX
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
#else
    float low = oct_bits_f32(a << 16) * oct_bits_f32(b << 16) + oct_bits_f32(c << 16);
    float high = oct_bits_f32(a & 0xffff0000u) * oct_bits_f32(b & 0xffff0000u) +
                 oct_bits_f32(c & 0xffff0000u);
    return oct_bf16_pair(low, high);
#endif
}

/* Two bf16 of a word times two: exact, or rounded to nearest even. -0 changes no product. */
static inline uint32_t oct_times2(uint32_t a, uint32_t b) {
    return oct_sum2(a, b, 0x80008000u);
}

/* 8 codes of a byte each as bf16, pair i times factors[i]. */
template <int FORMAT>
static inline uint4 oct_eight_bytes(const uint2 &codes, const uint32_t factors[4]) {
    float x[8];
    uint32_t pairs[4];
    oct_decode_eight(x, codes, FORMAT);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pairs[i] = oct_times2(oct_bf16_pair(x[2 * i], x[2 * i + 1]), factors[i]);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

/* Nibbles i and i + 4 as bf16, times two factors. Exponent and mantissa of a nibble lie where a
 * bf16 has them, 2^126 too small; products have 6 bits. */
static inline uint32_t oct_nibble_pair(uint32_t codes, int i, uint32_t factors) {
    uint32_t low = i < 2 ? codes << (6 - 4 * i) : codes >> (4 * i - 6);
    uint32_t bits = (low & 0x01c001c0u) | (codes << (12 - 4 * i) & 0x80008000u);
    return oct_times2(oct_times2(bits, 0x7e807e80u), factors);
}

/* 8 nibbles times the factor that both halves of a word hold. */
static inline uint4 oct_eight_nibbles(uint32_t codes, uint32_t factor) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pairs[i] = oct_nibble_pair(codes, i, factor);
    }
    return {
        oct_pick_bytes(pairs[0], pairs[1], 0x5410), oct_pick_bytes(pairs[2], pairs[3], 0x5410),
        oct_pick_bytes(pairs[0], pairs[1], 0x7632), oct_pick_bytes(pairs[2], pairs[3], 0x7632)};
}

/* An E4M3 scale in both halves of a word, as bf16. */
static inline uint32_t oct_scale_pair(uint8_t code) {
    float x[2];
    oct_decode_two(x, code, OCTET_E4M3);
    uint32_t bits = oct_f32_bits(x[0]);
    return oct_pick_bytes(bits, bits, 0x3232);
}

/* 8 x 8 nibbles: nibble i of word r becomes nibble r of word i. */
static inline void oct_turn_nibbles(uint32_t x[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        uint32_t a = x[i], b = x[i + 1];
        x[i] = (a & 0x0f0f0f0fu) | (b << 4 & 0xf0f0f0f0u);
        x[i + 1] = (a >> 4 & 0x0f0f0f0fu) | (b & 0xf0f0f0f0u);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int i = k + (k & 2);
        uint32_t a = x[i], b = x[i + 2];
        x[i] = oct_pick_bytes(a, b, 0x6240);
        x[i + 2] = oct_pick_bytes(a, b, 0x7351);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t a = x[i], b = x[i + 4];
        x[i] = oct_pick_bytes(a, b, 0x5410);
        x[i + 4] = oct_pick_bytes(a, b, 0x7632);
    }
}

#endif
