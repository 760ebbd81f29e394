/* pack_reference.h - the plain-C packer. */
#ifndef OCT_CPU_PACK_REFERENCE_H
#define OCT_CPU_PACK_REFERENCE_H

#include "cpu/pack.h"

extern const oct_decode oct_decode_reference[OCTET_DTYPES];

void oct_turn_reference(uint32_t *panel, int stride, const uint32_t *rows, int64_t pitch,
                        int64_t steps);
void oct_spread_reference(const oct_panels *panels, int64_t count, const float *row);

#endif
