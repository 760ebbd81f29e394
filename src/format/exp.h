/* exp.h - e to a power that is not positive, and the logistic function, in fp32.
 *
 * The same bits on every device and every instruction set: products and sums are rounded one
 * by one (no compiler here may fuse them), the division is IEEE's, and there is no table and no
 * libm. Without branches, so that loops over it become vectors. */
#ifndef OCT_FORMAT_EXP_H
#define OCT_FORMAT_EXP_H

#include "format/bits.h"

#define OCT_EXP_LEAST 104.0f /* e^-104 is below half of the smallest subnormal: 0 */

/* e^-t for t >= 0, within 1 ulp (of a subnormal result: of its last bit); e^-0 is 1, and from
 * OCT_EXP_LEAST on it is 0. NaN gives NaN.
 *
 * -t = n ln 2 + r with |r| <= ln 2 / 2. ln 2 is in two parts, the first of so few bits that its
 * product with n is exact. e^r = 1 + r + r^2 q(r): q errs by less than 2^-28. 2^n is applied in
 * two factors, of which only the second may round. */
static inline float oct_exp_minus(float t) {
    float least = t > OCT_EXP_LEAST ? OCT_EXP_LEAST : t;
    float x = 0.0f - least;
    float shifted = x * 0x1.715476p+0f + 0x1.8p+23f; /* n in the low bits */
    float n = shifted - 0x1.8p+23f;
    float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float q = 0x1.6a23cep-10f;
    q = q * r + 0x1.123a2p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    float e = (q * (r * r) + r) + 1.0f;
    /* n + 256 is not negative; of a NaN it is anything, and the result is NaN all the same. */
    uint32_t above = oct_f32_bits(shifted) - 0x4b400000u + 256u;
    uint32_t half = above >> 1;
    float first = oct_bits_f32((half - 1u) << 23); /* 2^(half - 128) */
    float second = oct_bits_f32((above - half - 1u) << 23);
    return (e * first) * second;
}

/* The logistic function of z and of -z, which add up to 1. */
typedef struct oct_logistic {
    float of, of_minus;
} oct_logistic;

/* By e^-|z|, so that neither overflows and the small one is not a difference of large ones:
 * within 3 ulp each. Of Inf 1 and 0; of NaN NaN. A division each: who reads one has only one.
 */
static inline oct_logistic oct_logistic_of(float z) {
    float e = oct_exp_minus(oct_bits_f32(oct_f32_bits(z) & OCT_F32_MAGNITUDE));
    float whole = 1.0f + e;
    oct_logistic both = {(z < 0.0f ? e : 1.0f) / whole, (z < 0.0f ? 1.0f : e) / whole};
    return both;
}

#endif
