/* per_tensor.h - the parameters of the per-tensor kernels. */
#ifndef OCT_CUDA_KERNELS_PER_TENSOR_H
#define OCT_CUDA_KERNELS_PER_TENSOR_H

#include "cuda/kernels/applied.h"
#include "cuda/kernels/quantize.h"
#include "format/scaling.h"

typedef struct oct_per_tensor_params {
    oct_quantize_params q;
    oct_scale_rule rule;
    const float *amax;   /* current: the scale is made from it, */
    const float *shares; /* or from OCT_AMAX_SHARES maxima; else NULL */
    const float *scale;  /* delayed: the scale; else NULL */
    float *new_amax;     /* raised to the amax; may be NULL */
    float *inverse;      /* receives 1 / scale; may be NULL */
} oct_per_tensor_params;

/* One tensor or two in a launch: the first `split` of its tiles are the first one's. */
typedef struct oct_per_tensor_two {
    oct_per_tensor_params of[2];
    uint32_t split, tiles;
    uint32_t measured; /* by the launch before, which has read all of each */
    uint32_t reserved;
} oct_per_tensor_two;

/* One tensor that is f(x): its source is not read. */
typedef struct oct_per_tensor_applied {
    oct_per_tensor_params of;
    oct_applied_params f;
} oct_per_tensor_applied;

#endif
