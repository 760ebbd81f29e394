/* transform.h - the Hadamard transform of a patch's columns, 16 rows of each. */
#ifndef OCT_CUDA_KERNELS_TRANSFORM_H
#define OCT_CUDA_KERNELS_TRANSFORM_H

#include "cuda/kernels/patch.h"
#include "format/hadamard.h"

/* Column c, not yet rounded to bf16; weights are those of format/hadamard.h. */
template <class T>
static inline void oct_patch_transform(float x[OCT_HADAMARD_ROWS], const oct_patch<T> &p, int c,
                                       const float *weights) {
#pragma unroll
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        x[r] = oct_patch_at(p, r, c) * weights[r];
    }
    oct_hadamard_stages(x);
}

#endif
