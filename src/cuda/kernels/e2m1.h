/* e2m1.h - codes of E2M1: to nearest by sums of floats, at random by halves.
 *
 * Without rounding, the code of a magnitude a is the least of 2 a, a + 2, a / 2 + 4 and 7: the
 * steps of 0.5 below 2, of 1 up to 4, of 2 up to 6. Each is added to a float whose last bit is
 * worth one code. Products with 2 and 1 / 2 are exact, so each sum is rounded once, and all to
 * the same whole numbers: the least of the sums is the sum of the least. Nearest even of it is
 * that of format/e2m1.h. The last two are one, 6 + (a / 2 - 2) clipped to [0, 1] by the
 * instruction that makes it.
 *
 * The f16 of a / 2^14 has E2M1's exponents, and its subnormals below 1 as E2M1 has: its bits
 * from 9 on are the code at or below a, and the 9 bits under them say how far it is to the
 * next. So a byte that rounds at random is added to them, in integers, two elements a word.
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

static inline uint32_t oct_least_of(float a, float b, float c) {
    uint32_t x = oct_f32_bits(a), y = oct_f32_bits(b), z = oct_f32_bits(c);
#if OCT_PTX
    return __vimin3_u32(x, y, z);
#else
    x = x < y ? x : y;
    return x < z ? x : z;
#endif
}

/* A word whose low 16 bits are the code of the magnitude a, to nearest. Where the caller knows
 * that a is less than 7, its code is at most 7 without clipping. */
template <bool CLIP> static inline uint32_t oct_e2m1_sum(float a) {
    constexpr float base = 0x1p23f;
    float last =
        CLIP ? oct_clipped_half(a, -2.0f) + (base + 6.0f) : oct_exact_fma(a, 0.5f, base + 4.0f);
    return oct_least_of(oct_exact_fma(a, 2.0f, base), a + (base + 2.0f), last);
}

/* Four codes in the low half of a word, of the low bits of as many sums; the rest is left open.
 */
static inline uint32_t oct_e2m1_quad(const uint32_t *sums) {
    uint32_t low = sums[0] + (sums[1] << 4), high = sums[2] + (sums[3] << 4);
    return low + (high << 8);
}

/* ---- at random ------------------------------------------------------------------------- */

/* a / 2^14 for a magnitude a, and what makes up for a rounding that format/e2m1.h has: there
 * the sum of a and its share of the step is a float to nearest. Below 1/4 it has fewer places
 * than a, and is 1/2 from 2^-26 less on. So much is added; cut off, it changes nothing from 1/4
 * on. */
static inline float oct_e2m1_small(float a) {
#if OCT_PTX
    return __fmaf_rz(a, 0x1p-14f, 0x1p-40f);
#else
    double sum = (double)a * 0x1p-14 + 0x1p-40;
    float near = (float)sum;
    return (double)near > sum ? oct_bits_f32(oct_f32_bits(near) - 1u) : near;
#endif
}

/* A magnitude as f16, cut off. */
static inline uint32_t oct_f16_cut(float a) {
    uint32_t bits = oct_f32_bits(a);
    if (a < 0x1p-14f) {
        return (uint32_t)(a * 0x1p24f);
    }
    return a < 65536.0f ? (bits >> 13) - (112u << 10) : bits < OCT_F32_INF ? 0x7bffu : 0x7c00u;
}

/* Two of them in a word. */
static inline uint32_t oct_f16_cut_pair(float low, float high) {
#if OCT_PTX
    uint32_t word;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return oct_f16_cut(low) | oct_f16_cut(high) << 16;
#endif
}

/* Codes in bits 9 to 11 of a word's halves: of two magnitudes that oct_e2m1_small gave, by the
 * random bytes that are the low ones of each half of `bytes`. */
static inline uint32_t oct_e2m1_raised(float low, float high, uint32_t bytes) {
    return oct_least_halves(oct_f16_cut_pair(low, high) + 2u * bytes, 0x0fff0fffu);
}

/* A quad of them: elements 0 and 2 in `even`, 1 and 3 in `odd`. */
static inline uint32_t oct_e2m1_quad_of(uint32_t even, uint32_t odd) {
    uint32_t pairs = oct_choose_bits(even >> 1, odd << 3, 0x0fff0fffu);
    return oct_pick_bytes(pairs, pairs, 0x0031);
}

/* ---- signs and values ------------------------------------------------------------------ */

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
