/* bf16.h - bfloat16: the upper half of a float. */
#ifndef OCT_FORMAT_BF16_H
#define OCT_FORMAT_BF16_H

#include "format/bits.h"

/* Nearest, ties to even, as IEEE does: past the largest value, 0x7f7f, lies Inf. Inf and -0 are
 * kept, subnormals are rounded properly. A NaN keeps its sign and the upper seven bits of its
 * payload and is made quiet. Integers only: FTZ, DAZ and the rounding mode have no effect. */
static inline uint16_t oct_bf16_encode(float value) {
    uint32_t bits = oct_f32_bits(value);
    uint32_t odd = (bits >> 16) & 1u;
    uint32_t nearest = bits + 0x7fffu + odd;
    uint32_t quiet = bits | OCT_F32_QUIET;
    return oct_high_u16((bits & OCT_F32_MAGNITUDE) > OCT_F32_INF ? quiet : nearest);
}

/* Exact, bit for bit: Inf, -0, subnormals, and any NaN as it is, signalling ones included. */
static inline float oct_bf16_decode(uint16_t code) {
    return oct_bits_f32((uint32_t)code << 16);
}

#endif
