/* small_format.h - the numbers by which vector code rounds to a small format.
 *
 * As in format/narrow.h, by integers: a magnitude from `least` on, the smallest normal value,
 * is rounded by adding half a step and shifting; one below it by adding `magic`, a float whose
 * last bit is worth the smallest subnormal. */
#ifndef OCT_CPU_SMALL_FORMAT_H
#define OCT_CPU_SMALL_FORMAT_H

#include <stdint.h>

typedef struct oct_small_format {
    int shift;      /* mantissa bits dropped */
    uint32_t base;  /* what codes count from, as a magnitude */
    uint32_t least; /* encoding of the smallest normal value */
    uint32_t most;  /* of the largest value */
    uint32_t magic;
    int sign; /* from a float's sign bit to the code's */
    uint32_t nan;
} oct_small_format;

static const oct_small_format oct_small_e4m3 = {
    20, 0x3c000000u, 0x3c800000u, 0x43e00000u, 0x46800000u, 24, 0x7f,
};
static const oct_small_format oct_small_e5m2 = {
    21, 0x38000000u, 0x38800000u, 0x47600000u, 0x43000000u, 24, 0x7f,
};
static const oct_small_format oct_small_e2m1 = {
    22, 0x3f000000u, 0x3f800000u, 0x40c00000u, 0x4a800000u, 28, 0x7,
};

#endif
