/* e2m1.h - codes of E2M1 by sums of floats, which a GPU has most units for.
 *
 * Without rounding, the code of a magnitude a is the least of 2 a, a + 2, a / 2 + 4 and 7: the
 * steps of 0.5 below 2, of 1 up to 4, of 2 up to 6. Each is added to a float whose last bit is
 * worth one code. Products with 2 and 1 / 2 are exact, so each sum is rounded once, and all to
 * the same whole numbers: the least of the sums is the sum of the least. Nearest even of it is
 * that of format/e2m1.h, and the sum cut off is the code at or below a. The last two are one,
 * 6 + (a / 2 - 2) clipped to [0, 1] by the instruction that makes it.
 *
 * A NaN would become 0; the callers keep it out. */
#ifndef OCT_CUDA_KERNELS_E2M1_H
#define OCT_CUDA_KERNELS_E2M1_H

#include "cuda/kernels/common.h"
#include "cuda/kernels/decode.h"

static inline float oct_magnitude(float x) {
#if OCT_PTX
    return fabsf(x);
#else
    return oct_bits_f32(oct_f32_bits(x) & OCT_F32_MAGNITUDE);
#endif
}

/* a b + c, the product exact. */
static inline float oct_exact_fma(float a, float b, float c) {
#if OCT_PTX
    return __fmaf_rn(a, b, c);
#else
    return a * b + c;
#endif
}

/* a / 2 + c, clipped to [0, 1]. */
static inline float oct_clipped_half(float a, float c) {
#if OCT_PTX
    float out;
    asm("fma.rn.sat.f32 %0, %1, 0f3f000000, %2;" : "=f"(out) : "f"(a), "f"(c));
    return out;
#else
    float value = a * 0.5f + c;
    return value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
#endif
}

/* a + base, whose last bit is worth 1: nearest even, or cut off. */
template <bool CUT> static inline float oct_whole_sum(float a, float base) {
#if OCT_PTX
    return CUT ? __fadd_rz(a, base) : __fadd_rn(a, base);
#else
    return CUT ? base + (float)(int)(a < 64.0f ? a : 64.0f) : a + base;
#endif
}

/* a b + base likewise, the product exact. */
template <bool CUT> static inline float oct_whole_sum(float a, float b, float base) {
#if OCT_PTX
    return CUT ? __fmaf_rz(a, b, base) : __fmaf_rn(a, b, base);
#else
    return oct_whole_sum<CUT>(a * b, base);
#endif
}

static inline uint32_t oct_least_of(float a, float b, float c) {
    uint32_t x = oct_f32_bits(a), y = oct_f32_bits(b), z = oct_f32_bits(c);
#if OCT_PTX
    return __vimin3_u32(x, y, z);
#else
    x = x < y ? x : y;
    return x < z ? x : z;
#endif
}

/* A word whose low 16 bits are the code of the magnitude a. Where the caller knows that a is
 * less than 7, its code is at most 7 without clipping. */
template <bool CUT, bool CLIP> static inline uint32_t oct_e2m1_sum(float a) {
    constexpr float base = 0x1p23f;
    float last = CLIP ? oct_whole_sum<CUT>(oct_clipped_half(a, -2.0f), base + 6.0f)
                      : oct_whole_sum<CUT>(a, 0.5f, base + 4.0f);
    return oct_least_of(oct_whole_sum<CUT>(a, 2.0f, base), oct_whole_sum<CUT>(a, base + 2.0f),
                        last);
}

/* Byte i of a word as a float; base is the encoding of 2^23. */
static inline float oct_byte_float(uint32_t word, int i, uint32_t base) {
    return oct_bits_f32(oct_pick_bytes(word, base, 0x7540u + (uint32_t)i)) - 0x1p23f;
}

/* What format/e2m1.h cuts off: the magnitude a plus `byte` 256ths of its step. */
static inline float oct_e2m1_raised(float a, float byte) {
    int exponent = (int)(oct_f32_bits(a) & 0x7f800000u) - (9 << 23);
    exponent = exponent > 118 << 23 ? exponent : 118 << 23;
    return oct_exact_fma(byte, oct_bits_f32((uint32_t)exponent), a);
}

/* Four codes in the low half of a word, of the low bits of as many sums; the rest is left open.
 */
static inline uint32_t oct_e2m1_quad(const uint32_t *sums) {
    uint32_t low = sums[0] + (sums[1] << 4), high = sums[2] + (sums[3] << 4);
    return low + (high << 8);
}

/* 8 codes with the signs of 8 16-bit floats, two a word. */
static inline uint32_t oct_e2m1_signed(const uint32_t quads[2], const uint32_t *words) {
    uint32_t first = oct_pick_signs(words[0], words[1], 0x7351);
    uint32_t last = oct_pick_signs(words[2], words[3], 0x7351);
    uint32_t even = oct_pick_bytes(first, last, 0x5410);
    uint32_t odd = oct_pick_bytes(first, last, 0x7632);
    uint32_t codes = oct_pick_bytes(quads[0], quads[1], 0x5410);
    return oct_or_some(oct_or_some(codes, even, 0x08080808u), odd, 0x80808080u);
}

/* What the codes of a quad are worth without signs, as bf16, times the scale that both halves
 * of `scale` hold: (8 + v) scale - 8 scale, which is exact. The bf16 8 + v have one high byte,
 * and low bytes that the codes pick. */
static inline void oct_e2m1_values(uint32_t out[2], uint32_t quad, uint32_t scale) {
    uint32_t low = oct_pick_bytes(0x18100800u, 0x60403020u, quad);
    uint32_t base = oct_times2(scale, 0xc100c100u);
    out[0] = oct_sum2(oct_pick_bytes(low, 0x41414141u, 0x4140), scale, base);
    out[1] = oct_sum2(oct_pick_bytes(low, 0x41414141u, 0x4342), scale, base);
}

#endif
