/* applied.h - what a kernel is told of a prologue that it computes while it casts. */
#ifndef OCT_CUDA_KERNELS_APPLIED_H
#define OCT_CUDA_KERNELS_APPLIED_H

#include "cuda/kernels/rows.h"

typedef struct oct_applied_params {
    oct_plain x, gate; /* of a gated function the first half of its columns, and the other */
    oct_plain gamma, beta; /* one row; at NULL: none */
    const float *stats;    /* a row's rstd, or its mean and rstd */
    uint8_t prologue;      /* octet_prologue */
    uint8_t zero_centered;
    uint8_t reserved[6];
} oct_applied_params;

#endif
