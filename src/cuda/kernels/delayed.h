/* delayed.h - what the kernels of delayed scaling's state are told. */
#ifndef OCT_CUDA_KERNELS_DELAYED_H
#define OCT_CUDA_KERNELS_DELAYED_H

#include <stdint.h>

#define OCT_DELAYED_SLOTS 32 /* of a block, beside each other */
#define OCT_DELAYED_LANES 32 /* threads of a slot */
#define OCT_DELAYED_THREADS (OCT_DELAYED_SLOTS * OCT_DELAYED_LANES)

typedef struct oct_delayed_params {
    float *scale, *history; /* history[length][slots] */
    const float *amax;      /* recorded, or the reduced ones; may be NULL to the update */
    int64_t slots, length;
    float aim;
    uint8_t most_recent;
} oct_delayed_params;

typedef struct oct_advance_params {
    int64_t *random;
    uint64_t by;
} oct_advance_params;

#endif
