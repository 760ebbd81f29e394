/* test_activation.c - e^-t, the logistic function and activations against double precision. */
#include <math.h>

#include "format/norm.h"
#include "test.h"

/* The distance of fp32 numbers around `value`. */
static double ulp(double value) {
    int exponent;
    if (fabs(value) < 0x1p-126) {
        return 0x1p-149;
    }
    (void)frexp(value, &exponent);
    return ldexp(1, exponent - 24);
}

/* Every so many-th float up to where the result is 0. */
TEST(exp__is_within_one_ulp) {
    double worst = 0;
    for (uint32_t bits = 0; bits < 0x42d20000u; bits += 1009) {
        float t = oct_bits_f32(bits);
        double want = exp(-(double)t), error = fabs(oct_exp_minus(t) - want) / ulp(want);
        worst = error > worst ? error : worst;
    }
    printf("e^-t errs by %.3f ulp at most\n", worst);
    CHECK(worst < 1.0);
}

TEST(exp__specials) {
    CHECK_EQ_BITS(oct_exp_minus(0.0f), 1.0f);
    CHECK_EQ_BITS(oct_exp_minus(104.0f), 0.0f);
    CHECK_EQ_BITS(oct_exp_minus(INFINITY), 0.0f);
    CHECK_EQ_BITS(oct_exp_minus(0x1.9d1d9ep+6f), 0x1p-149f); /* 149 ln 2 */
    CHECK(isnan(oct_exp_minus(NAN)));
}

TEST(logistic__is_within_three_ulp) {
    double worst = 0;
    for (uint32_t bits = 0; bits < 0x42ae0000u; bits += 1013) {
        for (uint32_t sign = 0; sign < 2; sign++) {
            float z = oct_bits_f32(bits | sign << 31);
            double want = 1 / (1 + exp(-(double)z)), other = 1 / (1 + exp((double)z));
            oct_logistic both = oct_logistic_of(z);
            double error = fmax(fabs(both.of - want) / ulp(want),
                                fabs(both.of_minus - other) / ulp(other));
            worst = error > worst ? error : worst;
        }
    }
    printf("the logistic function errs by %.3f ulp at most\n", worst);
    CHECK(worst < 3.0);
    CHECK_EQ_BITS(oct_logistic_of(INFINITY).of, 1.0f);
    CHECK_EQ_BITS(oct_logistic_of(-INFINITY).of, 0.0f);
    CHECK_EQ_BITS(oct_logistic_of(-INFINITY).of_minus, 1.0f);
}

static double inner(oct_activation act, double x) {
    return act == OCT_ACT_GELU    ? 2 * sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)
           : act == OCT_ACT_QGELU ? 1.702 * x
                                  : x;
}

static double inner_slope(oct_activation act, double x) {
    return act == OCT_ACT_GELU    ? 2 * sqrt(2 / acos(-1.0)) * (1 + 3 * 0.044715 * x * x)
           : act == OCT_ACT_QGELU ? 1.702
                                  : 1;
}

/* z is off by a few ulp, and e^z by |z| times as many. */
TEST(activation__follows_its_formula) {
    for (int a = OCT_ACT_GELU; a <= OCT_ACT_SIGMOID; a++) {
        oct_activation act = (oct_activation)a;
        bool relu = act == OCT_ACT_RELU || act == OCT_ACT_SRELU;
        int64_t failures = 0;
        for (uint32_t bits = 0; !relu && bits < 0x7f800000u; bits += 10007) {
            float x = oct_bits_f32(bits ^ (bits & 1) << 31);
            double z = inner(act, (double)x), s = 1 / (1 + exp(-z)), minus = 1 / (1 + exp(z));
            double want = act == OCT_ACT_SIGMOID ? s : (double)x * s;
            double term = (double)x * s * minus * inner_slope(act, (double)x);
            double slope = act == OCT_ACT_SIGMOID ? s * minus : s + (isnan(term) ? 0 : term);
            double loss = (12 + 8 * fmin(fabs(z), 110)) * 0x1p-24;
            oct_act_both both = oct_act_slope(act, x);
            double size = act == OCT_ACT_SIGMOID ? slope : s + fabs(isnan(term) ? 0 : term);
            failures += !(fabs(oct_act(act, x) - want) <= loss * fabs(want) + 0x1p-125);
            failures += !(fabs(both.slope - slope) <= 2 * loss * size + 0x1p-120);
            failures += oct_f32_bits(both.value) != oct_f32_bits(oct_act(act, x));
        }
        CHECK_EQ_INT(failures, 0);
    }
}

