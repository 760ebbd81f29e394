/* matrix.h - a matrix in memory, as every device sees it. */
#ifndef OCT_CORE_MATRIX_H
#define OCT_CORE_MATRIX_H

#include "octet.h"

/* A matrix in memory: plain, or the buffers of a quantizer's layout by octet_part. */
typedef struct oct_matrix {
    octet_quantizer quantizer; /* scheme NONE: plain */
    uint8_t dtype;             /* plain: F32, BF16 or F16; else what it stands for */
    int64_t rows, cols;
    int64_t stride;           /* plain: elements from one row to the next */
    void *parts[OCTET_PARTS]; /* NULL where absent; a plain matrix is parts[0] */
} oct_matrix;

/* One of the equal parts that every rank's rows are cut into. */
typedef struct oct_chunk {
    int64_t ranks, chunks, index;
} oct_chunk;

/* A vector in memory: a bias. */
typedef struct oct_vector {
    const void *at;
    uint8_t dtype; /* octet_dtype: F32, BF16 or F16 */
} oct_vector;

/* A prologue in memory: what a device computes of it, by the step. What a step does not have is
 * NULL. */
typedef struct oct_prologue_call {
    uint8_t prologue; /* octet_prologue */
    bool zero_centered;
    float eps;
    const oct_matrix *dst;  /* statistics, f(x), dx, or the gradient of gamma; NULL: a cast
                             * reads f(x) */
    const oct_matrix *x;    /* its input */
    const oct_matrix *grad; /* the gradient of f(x) */
    const float *stats;     /* of a norm: each row's rstd, or its mean and rstd */
    oct_vector gamma, beta; /* (K) */
    float *amax;            /* of f(x); NULL: not wanted */
    int64_t amaxes;         /* floats there */
    float *sums;            /* of gamma's gradient, by 128 rows */
} oct_prologue_call;

/* The factors of a product of two NVFP4 tensors, which their amaxes give: to[0] is what its
 * sums lack, to[1] is 1 where they are added to what is there, else 0. */
typedef struct oct_alpha {
    const float *amaxes[2];
    const octet_quantizer *quantizers[2];
    float *to; /* NULL: not wanted */
    bool accumulate;
} oct_alpha;

#endif
