/* scaling.h - from an amax to a scale, one definition per scheme.
 *
 * All arithmetic is fp32, to nearest even, each operation rounded on its own. Scales and amaxes
 * may be subnormal floats: the floating-point environment must be the default one (no FTZ, no
 * DAZ, to nearest). Amaxes are not negative and not NaN. */
#ifndef OCT_FORMAT_SCALING_H
#define OCT_FORMAT_SCALING_H

#include <float.h>

#include "format/e4m3.h"
#include "format/e8m0.h"
#include "octet.h"

#define OCT_SIXTH 0x3e2aaaabu /* fl32(1/6), of E2M1's largest value */

/* a where it is less than b; b otherwise, also where a is NaN. */
static inline float oct_least(float a, float b) {
    return a < b ? a : b;
}

/* The largest finite value of an element format, or of an input's dtype. */
static inline float oct_largest(uint8_t dtype) {
    switch (dtype) {
    case OCTET_E4M3:
        return 448.0f;
    case OCTET_E5M2:
        return 57344.0f;
    case OCTET_BF16:
        return oct_bits_f32(0x7f7f0000u);
    case OCTET_F16:
        return 65504.0f;
    default:
        return FLT_MAX;
    }
}

/* One fp32 scale of a tensor or of a block of 128. */
typedef struct oct_scale_rule {
    float aim;      /* what the amax is scaled to: the format's largest value */
    float epsilon;  /* the least amax a scale is made from */
    float overflow; /* the scale of an amax too small to divide by */
    uint32_t pow2;  /* the mantissa is cut off */
} oct_scale_rule;

/* By its bits: gcc 13 takes a comparison with FLT_MAX for one that infinity does not pass. */
static inline bool oct_is_finite(float x) {
    return (oct_f32_bits(x) & 0x7f800000u) != 0x7f800000u;
}

/* aim / amax; 1 for an amax of 0 or Inf, pow2 or not. */
static inline float oct_scale_of(float amax, const oct_scale_rule *rule) {
    amax = amax < rule->epsilon ? rule->epsilon : amax;
    if (amax == 0.0f || !oct_is_finite(amax)) {
        return 1.0f;
    }
    float scale = rule->aim / amax;
    scale = oct_is_finite(scale) ? scale : rule->overflow;
    return rule->pow2 ? oct_bits_f32(oct_f32_bits(scale) & 0xff800000u) : scale;
}

/* fl32(1 / largest) of an element format. An amax times it gives the scale that the amax over
 * the largest gives, for every float. */
static inline float oct_mx_unit(uint8_t format) {
    return oct_bits_f32(format == OCTET_E4M3   ? 0x3b124925u
                        : format == OCTET_E5M2 ? 0x37924925u
                                               : OCT_SIXTH);
}

/* The E8M0 scale of a block of 32. 0 gives code 0, Inf 254. */
static inline uint8_t oct_mx_code(float amax, float unit) {
    return oct_e8m0_encode(amax * unit);
}

/* What the blocks of an NVFP4 tensor, row or column share. */
typedef struct oct_nv_global {
    float amax;
    float encode; /* S_enc */
    float decode; /* S_dec = 1 / S_enc */
    float sixth;  /* S_enc / 6, what a block's amax is multiplied by */
} oct_nv_global;

/* What an amax is scaled to: the largest code times the largest block scale. */
static inline float oct_nv_aim(const octet_quantizer *q) {
    return q->four_over_six && q->max256 ? 6.0f * 256.0f : 6.0f * 448.0f;
}

/* An amax of 0 or Inf gives S_enc = 1; one too small to divide by gives FLT_MAX. */
static inline oct_nv_global oct_nv_global_of(float amax, float aim) {
    float encode = oct_least(aim / amax, FLT_MAX);
    encode = amax == 0.0f || encode == 0.0f ? 1.0f : encode;
    oct_nv_global global = {amax, encode, 1.0f / encode, encode * oct_bits_f32(OCT_SIXTH)};
    return global;
}

/* The E4M3 scale of a block of 16. */
static inline uint8_t oct_nv_code(float amax, const oct_nv_global *global) {
    return oct_e4m3_encode(oct_least(amax * global->sixth, FLT_MAX));
}

/* What the elements of a block with that scale are multiplied by; FLT_MAX where the scale
 * underflowed to 0. */
static inline float oct_nv_multiplier(uint8_t code, const oct_nv_global *global) {
    return oct_least(1.0f / (oct_e4m3_decode(code) * global->decode), FLT_MAX);
}

/* fl32(1 / aim), the last factor of what a block decodes by. */
static inline float oct_nv_unit(const octet_quantizer *q) {
    return 1.0f / oct_nv_aim(q);
}

/* ---- delayed scaling ------------------------------------------------------------------- */

/* The larger of two amaxes; a NaN is no amax. */
static inline float oct_delayed_larger(float a, float b) {
    return a != a ? b : b > a ? b : a;
}

/* The largest code over 2^margin, rounded once. Beyond 400 halvings nothing is left of it. */
static inline float oct_delayed_aim(uint8_t format, int32_t margin) {
    double value = format == OCTET_E4M3 ? 448.0 : 57344.0;
    margin = margin > 400 ? 400 : margin < -400 ? -400 : margin;
    for (; margin > 0; margin--) {
        value /= 2;
    }
    for (; margin < 0; margin++) {
        value *= 2;
    }
    return (float)value;
}

/* The old scale stays unless the amax is positive and finite. */
static inline float oct_delayed_scale(float scale, float amax, float aim) {
    if (!(amax > 0) || !oct_is_finite(amax)) {
        return scale;
    }
    float updated = aim / amax;
    return oct_is_finite(updated) ? updated : FLT_MAX;
}

#endif
