/* bias.h - the parameters of the bias kernels. */
#ifndef OCT_CUDA_KERNELS_BIAS_H
#define OCT_CUDA_KERNELS_BIAS_H

#include "cuda/kernels/rows.h"

typedef struct oct_add_bias_params {
    oct_rows shape;
    oct_plain dst, source, bias; /* bias: one row */
} oct_add_bias_params;

#define OCT_GRAD_COLS 32 /* of a block */
#define OCT_GRAD_TILES                                                                         \
    64 /* of 128 rows, summed at once by a block: a thread has two columns                     \
        */
#define OCT_GRAD_THREADS (OCT_GRAD_COLS / 2 * OCT_GRAD_TILES)

typedef struct oct_bias_grad_params {
    oct_plain dst;
    const float *sums;  /* of the columns of each 128 rows, as column_sums.h says */
    int64_t rows, cols; /* of the matrix */
    uint8_t paired;     /* two of them may be read at once */
    uint8_t accumulate; /* they are added to dst */
    uint8_t reserved[6];
} oct_bias_grad_params;

#endif
