/* activation.h - activations and their derivatives in fp32, the same bits everywhere.
 *
 * Each result is rounded step by step in the order that is written here. Every NaN that comes
 * out is the same one, because devices disagree about signs and payloads. */
#ifndef OCT_FORMAT_ACTIVATION_H
#define OCT_FORMAT_ACTIVATION_H

#include "format/exp.h"
#include "format/prologue.h"

#define OCT_F32_NAN 0x7fc00000u

/* The value, or the one NaN. */
static inline float oct_one_nan(float x) {
    return x == x ? x : oct_bits_f32(OCT_F32_NAN);
}

/* Behind +-128 every logistic function here is 0 or 1: arguments need go no further. */
#define OCT_ACT_FAR 128.0f

static inline float oct_act_near(float x) {
    float low = x < -OCT_ACT_FAR ? -OCT_ACT_FAR : x;
    return low > OCT_ACT_FAR ? OCT_ACT_FAR : low;
}

/* z(x) of activations that are x logistic(z(x)), or of the logistic function itself. GELU by
 * tanh is of that kind: (1 + tanh(u)) / 2 = logistic(2 u). */
static inline float oct_act_inner(oct_activation act, float x) {
    float cube = 0x1.6e4e26p-5f * (x * x * x);                  /* 0.044715 */
    return act == OCT_ACT_GELU    ? 0x1.988454p+0f * (x + cube) /* 2 sqrt(2 / pi) */
           : act == OCT_ACT_QGELU ? 1.702f * x
                                  : x;
}

/* dz / dx. */
static inline float oct_act_inner_slope(oct_activation act, float x) {
    float square = 0x1.12ba9ep-3f * (x * x); /* 3 * 0.044715 */
    return act == OCT_ACT_GELU    ? 0x1.988454p+0f * (1.0f + square)
           : act == OCT_ACT_QGELU ? 1.702f
                                  : 1.0f;
}

/* act(x). NaN gives NaN; -Inf gives 0 as the limit does, and +-0 gives 0 (the logistic
 * function: 1/2). */
static inline float oct_act(oct_activation act, float x) {
    if (act == OCT_ACT_RELU || act == OCT_ACT_SRELU) {
        float positive = x <= 0.0f ? 0.0f : x;
        return act == OCT_ACT_RELU ? positive : positive * positive;
    }
    oct_logistic both = oct_logistic_of(oct_act_inner(act, oct_act_near(x)));
    float least = x < -OCT_ACT_FAR ? -OCT_ACT_FAR : x;
    return act == OCT_ACT_SIGMOID ? both.of : least * both.of;
}

/* act(x) and its derivative there. */
typedef struct oct_act_both {
    float value, slope;
} oct_act_both;

static inline oct_act_both oct_act_slope(oct_activation act, float x) {
    if (act == OCT_ACT_RELU || act == OCT_ACT_SRELU) {
        float positive = x <= 0.0f ? 0.0f : x;
        oct_act_both relu = {positive, x <= 0.0f ? 0.0f : 1.0f};
        oct_act_both squared = {positive * positive, positive + positive};
        return act == OCT_ACT_RELU ? relu : squared;
    }
    float near = oct_act_near(x), least = x < -OCT_ACT_FAR ? -OCT_ACT_FAR : x;
    oct_logistic both = oct_logistic_of(oct_act_inner(act, near));
    float bell = both.of * both.of_minus;
    float slope = both.of + (near * bell) * oct_act_inner_slope(act, near);
    oct_act_both sigmoid = {both.of, bell}, other = {least * both.of, slope};
    return act == OCT_ACT_SIGMOID ? sigmoid : other;
}

#endif
