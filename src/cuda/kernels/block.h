/* block.h - the parameters of the kernels of FP8 blocks of 128. */
#ifndef OCT_CUDA_KERNELS_BLOCK_H
#define OCT_CUDA_KERNELS_BLOCK_H

#include "cuda/kernels/applied.h"
#include "cuda/kernels/quantize.h"
#include "format/scaling.h"

typedef struct oct_block_params {
    oct_quantize_params q;
    oct_scale_rule rule;
    uint8_t square; /* blocks of 128 x 128 */
    uint8_t reserved[7];
} oct_block_params;

/* One tensor or two in a launch: the first `split` blocks of threads are the first one's. */
typedef struct oct_block_two {
    oct_block_params of[2];
    uint32_t split, reserved;
} oct_block_two;

/* One tensor that is f(x): its source is not read. */
typedef struct oct_block_applied {
    oct_block_params of;
    oct_applied_params f;
} oct_block_applied;

#endif
