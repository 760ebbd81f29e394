/* narrow.h - rounding to, and widening from, a small sign-exponent-mantissa format.
 *
 * A small format is told by its mantissa bits and its exponent bias. Its codes, read as
 * integers without the sign, are in the order of their values and one apart, so rounding to
 * nearest even is integer arithmetic on the float's encoding. That arithmetic is the same in
 * any floating-point environment: FTZ, DAZ and the rounding mode do not reach it.
 */
#ifndef OCT_FORMAT_NARROW_H
#define OCT_FORMAT_NARROW_H

#include "format/bits.h"

/* The code of the value nearest to the float with encoding `magnitude` (sign bit clear), ties
 * to the even code. Subnormal results are rounded once, like the others; too small becomes 0.
 * The result is not limited: past the largest code of the format it goes on counting, so that
 * the caller's minimum with its largest code saturates overflow and Inf. NaN is the caller's.
 * Needs 1 <= mantissa_bits <= 10 and 1 <= bias <= 15. */
static inline uint32_t oct_narrow(uint32_t magnitude, uint32_t mantissa_bits, uint32_t bias) {
    uint32_t least = 128u - bias; /* a float's exponent field at the smallest normal value */
    uint32_t exponent = magnitude >> 23;
    uint32_t scale = exponent > least ? exponent : least;
    /* The leading bit stands at 2^23 up to the smallest normal value and carries the exponent
     * beyond it. A subnormal float gains a leading bit it does not have: it is shifted out. */
    uint32_t significand = (magnitude & 0x007fffffu) + ((scale - least + 1u) << 23);
    uint32_t dropped = 23u - mantissa_bits + scale - exponent;
    dropped = dropped < 31u ? dropped : 31u;
    uint32_t odd = (significand >> dropped) & 1u;
    return (significand + (1u << (dropped - 1u)) - 1u + odd) >> dropped;
}

/* The encoding of the float that `magnitude`, a code without its sign, stands for: exact, and
 * as if every code were finite. One product, whose operands and result are never subnormal
 * floats, so FTZ, DAZ and the rounding mode do not reach it. Same needs as oct_narrow. */
static inline uint32_t oct_widen(uint32_t magnitude, uint32_t mantissa_bits, uint32_t bias) {
    uint32_t exponent = magnitude >> mantissa_bits;
    uint32_t scale = exponent > 1u ? exponent : 1u;
    uint32_t leading = exponent > 0u ? 1u << mantissa_bits : 0u;
    uint32_t significand = (magnitude & ((1u << mantissa_bits) - 1u)) | leading;
    float unit = oct_bits_f32((scale + 127u - bias - mantissa_bits) << 23);
    return oct_f32_bits((float)(int32_t)significand * unit);
}

#endif
