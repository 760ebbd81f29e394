/* gemm.h - the parameters of the product's kernels.
 *
 * A product is dst(i, j) = sum over p of a(i, p) b(j, p). An operand's bytes form storage rows,
 * and either a storage row runs along the product (one outer index, all p) or across it (one p,
 * all outer indices). */
#ifndef OCT_CUDA_KERNELS_GEMM_H
#define OCT_CUDA_KERNELS_GEMM_H

#include "format/scales.h"

#define OCT_GEMM_THREADS 256
#define OCT_GEMM_TILE 128    /* rows and columns of dst that a block computes */
#define OCT_GEMM_STEP 32     /* p that lie in shared memory at a time */
#define OCT_GEMM_TILE_F32 64 /* the same of the kernel that multiplies floats */
#define OCT_GEMM_STEP_F32 16
#define OCT_GEMM_GROUP 8 /* tiles down that run beside each other, to share a cache */

/* Pointers are the device's. An element is worth its code times its block's scale times what is
 * left out: unit, times one factor of the operand or of each outer index. */
typedef struct oct_gemm_operand {
    const uint8_t *data;
    int64_t pitch; /* bytes from one storage row to the next */
    int64_t outer, depth;
    const void *scale; /* block scales in the order of `scales`, or NULL */
    oct_scales scales;
    const float *factor; /* or NULL */
    double unit;
    uint8_t factor_each;  /* one factor per outer index */
    uint8_t format;       /* octet_dtype of an element, */
    uint8_t scale_format; /* and of a block's scale */
    uint8_t shift;        /* log2 of the elements of a block */
    uint8_t across;       /* storage rows run across the product */
    uint8_t lines_down;   /* blocks lie along the storage's columns */
    uint8_t reserved[2];
} oct_gemm_operand;

/* dst = round(sum * factors + bias + dst). */
typedef struct oct_gemm_params {
    oct_gemm_operand a, b;
    void *dst;
    int64_t stride;            /* elements from one row of dst to the next */
    const void *bias;          /* or NULL */
    uint8_t dtype, bias_dtype; /* octet_dtype: F32, BF16 or F16 */
    uint8_t accumulate;
    uint8_t flush;       /* steps after which block scales are applied to the sum; 0: never */
    uint32_t rows, cols; /* tiles of dst */
    uint32_t reserved;
} oct_gemm_params;

/* Sums that already lie in memory, and the place of their first row in dst. */
typedef struct oct_gemm_finish_params {
    oct_gemm_params gemm;
    const float *sums; /* `count` rows, `pitch` apart, of dst's columns */
    int64_t pitch, first, count;
} oct_gemm_finish_params;

/* out[0] = the factors of both operands, out[1] = beta. */
typedef struct oct_gemm_alpha_params {
    const float *a, *b; /* or NULL */
    double unit;
    float *out;
    float beta;
    uint32_t reserved;
} oct_gemm_alpha_params;

#endif
