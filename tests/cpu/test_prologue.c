/* test_prologue.c - norms and activations on every instruction set: one order, the same bits.
 */
#include "every_isa.h"

#include <math.h>

#include "prologue_cases.h"
#include "quantizers.h"

#include "format/norm.h"

/* ---- the order of sums, written down once more ------------------------------------------- */

static float row_sum(const float *terms, int64_t cols) {
    static float lanes[OCT_NORM_LANES];
    for (int l = 0; l < OCT_NORM_LANES; l++) {
        lanes[l] = 0;
    }
    for (int64_t c = 0; c < cols; c++) {
        lanes[c % OCT_NORM_LANES] += terms[c];
    }
    for (int half = OCT_NORM_LANES / 2; half; half /= 2) {
        for (int l = 0; l < half; l++) {
            lanes[l] += lanes[l + half];
        }
    }
    return lanes[0];
}

static float stored(float value, octet_dtype dtype) {
    return octet_decode(dtype, octet_encode(dtype, value));
}

static bool same(float a, float b) {
    return oct_f32_bits(a) == oct_f32_bits(b);
}

typedef struct row_model {
    oct_norm_row norm;
    oct_norm_means means;
} row_model;

static float factor_at(const prologue_case *c, int64_t col) {
    float gamma = cpu_tensor_get(&c->gamma, 0, col);
    return c->call.zero_centered ? 1.0f + gamma : gamma;
}

static row_model model_of(const prologue_case *c, int64_t r) {
    static float terms[8192], along[8192];
    int64_t cols = c->f.m.cols;
    bool centred = c->call.prologue == OCTET_LAYERNORM;
    float count = cols ? (float)cols : 1.0f;
    row_model model = {{0, 0}, {0, 0}};
    for (int64_t i = 0; i < cols; i++) {
        terms[i] = cpu_tensor_get(&c->x, r, i);
    }
    model.norm.mean = centred ? oct_one_nan(row_sum(terms, cols) / count) : 0;
    for (int64_t i = 0; i < cols; i++) {
        float apart = cpu_tensor_get(&c->x, r, i) - model.norm.mean;
        terms[i] = apart * apart;
    }
    model.norm.rstd = oct_one_nan(1 / sqrtf(row_sum(terms, cols) / count + c->call.eps));
    for (int64_t i = 0; i < cols; i++) {
        float normed = (cpu_tensor_get(&c->x, r, i) - model.norm.mean) * model.norm.rstd;
        terms[i] = cpu_tensor_get(&c->grad, r, i) * factor_at(c, i);
        along[i] = terms[i] * normed;
    }
    model.means.grad = centred ? oct_one_nan(row_sum(terms, cols) / count) : 0;
    model.means.along = oct_one_nan(row_sum(along, cols) / count);
    return model;
}

static bool norm_row_is(const prologue_case *c, int64_t r) {
    row_model m = model_of(c, r);
    octet_dtype dtype = (octet_dtype)c->f.m.dtype;
    bool centred = c->call.prologue == OCTET_LAYERNORM, good = true;
    good = same(cpu_tensor_get(&c->stats, r, centred), m.norm.rstd) &&
           (!centred || same(cpu_tensor_get(&c->stats, r, 0), m.norm.mean));
    for (int64_t i = 0; i < c->f.m.cols; i++) {
        float normed = (cpu_tensor_get(&c->x, r, i) - m.norm.mean) * m.norm.rstd;
        float f = normed * factor_at(c, i);
        f = c->call.beta.at ? f + cpu_tensor_get(&c->beta, 0, i) : f;
        float g = cpu_tensor_get(&c->grad, r, i) * factor_at(c, i);
        float dx = ((g - m.means.grad) - normed * m.means.along) * m.norm.rstd;
        good = good && same(cpu_tensor_get(&c->f, r, i), stored(oct_one_nan(f), dtype)) &&
               same(cpu_tensor_get(&c->dx, r, i), stored(oct_one_nan(dx), dtype));
    }
    return good;
}

static bool act_row_is(const prologue_case *c, int64_t r) {
    oct_activation act = oct_prologue_activation(c->call.prologue);
    bool gated = oct_prologue_is_gated(c->call.prologue), good = true;
    octet_dtype dtype = (octet_dtype)c->f.m.dtype;
    int64_t cols = c->f.m.cols;
    for (int64_t i = 0; i < cols; i++) {
        float gate = gated ? cpu_tensor_get(&c->x, r, cols + i) : 1;
        float x = cpu_tensor_get(&c->x, r, i), grad = cpu_tensor_get(&c->grad, r, i);
        oct_act_both both = oct_act_slope(act, x);
        float f = oct_one_nan(oct_act(act, x) * gate);
        float dx = oct_one_nan(grad * both.slope * gate);
        good = good && same(cpu_tensor_get(&c->f, r, i), stored(f, dtype)) &&
               same(cpu_tensor_get(&c->dx, r, i), stored(dx, dtype));
        good = good && (!gated || same(cpu_tensor_get(&c->dx, r, cols + i),
                                       stored(oct_one_nan(grad * both.value), dtype)));
    }
    return good;
}

static float largest(const cpu_tensor *x) {
    float most = 0;
    for (int64_t i = 0; i < x->m.rows * x->m.cols; i++) {
        float one = fabsf(cpu_tensor_get(x, i / x->m.cols, i % x->m.cols));
        most = one > most ? one : most;
    }
    return most;
}

