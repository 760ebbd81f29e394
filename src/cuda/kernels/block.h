/* block.h - what the kernels of FP8 blocks of 128 are told. */
#ifndef OCT_CUDA_KERNELS_BLOCK_H
#define OCT_CUDA_KERNELS_BLOCK_H

#include "cuda/kernels/quantize.h"
#include "format/scaling.h"

typedef struct oct_block_params {
    oct_quantize_params q;
    oct_scale_rule rule;
} oct_block_params;

#endif