TEST(activation__specials) {
    static const float far[] = {-INFINITY, -3e38f, -1e4f, -200.0f};
    for (int a = OCT_ACT_GELU; a <= OCT_ACT_SIGMOID; a++) {
        oct_activation act = (oct_activation)a;
        bool sigmoid = act == OCT_ACT_SIGMOID, square = act == OCT_ACT_SRELU;
        CHECK(isnan(oct_act(act, NAN)));
        CHECK(oct_act(act, 0.0f) == (sigmoid ? 0.5f : 0.0f));
        CHECK(oct_act(act, -0.0f) == (sigmoid ? 0.5f : 0.0f));
        CHECK_EQ_BITS(oct_act(act, INFINITY), sigmoid ? 1.0f : INFINITY);
        CHECK_EQ_BITS(oct_act_slope(act, INFINITY).slope, sigmoid  ? 0.0f
                                                          : square ? INFINITY
                                                                   : 1.0f);
        for (int i = 0; i < 4; i++) {
            CHECK(oct_act(act, far[i]) == 0.0f);
            CHECK(oct_act_slope(act, far[i]).slope == 0.0f);
        }
    }
    CHECK_EQ_BITS(oct_act(OCT_ACT_RELU, -1.0f), 0.0f);
    CHECK_EQ_BITS(oct_act(OCT_ACT_SRELU, 3.0f), 9.0f);
    CHECK_EQ_BITS(oct_act_slope(OCT_ACT_SRELU, 3.0f).slope, 6.0f);
}

TEST(sqrt__is_correctly_rounded) {
    int64_t failures = 0;
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 4099) {
        float x = oct_bits_f32(bits);
        failures += oct_f32_bits(oct_sqrt_exact(x)) != oct_f32_bits(sqrtf(x));
    }
    for (uint32_t low = 0; low < 0x01000000u; low += 3) { /* one binade and its neighbour */
        float x = oct_bits_f32(0x3f800000u + low);
        failures += oct_f32_bits(oct_sqrt_exact(x)) != oct_f32_bits(sqrtf(x));
    }
    for (uint32_t low = 1; low < 70000; low++) { /* subnormals */
        float x = oct_bits_f32(low);
        failures += oct_f32_bits(oct_sqrt_exact(x)) != oct_f32_bits(sqrtf(x));
    }
    CHECK_EQ_INT(failures, 0);
    CHECK_EQ_BITS(oct_sqrt_exact(-0.0f), -0.0f);
    CHECK_EQ_BITS(oct_sqrt_exact(INFINITY), INFINITY);
    CHECK(isnan(oct_sqrt_exact(-1.0f)) && isnan(oct_sqrt_exact(NAN)));
}

TEST(norm__one_nan) {
    CHECK_EQ_INT(oct_f32_bits(oct_one_nan(oct_bits_f32(0xffc12345u))), OCT_F32_NAN);
    CHECK_EQ_BITS(oct_one_nan(-0.0f), -0.0f);
    CHECK_EQ_BITS(oct_norm_rstd(4.0f, 4, 3.0f), 0.5f);
    CHECK_EQ_BITS(oct_norm_rstd(INFINITY, 4, 3.0f), 0.0f);
}

TEST_MAIN(exp__is_within_one_ulp, exp__specials, logistic__is_within_three_ulp,
          activation__follows_its_formula, activation__specials, sqrt__is_correctly_rounded,
          norm__one_nan)
