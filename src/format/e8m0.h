/* e8m0.h - block scales: a power of two, 2^(code - 127); 255 is NaN. */
#ifndef OCT_FORMAT_E8M0_H
#define OCT_FORMAT_E8M0_H

#include "format/bits.h"

#define OCT_E8M0_NAN 0x7fffffffu   /* what code 255 is as a float */
#define OCT_E8M0_LEAST 0x00400000u /* 2^-127, a subnormal float */

/* Rounds up: the least power of two that is not below `value`, limited to 2^-127 .. 2^127.
 * So a power of two is kept, anything between two goes to the larger one, subnormals likewise
 * (2^-127 is code 0, the next float is code 1); above 2^127 and Inf become 254. There is no
 * zero and no sign: 0, -0 and everything negative, -Inf included, become 0. NaN becomes 255,
 * whatever its sign. Integers only: FTZ, DAZ and the rounding mode have no effect. */
static inline uint8_t oct_e8m0_encode(float value) {
    uint32_t bits = oct_f32_bits(value);
    uint32_t magnitude = bits & OCT_F32_MAGNITUDE;
    uint32_t up = (magnitude + 0x007fffffu) >> 23; /* the exponent field, plus 1 if inexact */
    up = up < 254u ? up : 254u;
    up = magnitude <= OCT_E8M0_LEAST || bits > OCT_F32_MAGNITUDE ? 0u : up;
    return (uint8_t)(magnitude > OCT_F32_INF ? 255u : up);
}

/* Exact. Code 0 is the subnormal float 2^-127 and is returned whole under FTZ and DAZ, but
 * arithmetic on it there would see zero. 255 becomes the quiet NaN 0x7fffffff. */
static inline float oct_e8m0_decode(uint8_t code) {
    uint32_t bits = code == 0 ? OCT_E8M0_LEAST : (uint32_t)code << 23;
    return oct_bits_f32(code == 255 ? OCT_E8M0_NAN : bits);
}

/* 2^(127 - code), the multiplier that undoes the scale: exact. For code 254 it is the subnormal
 * float 2^-127, to which the same holds. 255 becomes the quiet NaN 0x7fffffff. */
static inline float oct_e8m0_reciprocal(uint8_t code) {
    uint32_t bits = code == 254 ? OCT_E8M0_LEAST : (254u - code) << 23;
    return oct_bits_f32(code == 255 ? OCT_E8M0_NAN : bits);
}

#endif
