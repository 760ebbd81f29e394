/* bits.h - a float and its encoding, seen as one. */
#ifndef OCT_FORMAT_BITS_H
#define OCT_FORMAT_BITS_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

/* Formats are exact to the bit, and so is the arithmetic of scales. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "compile without -ffast-math, -Ofast and -ffinite-math-only: they change results"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "floats must be computed as floats: on 32-bit x86 compile with -msse2 -mfpmath=sse"
#endif

static_assert(sizeof(float) == 4, "float is IEEE binary32");

#define OCT_F32_MAGNITUDE 0x7fffffffu /* every bit but the sign */
#define OCT_F32_INF 0x7f800000u       /* a magnitude above it is a NaN */
#define OCT_F32_QUIET 0x00400000u     /* the bit that makes a NaN a quiet one */

/* The encoding of `value`, unchanged: every NaN keeps its payload. */
static inline uint32_t oct_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The inverse of oct_f32_bits. */
static inline float oct_bits_f32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The upper and the lower half of a word. */
static inline uint16_t oct_high_u16(uint32_t bits) {
    return (uint16_t)(bits >> 16);
}

static inline uint16_t oct_low_u16(uint32_t bits) {
    return (uint16_t)(bits & 0xffffu);
}

#endif