TEST(prologue__is_the_model_to_the_bit) {
    for (int i = 0; i < (OCTET_PROLOGUES - 1) * CPU_SHAPES * 3; i++) {
        int prologue = 1 + i % (OCTET_PROLOGUES - 1), shape = i / (OCTET_PROLOGUES - 1) / 3;
        prologue_case c;
        prologue_case_make(&c, prologue, cpu_shapes[shape][0], cpu_shapes[shape][1],
                           (uint64_t)i);
        oct_threads threads = cpu_threads(1 + i % 3);
        prologue_case_run(&c, &threads);
        bool good = same(c.amax, largest(&c.f));
        for (int64_t r = 0; r < c.f.m.rows; r++) {
            good = good &&
                   (oct_prologue_is_norm(prologue) ? norm_row_is(&c, r) : act_row_is(&c, r));
        }
        if (!CHECK(good && prologue_case_guarded(&c)) && test_failures <= TEST_REPORTS) {
            printf("    prologue %d, shape %d, seed %d\n", prologue, shape, i);
        }
        prologue_case_free(&c);
    }
}

TEST(prologue__threads_change_nothing) {
    for (int i = 0; i < (OCTET_PROLOGUES - 1) * 4; i++) {
        prologue_case one, many;
        int64_t rows = i % 2 ? 261 : 37, cols = i % 2 ? 19 : 1025;
        prologue_case_make(&one, 1 + i / 4, rows, cols, (uint64_t)i);
        prologue_case_make(&many, 1 + i / 4, rows, cols, (uint64_t)i);
        oct_threads threads = cpu_threads(5);
        size_t at;
        prologue_case_run(&one, NULL);
        prologue_case_run(&many, &threads);
        CHECK_EQ_INT(cpu_tensor_differ(&one.f, &many.f, &at), -1);
        CHECK_EQ_INT(cpu_tensor_differ(&one.dx, &many.dx, &at), -1);
        if (oct_prologue_is_norm(1 + i / 4)) {
            CHECK_EQ_INT(cpu_tensor_differ(&one.stats, &many.stats, &at), -1);
            CHECK_EQ_INT(cpu_tensor_differ(&one.dgamma, &many.dgamma, &at), -1);
        }
        prologue_case_free(&one);
        prologue_case_free(&many);
    }
}

/* Gamma's gradient is a bias's gradient, of products. */
TEST(prologue__gamma_grad_is_summed_as_a_bias_is) {
    for (int i = 0; i < 24; i++) {
        prologue_case c;
        prologue_case_make(&c, 1 + i % 2, i % 3 ? 300 : 17, i % 5 ? 65 : 300,
                           (uint64_t)(i * 9 + 3));
        prologue_case_run(&c, NULL);
        cpu_tensor products = cpu_tensor_plain(OCTET_F32, c.f.m.rows, c.f.m.cols, c.f.m.cols);
        cpu_tensor want =
            cpu_tensor_plain((octet_dtype)c.dgamma.m.dtype, 1, c.f.m.cols, c.f.m.cols);
        bool centred = c.call.prologue == OCTET_LAYERNORM;
        for (int64_t j = 0; j < c.f.m.rows * c.f.m.cols; j++) {
            int64_t r = j / c.f.m.cols, col = j % c.f.m.cols;
            float mean = centred ? cpu_tensor_get(&c.stats, r, 0) : 0;
            float normed =
                (cpu_tensor_get(&c.x, r, col) - mean) * cpu_tensor_get(&c.stats, r, centred);
            cpu_tensor_set(&products, r, col, cpu_tensor_get(&c.grad, r, col) * normed);
        }
        size_t at;
        oct_cpu_bias_grad(&want.m, &products.m, false, NULL);
        CHECK_EQ_INT(cpu_tensor_differ(&c.dgamma, &want, &at), -1);
        cpu_tensor_free(&products);
        cpu_tensor_free(&want);
        prologue_case_free(&c);
    }
}

/* A row of zeros, one huge element, and what overflows: no NaN where the formula has none. */
TEST(norm__of_extreme_rows) {
    prologue_case c;
    for (int prologue = OCTET_RMSNORM; prologue <= OCTET_LAYERNORM; prologue++) {
        prologue_case_make(&c, prologue, 3, 40, 1); /* bf16 */
        for (int64_t i = 0; i < 40; i++) {
            cpu_tensor_set(&c.x, 0, i, 0);
            cpu_tensor_set(&c.x, 1, i, i == 7 ? 0x1p60f : 1);
            cpu_tensor_set(&c.x, 2, i, i == 7 ? INFINITY : 1);
            cpu_tensor_set(&c.gamma, 0, i, 1);
        }
        c.call.zero_centered = false;
        c.call.beta.at = NULL;
        prologue_case_run(&c, NULL);
        for (int64_t i = 0; i < 40; i++) {
            float huge = cpu_tensor_get(&c.f, 1, i);
            CHECK_EQ_BITS(cpu_tensor_get(&c.f, 0, i), 0.0f);
            CHECK(i == 7 ? huge > 6.1f && huge < 6.4f : fabsf(huge) < 0.2f);
            CHECK(prologue == OCTET_RMSNORM && i != 7
                      ? cpu_tensor_get(&c.f, 2, i) == 0
                      : oct_f32_bits(cpu_tensor_get(&c.f, 2, i)) == OCT_F32_NAN);
        }
        prologue_case_free(&c);
    }
}

CPU_TEST_MAIN(prologue__is_the_model_to_the_bit, prologue__threads_change_nothing,
              prologue__gamma_grad_is_summed_as_a_bias_is, norm__of_extreme_rows)
