/* zero.h - the parameters of the kernel that begins a phase. */
#ifndef OCT_CUDA_KERNELS_ZERO_H
#define OCT_CUDA_KERNELS_ZERO_H

#include <stdint.h>

#define OCT_ZERO_THREADS 256
#define OCT_ZERO_SPANS 8 /* in a launch */

typedef struct oct_zero_span {
    uint32_t *to;
    int64_t words;
} oct_zero_span;

/* Blocks in x have a span each, those in y share it. */
typedef struct oct_zero_params {
    oct_zero_span spans[OCT_ZERO_SPANS];
} oct_zero_params;

#endif
