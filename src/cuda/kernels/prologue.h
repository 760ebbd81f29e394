/* prologue.h - the parameters of the kernels of norms and activations. */
#ifndef OCT_CUDA_KERNELS_PROLOGUE_H
#define OCT_CUDA_KERNELS_PROLOGUE_H

#include "cuda/kernels/rows.h"

#define OCT_LINE_THREADS 128 /* of a block that has a whole row: 8 lanes of its sum each */

typedef struct oct_prologue_params {
    oct_rows shape;        /* of f(x): K columns */
    oct_plain dst, x;      /* of a gated function their first K columns, */
    oct_plain gated, gate; /* and the others: of dst and of x */
    oct_plain grad;        /* of f(x) */
    oct_plain gamma, beta; /* one row; at NULL: none */
    float *stats;          /* a row's rstd, or its mean and rstd */
    float *amax;           /* raised from 0, `amaxes` of them; NULL: not wanted */
    float *sums;           /* of gamma's gradient: ceil(rows / 128) x K */
    uint32_t amaxes;
    float eps;
    uint8_t prologue; /* octet_prologue */
    uint8_t zero_centered;
    uint8_t reserved[6];
} oct_prologue_params;

#endif
