/* inputs.h - numbers that quantizers get wrong: specials, ties, outliers, every 16-bit code. */
#ifndef OCTET_TEST_CPU_INPUTS_H
#define OCTET_TEST_CPU_INPUTS_H

#include "tensors.h"

typedef enum cpu_input {
    CPU_INPUT_SPECIALS = 0, /* +-0, subnormals, 2^k and neighbours, maxima, Inf, NaN */
    CPU_INPUT_FINITE,       /* the same without Inf and NaN */
    CPU_INPUT_BITS,         /* random encodings */
    CPU_INPUT_BLOCKS,       /* a magnitude per 16 x 16, with outliers */
    CPU_INPUT_TIES,         /* small multiples of 1/8 */
    CPU_INPUT_ZEROS,        /* both of them */
    CPU_INPUT_TINY,         /* around the least normal float of the dtype */
    CPU_INPUT_HUGE,         /* up to the largest finite one */
    CPU_INPUT_CODES,        /* every 16-bit code in turn; of F32, their upper halves */
    CPU_INPUTS
} cpu_input;

/* A sequence that never repeats in a test's lifetime. */
uint64_t cpu_random(uint64_t *state);
/* Fills a plain tensor; the gap between rows keeps its dirt. */
void cpu_fill(cpu_tensor *x, cpu_input kind, uint64_t seed);

#endif
