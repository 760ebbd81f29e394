/* delayed.h - the parameters of the kernels of delayed scaling. */
#ifndef OCT_CUDA_KERNELS_DELAYED_H
#define OCT_CUDA_KERNELS_DELAYED_H

#include <stdint.h>

#define OCT_DELAYED_THREADS 512
#define OCT_DELAYED_SHIFT 3 /* log2 of the slots of a block, at most */

typedef struct oct_delayed_params {
    float *scale, *history; /* history[length][slots] */
    const float *amax;      /* recorded; may be NULL to the update */
    const float *reduced;   /* may be NULL */
    int64_t slots, length;
    float aim;
    uint8_t most_recent;
    uint8_t shift; /* log2 of the slots of a block; the threads of a slot lie that far apart */
    uint8_t reserved[2];
} oct_delayed_params;

#define OCT_DELAYED_MANY 240 /* states of a launch: parameters take 4 KiB at most */

/* States of one rule and one shape; `of` has what they share. */
typedef struct oct_delayed_many {
    oct_delayed_params of;
    float *scale[OCT_DELAYED_MANY], *history[OCT_DELAYED_MANY];
} oct_delayed_many;

#endif
