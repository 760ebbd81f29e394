/* mxfp8.h - the parameters of the MXFP8 kernels. */
#ifndef OCT_CUDA_KERNELS_MXFP8_H
#define OCT_CUDA_KERNELS_MXFP8_H

#include "cuda/kernels/applied.h"
#include "cuda/kernels/quantize.h"
#include "format/scaling.h"

typedef struct oct_mxfp8_params {
    oct_quantize_params q;
    oct_copies copies;
    uint8_t square; /* blocks of 32 x 32 */
    uint8_t reserved[7];
} oct_mxfp8_params;

/* One tensor or two in a launch: the first `split` blocks of threads are the first one's. */
typedef struct oct_mxfp8_two {
    oct_mxfp8_params of[2];
    uint32_t split, reserved;
} oct_mxfp8_two;

/* One tensor that is f(x): its source is not read. */
typedef struct oct_mxfp8_applied {
    oct_mxfp8_params of;
    oct_applied_params f;
} oct_mxfp8_applied;

#endif
