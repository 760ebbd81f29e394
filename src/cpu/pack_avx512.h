/* pack_avx512.h - the AVX-512 packer of floats. */
#ifndef OCT_CPU_PACK_AVX512_H
#define OCT_CPU_PACK_AVX512_H

#include "cpu/pack.h"

extern const oct_decode oct_decode_avx512[OCTET_DTYPES];

void oct_turn_avx512(uint32_t *panel, int stride, const uint32_t *rows, int64_t pitch,
                     int64_t steps);
void oct_spread_avx512(const oct_panels *panels, int64_t count, const float *row);

#endif
