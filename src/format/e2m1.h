/* e2m1.h - FP4: 1/2/1, bias 1; 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. */
#ifndef OCT_FORMAT_E2M1_H
#define OCT_FORMAT_E2M1_H

#include "format/narrow.h"

/* Nearest, ties to the even code, saturating: |x| above 6 and Inf become +-6 (0x7, 0xf). Any
 * NaN becomes 0x7, +6, for there is no other code for it. The one subnormal, 0.5, is rounded
 * to properly; -0 and negative underflow become 0x8. The code is in the low four bits.
 * Integers only: FTZ, DAZ and the rounding mode have no effect. */
static inline uint8_t oct_e2m1_encode(float value) {
    uint32_t bits = oct_f32_bits(value);
    uint32_t magnitude = bits & OCT_F32_MAGNITUDE;
    uint32_t nearest = oct_narrow(magnitude, 1, 1);
    nearest = (nearest < 0x7u ? nearest : 0x7u) | (bits >> 28 & 0x8u);
    return (uint8_t)(magnitude > OCT_F32_INF ? 0x7u : nearest);
}

/* Stochastic rounding by one random byte: the value at or below t = fl32(a + u step), where
 * a = |x|, u = random / 256 and step is the distance from a code to the next at a. With f the
 * part of that step that a has gone, the bytes from 256 (1 - f) on round up: floor(256 f) of
 * the 256, or one more where t is itself rounded up onto the next code. So a value that has a
 * code gets that code whatever the byte. Saturating: from 6 on, and Inf, become +-6. NaN
 * becomes 0x7. The sign is kept, also of what becomes zero: 0x8.
 * The sum is a float's, so the rounding mode must be to nearest even. FTZ and DAZ have no
 * effect: u step is 0 or at least 2^-9, a sum that no subnormal float changes, and without it
 * every subnormal float is code 0. */
static inline uint8_t oct_e2m1_encode_stochastic(float value, uint8_t random) {
    uint32_t bits = oct_f32_bits(value);
    uint32_t magnitude = bits & OCT_F32_MAGNITUDE;
    uint32_t exponent = magnitude >> 23;
    /* step / 256: 2^-9 below 2, twice that per power of two from there. */
    float part = oct_bits_f32(((exponent > 127u ? exponent : 127u) - 9u) << 23);
    uint32_t sum = oct_f32_bits(oct_bits_f32(magnitude) + (float)random * part);
    /* Cut off: from 1, code 2, a code is the exponent and first mantissa bit of the sum; 0.5
     * and 0 lie one and two codes below. A NaN is a sum past the largest code. */
    uint32_t code = ((sum > 0x3f800000u ? sum : 0x3f800000u) >> 22) - 252u;
    code = (code < 0x7u ? code : 0x7u) - (sum < 0x3f800000u) - (sum < 0x3f000000u);
    return (uint8_t)(code | (magnitude > OCT_F32_INF ? 0u : bits >> 28 & 0x8u));
}

/* Exact, -0 included. Only the low four bits of `code` are read. */
static inline float oct_e2m1_decode(uint8_t code) {
    return oct_bits_f32(oct_widen(code & 0x7u, 1, 1) | (code & 0x8u) << 28);
}

#endif
