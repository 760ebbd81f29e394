/* norm.h - RMSNorm and LayerNorm in fp32: the order of their sums, and each element.
 *
 * A row's sum has one order on every device. Lane l of OCT_NORM_LANES adds up the columns c
 * with c mod OCT_NORM_LANES = l, from the first on, beginning with +0; then lanes are folded in
 * halves: lane l adds lane l + 512, then l + 256, and so on to l + 1. A row that is shorter
 * leaves lanes at +0. */
#ifndef OCT_FORMAT_NORM_H
#define OCT_FORMAT_NORM_H

#include "format/activation.h"
#include "format/sqrt.h"

#define OCT_NORM_LANES 1024

/* Of a row: `mean` is 0 where the norm has none. */
typedef struct oct_norm_row {
    float mean, rstd;
} oct_norm_row;

/* Of nothing the mean is 0. */
static inline float oct_norm_count(int64_t cols) {
    return cols > 0 ? (float)cols : 1.0f;
}

/* From the sum of a row's squares, of its differences from the mean where it has one. Each
 * operation is rounded once; the square root and the division are IEEE's. */
static inline float oct_norm_rstd(float squares, int64_t cols, float eps) {
    float deviation = oct_sqrt(squares / oct_norm_count(cols) + eps);
    return oct_one_nan(1.0f / deviation);
}

static inline float oct_norm_mean(float sum, int64_t cols) {
    return oct_one_nan(sum / oct_norm_count(cols));
}

static inline float oct_norm_factor(float gamma, bool zero_centered) {
    return zero_centered ? 1.0f + gamma : gamma;
}

/* (x - mean) rstd. */
static inline float oct_normed(const oct_norm_row *row, float x) {
    return (x - row->mean) * row->rstd;
}

/* Means over a row that its gradient needs: of g = dy factor, and of g times what is normed. */
typedef struct oct_norm_means {
    float grad, along;
} oct_norm_means;

/* dx = rstd (g - mean(g) - normed mean(g normed)); without a mean there is no mean(g). */
static inline float oct_norm_grad(const oct_norm_row *row, const oct_norm_means *means, float g,
                                  float normed) {
    return oct_one_nan(((g - means->grad) - normed * means->along) * row->rstd);
}

#endif
