/* activation_loop.h - activations over floats, for the compiler to make vectors of.
 *
 * Included by a file of each instruction set: every function is inlined into one that has that
 * set's instructions. Blocks have a fixed length, so nothing is left over. The elements are
 * those of format/activation.h, and no compiler may change their bits. */
#ifndef OCT_CPU_ACTIVATION_LOOP_H
#define OCT_CPU_ACTIVATION_LOOP_H

#include "cpu/kernels.h"
#include "format/activation.h"

#define OCT_ACT_INLINE static inline __attribute__((always_inline))

OCT_ACT_INLINE void oct_activate_as(const oct_act_call *c, oct_activation act) {
    for (int64_t i = 0; i < c->count; i += OCT_ACT_BLOCK) {
        const float *x = c->x + i, *gate = c->gate ? c->gate + i : NULL;
        float values[OCT_ACT_BLOCK];
        for (int j = 0; j < OCT_ACT_BLOCK; j++) {
            values[j] = oct_act(act, x[j]);
        }
        for (int j = 0; gate && j < OCT_ACT_BLOCK; j++) {
            values[j] *= gate[j];
        }
        for (int j = 0; j < OCT_ACT_BLOCK; j++) {
            c->out[i + j] = oct_one_nan(values[j]);
        }
    }
}

OCT_ACT_INLINE void oct_activate_grad_as(const oct_act_call *c, oct_activation act) {
    for (int64_t i = 0; i < c->count; i += OCT_ACT_BLOCK) {
        const float *x = c->x + i, *grad = c->grad + i, *gate = c->gate ? c->gate + i : NULL;
        float values[OCT_ACT_BLOCK], slopes[OCT_ACT_BLOCK];
        for (int j = 0; j < OCT_ACT_BLOCK; j++) {
            oct_act_both both = oct_act_slope(act, x[j]);
            values[j] = grad[j] * both.value;
            slopes[j] = grad[j] * both.slope;
        }
        for (int j = 0; gate && j < OCT_ACT_BLOCK; j++) {
            slopes[j] *= gate[j];
            c->gate_out[i + j] = oct_one_nan(values[j]);
        }
        for (int j = 0; j < OCT_ACT_BLOCK; j++) {
            c->out[i + j] = oct_one_nan(slopes[j]);
        }
    }
}

/* A loop for each activation: which one it is, is known inside. */
OCT_ACT_INLINE void oct_activate_loop(const oct_act_call *c) {
    switch (c->act) {
    case OCT_ACT_GELU:
        oct_activate_as(c, OCT_ACT_GELU);
        break;
    case OCT_ACT_QGELU:
        oct_activate_as(c, OCT_ACT_QGELU);
        break;
    case OCT_ACT_RELU:
        oct_activate_as(c, OCT_ACT_RELU);
        break;
    case OCT_ACT_SRELU:
        oct_activate_as(c, OCT_ACT_SRELU);
        break;
    case OCT_ACT_SILU:
        oct_activate_as(c, OCT_ACT_SILU);
        break;
    default:
        oct_activate_as(c, OCT_ACT_SIGMOID);
    }
}

OCT_ACT_INLINE void oct_activate_grad_loop(const oct_act_call *c) {
    switch (c->act) {
    case OCT_ACT_GELU:
        oct_activate_grad_as(c, OCT_ACT_GELU);
        break;
    case OCT_ACT_QGELU:
        oct_activate_grad_as(c, OCT_ACT_QGELU);
        break;
    case OCT_ACT_RELU:
        oct_activate_grad_as(c, OCT_ACT_RELU);
        break;
    case OCT_ACT_SRELU:
        oct_activate_grad_as(c, OCT_ACT_SRELU);
        break;
    case OCT_ACT_SILU:
        oct_activate_grad_as(c, OCT_ACT_SILU);
        break;
    default:
        oct_activate_grad_as(c, OCT_ACT_SIGMOID);
    }
}

#endif
