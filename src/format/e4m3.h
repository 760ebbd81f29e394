/* e4m3.h - FP8 for values: 1/4/3, bias 7, largest 448, NaN but no Inf. */
#ifndef OCT_FORMAT_E4M3_H
#define OCT_FORMAT_E4M3_H

#include "format/narrow.h"

/* Nearest, ties to the even code, saturating: |x| above 448 and Inf become +-448 (0x7e, 0xfe).
 * Any NaN becomes 0x7f, without its sign. Subnormals (below 2^-6, in steps of 2^-9) are rounded
 * properly; -0 and negative underflow become 0x80. Integers only: FTZ, DAZ and the rounding
 * mode have no effect. */
static inline uint8_t oct_e4m3_encode(float value) {
    uint32_t bits = oct_f32_bits(value);
    uint32_t magnitude = bits & OCT_F32_MAGNITUDE;
    uint32_t nearest = oct_narrow(magnitude, 3, 7);
    nearest = (nearest < 0x7eu ? nearest : 0x7eu) | (bits >> 24 & 0x80u);
    return (uint8_t)(magnitude > OCT_F32_INF ? 0x7fu : nearest);
}

/* Exact: -0 and subnormals included (every one is a normal float). 0x7f becomes the quiet NaN
 * 0x7ff00000, 0xff the same with the sign. FTZ, DAZ and the rounding mode have no effect. */
static inline float oct_e4m3_decode(uint8_t code) {
    uint32_t magnitude = code & 0x7fu;
    uint32_t nan = magnitude == 0x7fu ? OCT_F32_INF | OCT_F32_QUIET : 0u;
    return oct_bits_f32(oct_widen(magnitude, 3, 7) | nan | (code & 0x80u) << 24);
}

#endif
