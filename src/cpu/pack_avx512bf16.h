/* pack_avx512bf16.h - the AVX-512 packer of bf16 pairs. */
#ifndef OCT_CPU_PACK_AVX512BF16_H
#define OCT_CPU_PACK_AVX512BF16_H

#include "cpu/pack.h"

/* Encodings of the magnitudes of an FP8 format as bf16, by code. */
extern const uint16_t oct_bf16_of_e4m3[128], oct_bf16_of_e5m2[128];

extern const oct_decode oct_decode_avx512bf16[OCTET_DTYPES];

void oct_zip_avx512bf16(const oct_panels *panels, int64_t count, const uint16_t *even,
                        const uint16_t *odd);

#endif
