/* transform.h - the Hadamard transform of a patch's columns, 16 rows of each. */
#ifndef OCT_CUDA_KERNELS_TRANSFORM_H
#define OCT_CUDA_KERNELS_TRANSFORM_H

#include "cuda/kernels/e2m1.h"
#include "cuda/kernels/patch.h"
#include "format/hadamard.h"

/* One of the stages of oct_hadamard_stages. */
static inline void oct_hadamard_stage(float x[OCT_HADAMARD_ROWS], int distance) {
#pragma unroll
    for (int i = 0; i < OCT_HADAMARD_ROWS / 2; i++) {
        int r = i + (i & -distance);
        float u = x[r], v = x[r + distance];
        x[r] = u + v;
        x[r + distance] = u - v;
    }
}

/* 16 elements that T holds, in place; not yet rounded to bf16. The weights of format/hadamard.h
 * are powers of two, and what is left of a 16-bit float fits a float: such products are exact,
 * and go into the first stage's sums. */
template <class T>
static inline void oct_transform(float x[OCT_HADAMARD_ROWS], const float *weights) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
            x[r] *= weights[r];
        }
        oct_hadamard_stage(x, 1);
    } else {
#pragma unroll
        for (int r = 0; r < OCT_HADAMARD_ROWS; r += 2) {
            float u = x[r] * weights[r], v = x[r + 1];
            x[r] = oct_exact_fma(v, weights[r + 1], u);
            x[r + 1] = oct_exact_fma(-v, weights[r + 1], u);
        }
    }
#pragma unroll
    for (int distance = 2; distance < OCT_HADAMARD_ROWS; distance *= 2) {
        oct_hadamard_stage(x, distance);
    }
}

/* Column c. */
template <class T>
static inline void oct_patch_transform(float x[OCT_HADAMARD_ROWS], const oct_patch<T> &p, int c,
                                       const float *weights) {
#pragma unroll
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        x[r] = oct_patch_at(p, r, c);
    }
    oct_transform<T>(x, weights);
}

#endif
