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

/* a b + base, whose last bit is worth 1, the product exact: nearest even, or cut off. */
template <bool CUT> static inline float oct_whole_sum(float a, float b, float base) {
#if OCT_PTX
    return CUT ? __fmaf_rz(a, b, base) : __fmaf_rn(a, b, base);
#else
    float product = a * b;
    return CUT ? base + (float)(int)(product < 64.0f ? product : 64.0f) : product + base;
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

/* A word whose low 16 bits are the code of the magnitude a. */
template <bool CUT> static inline uint32_t oct_e2m1_sum(float a) {
    constexpr float base = 0x1p23f;
    return oct_least_of(oct_whole_sum<CUT>(a, 2.0f, base),
                        oct_whole_sum<CUT>(a, 1.0f, base + 2.0f),
                        oct_whole_sum<CUT>(oct_clipped_half(a, -2.0f), 1.0f, base + 6.0f));
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

/* N codes, 4 or 8, of the low bits of as many sums, in a word. */
template <int N> static inline uint32_t oct_e2m1_codes(const uint32_t *sums) {
    uint32_t quads[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        uint32_t low = sums[i] + (sums[i + 1] << 4), high = sums[i + 2] + (sums[i + 3] << 4);
        quads[i / 4] = low + (high << 8);
    }
    return oct_pick_bytes(quads[0], quads[1], 0x5410);
}

/* Sign bits where 8 codes have them, from words of two 16-bit floats; other bits are left
 * open. */
static inline uint32_t oct_e2m1_signs(const uint32_t *words) {
    uint32_t first = oct_pick_bytes(words[0], words[1], 0x7351);
    uint32_t last = oct_pick_bytes(words[2], words[3], 0x7351);
    uint32_t even = oct_pick_bytes(first, last, 0x5410);
    uint32_t odd = oct_pick_bytes(first, last, 0x7632);
    return (odd & 0x80808080u) | (even >> 4 & ~0x80808080u);
}

#endif
