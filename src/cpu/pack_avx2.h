/* pack_avx2.h - the AVX2 packer. */
#ifndef OCT_CPU_PACK_AVX2_H
#define OCT_CPU_PACK_AVX2_H

#include "cpu/pack.h"

extern const oct_decode oct_decode_avx2[OCTET_DTYPES];

void oct_turn_avx2(uint32_t *panel, int stride, const uint32_t *rows, int64_t pitch,
                   int64_t steps);
void oct_spread_avx2(const oct_panels *panels, int64_t count, const float *row);

#endif
