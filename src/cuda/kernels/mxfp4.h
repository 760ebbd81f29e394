/* mxfp4.h - the parameters of the MXFP4 kernels. */
#ifndef OCT_CUDA_KERNELS_MXFP4_H
#define OCT_CUDA_KERNELS_MXFP4_H

#include "cuda/kernels/quantize.h"
#include "format/hadamard.h"
#include "format/scaling.h"

typedef struct oct_mxfp4_params {
    oct_quantize_params q;
    oct_copies copies;
    const int64_t *seed;          /* of stochastic rounding; NULL: to nearest */
    int64_t row_bytes, col_bytes; /* of a line of codes */
    uint32_t stream;              /* of the seed's random bits */
    uint8_t square;               /* blocks of 32 x 32 */
    uint8_t hadamard;
    uint8_t reserved[2];
    float weights[OCT_HADAMARD_ROWS];
} oct_mxfp4_params;

#endif
