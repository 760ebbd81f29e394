/* nvfp4.h - the parameters of the NVFP4 kernels. */
#ifndef OCT_CUDA_KERNELS_NVFP4_H
#define OCT_CUDA_KERNELS_NVFP4_H

#include "cuda/kernels/gemm.h"
#include "cuda/kernels/quantize.h"
#include "format/hadamard.h"
#include "format/scaling.h"

/* A block's shared memory: patches, scales, and what the scales of rows are worth; where rows
 * have amaxes of their own, their factors as well. Without those six blocks of 128 threads fit
 * a multiprocessor of compute capability 9.0. */
#define OCT_NV_SHARED_BYTES(threads, own) ((threads) * 256 + OCT_TILE * ((own) ? 65u : 33u))

typedef struct oct_nvfp4_params {
    oct_quantize_params q;
    oct_copies copies;
    const float *row_amax, *col_amax; /* of the tensor, or of each row and column */
    const int64_t *seed;              /* of stochastic rounding; NULL: to nearest */
    int64_t row_bytes, col_bytes;     /* of a line of codes */
    float aim;
    uint8_t square; /* blocks of 16 x 16 */
    uint8_t row_scaled;
    uint8_t hadamard;
    uint8_t measured; /* by an earlier launch of the run, which has read all of source */
    uint32_t stream;  /* of the seed's random bits */
    uint32_t reserved;
    float weights[OCT_HADAMARD_ROWS];
    oct_gemm_alpha_params alphas[2]; /* of products, made on the way; out NULL: none */
} oct_nvfp4_params;

#endif
