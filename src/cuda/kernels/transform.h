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

/* All but the last stage, of 16 elements that T holds. The weights of format/hadamard.h
 * are powers of two, and what is left of a 16-bit float fits a float: such products are exact,
 * and go into the first stage's sums. */
template <class T>
static inline void oct_transform_start(float x[OCT_HADAMARD_ROWS], const float *weights) {
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
    oct_hadamard_stage(x, 2);
    oct_hadamard_stage(x, 4);
}

/* 16 elements in place, not yet rounded to bf16. */
template <class T>
static inline void oct_transform(float x[OCT_HADAMARD_ROWS], const float *weights) {
    oct_transform_start<T>(x, weights);
    oct_hadamard_stage(x, OCT_HADAMARD_ROWS / 2);
}

/* The larger of `most` and the magnitudes of column c, transformed. Of the last stage's u + v
 * and u - v the larger is |u| + |v|, rounded alike; NaNs, also that of Inf - Inf, are ignored.
 */
template <class T>
static inline float oct_patch_transformed_max(float most, const oct_patch<T> &p, int c,
                                              const float *weights) {
    constexpr int half = OCT_HADAMARD_ROWS / 2;
    float x[OCT_HADAMARD_ROWS];
#pragma unroll
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        x[r] = oct_patch_at(p, r, c);
    }
    oct_transform_start<T>(x, weights);
#pragma unroll
    for (int r = 0; r < half; r++) {
        most = oct_larger(most, oct_magnitude(x[r]) + oct_magnitude(x[r + half]));
    }
    return most;
}

#endif
