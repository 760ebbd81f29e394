/* gemm_avx512.h - what the AVX-512 kernels with and without bf16 dot products share. */
#ifndef OCT_CPU_GEMM_AVX512_H
#define OCT_CPU_GEMM_AVX512_H

#include "cpu/gemm.h"

/* A register tile is 14 rows of two vectors: 28 sums, two words of b and one of a. A step of an
 * a panel is one cache line, so its last two words are not used. */
#define OCT_AVX512_MR 14
#define OCT_AVX512_MR_STRIDE 16
#define OCT_AVX512_NR 32
#define OCT_AVX512_STEPS 512

void oct_tile_f32_avx512(const oct_tile_call *call);
void oct_dot_f32_avx512(const oct_dot_call *call);
void oct_finish_avx512(const oct_finish *finish, const oct_sums *sums);

#endif
