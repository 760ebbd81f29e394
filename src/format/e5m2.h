/* e5m2.h - FP8 for gradients: 1/5/2, bias 15, largest 57344, IEEE specials. */
#ifndef OCT_FORMAT_E5M2_H
#define OCT_FORMAT_E5M2_H

#include "format/narrow.h"

/* Nearest, ties to the even code, saturating: |x| above 57344 and Inf become +-57344 (0x7b,
 * 0xfb), so Inf is never made although it has a code. Any NaN becomes 0x7f, without its sign.
 * Subnormals (below 2^-14, in steps of 2^-16) are rounded properly; -0 and negative underflow
 * become 0x80. Integers only: FTZ, DAZ and the rounding mode have no effect. */
static inline uint8_t oct_e5m2_encode(float value) {
    uint32_t bits = oct_f32_bits(value);
    uint32_t magnitude = bits & OCT_F32_MAGNITUDE;
    uint32_t nearest = oct_narrow(magnitude, 2, 15);
    nearest = (nearest < 0x7bu ? nearest : 0x7bu) | (bits >> 24 & 0x80u);
    return (uint8_t)(magnitude > OCT_F32_INF ? 0x7fu : nearest);
}

/* Exact: Inf (0x7c, 0xfc), -0 and subnormals included (every one is a normal float). A NaN
 * keeps its sign and payload and is made quiet. FTZ, DAZ and the rounding mode have no
 * effect. */
static inline float oct_e5m2_decode(uint8_t code) {
    uint32_t magnitude = code & 0x7fu;
    uint32_t inf = magnitude >= 0x7cu ? OCT_F32_INF : 0u;
    uint32_t quiet = magnitude > 0x7cu ? OCT_F32_QUIET : 0u;
    uint32_t widened = oct_widen(magnitude, 2, 15) | inf | quiet;
    return oct_bits_f32(widened | (code & 0x80u) << 24);
}

#endif
