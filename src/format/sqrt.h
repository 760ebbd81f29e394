/* sqrt.h - the square root of a float, correctly rounded, as IEEE has it. */
#ifndef OCT_FORMAT_SQRT_H
#define OCT_FORMAT_SQRT_H

#include "format/bits.h"

/* In integers, so that no library is needed and no compiler may do otherwise. One a row is
 * computed, so it need not be fast. The root of a number of 24 bits is never halfway between
 * two floats: one bit more than they have decides. */
static inline float oct_sqrt_exact(float x) {
    uint32_t bits = oct_f32_bits(x);
    if (bits == 0x80000000u || bits == 0 || bits == OCT_F32_INF) {
        return x;
    }
    if (bits > OCT_F32_INF) { /* NaN, or less than 0 */
        return oct_bits_f32(0x7fc00000u);
    }
    /* x = m 2^e, m of 24 bits; then of 25 where that makes e odd, for e - 25 to be even. */
    int exponent = (int)(bits >> 23), e = (exponent ? exponent : 1) - 150;
    uint64_t m = (bits & 0x007fffffu) | (exponent ? 0x00800000u : 0u);
    while (m < 0x00800000u) {
        m <<= 1;
        e--;
    }
    if (!(e & 1)) {
        m <<= 1;
        e--;
    }
    uint64_t square = m << 25, root = 0; /* root: 25 bits */
    for (uint64_t bit = (uint64_t)1 << 24; bit; bit >>= 1) {
        uint64_t larger = root | bit;
        root = larger * larger <= square ? larger : root;
    }
    uint32_t rounded = (uint32_t)((root + 1) >> 1); /* of 24 bits, or 2^24 */
    int field = (e - 25) / 2 + 1 + 23 + 127;
    return oct_bits_f32(((uint32_t)field << 23) + (rounded - 0x00800000u));
}

/* A GPU has the instruction. */
static inline float oct_sqrt(float x) {
#if defined(__CUDA_ARCH__) && !defined(OCTET_EMULATED)
    return __fsqrt_rn(x);
#else
    return oct_sqrt_exact(x);
#endif
}

#endif
