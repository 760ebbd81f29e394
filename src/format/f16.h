/* f16.h - IEEE half precision: 1/5/10, bias 15, largest 65504. */
#ifndef OCT_FORMAT_F16_H
#define OCT_FORMAT_F16_H

#include "format/narrow.h"

/* Nearest, ties to even, as IEEE does: 65520 and above become Inf. Inf and -0 are kept,
 * subnormals are rounded properly, and underflow keeps the sign. A NaN keeps its sign and the
 * upper ten bits of its payload and is made quiet. Integers only: FTZ, DAZ and the rounding
 * mode have no effect. */
static inline uint16_t oct_f16_encode(float value) {
    uint32_t bits = oct_f32_bits(value);
    uint32_t magnitude = bits & OCT_F32_MAGNITUDE;
    uint32_t nearest = oct_narrow(magnitude, 10, 15);
    nearest = nearest < 0x7c00u ? nearest : 0x7c00u;
    uint32_t quiet = 0x7e00u | (magnitude >> 13 & 0x03ffu);
    return oct_low_u16((magnitude > OCT_F32_INF ? quiet : nearest) | (bits >> 16 & 0x8000u));
}

/* Exact: Inf, -0 and subnormals included (every one is a normal float). A NaN keeps its sign
 * and payload and is made quiet. FTZ, DAZ and the rounding mode have no effect. */
static inline float oct_f16_decode(uint16_t code) {
    uint32_t magnitude = code & 0x7fffu;
    uint32_t inf = magnitude >= 0x7c00u ? OCT_F32_INF : 0u;
    uint32_t quiet = magnitude > 0x7c00u ? OCT_F32_QUIET : 0u;
    uint32_t widened = oct_widen(magnitude, 10, 15) | inf | quiet;
    return oct_bits_f32(widened | (code & 0x8000u) << 16);
}

#endif
