/* test_plain.c - amax, casts, bias and column sums of tensors that are not quantized. */
#include "every_isa.h"

#include "inputs.h"
#include "model.h"
#include "quantizers.h"

#include <math.h>

static const int thread_counts[] = {1, 2, 5};

static cpu_tensor filled(octet_dtype dtype, int shape, cpu_input input, uint64_t seed) {
    int64_t cols = cpu_shapes[shape][1];
    cpu_tensor x =
        cpu_tensor_plain(dtype, cpu_shapes[shape][0], cols, cols + (int64_t)(seed % 3));
    cpu_fill(&x, input, seed);
    return x;
}

TEST(amax__equals_the_model) {
    uint64_t state = 1;
    for (int s = 0; s < CPU_SHAPES; s++) {
        for (int i = 0; i < 3 * CPU_INPUTS * 3; i++) {
            cpu_tensor x = filled((octet_dtype)(OCTET_F32 + i % 3), s,
                                  (cpu_input)(i / 3 % CPU_INPUTS), cpu_random(&state));
            oct_threads threads = cpu_threads(thread_counts[i / 3 / CPU_INPUTS]);
            float got = -1;
            oct_cpu_amax(&got, &x.m, &threads);
            CHECK_EQ_BITS(got, model_amax(&x));
            cpu_tensor_free(&x);
        }
    }
}

/* Every place of a long row, so that none is skipped, and NaN beside it. */
TEST(amax__finds_the_largest_wherever_it_is) {
    for (int dtype = OCTET_F32; dtype <= OCTET_F16; dtype++) {
        cpu_tensor x = cpu_tensor_plain((octet_dtype)dtype, 3, 131, 133);
        cpu_fill(&x, CPU_INPUT_ZEROS, 3);
        for (int64_t i = 0; i < 3 * 131; i++) {
            float got = -1;
            cpu_tensor_set(&x, i / 131, i % 131, -0x1p-14f);
            cpu_tensor_set(&x, (i + 1) % 393 / 131, (i + 1) % 131, NAN);
            oct_cpu_amax(&got, &x.m, NULL);
            CHECK_EQ_BITS(got, 0x1p-14f);
            cpu_tensor_set(&x, i / 131, i % 131, 0);
            cpu_tensor_set(&x, (i + 1) % 393 / 131, (i + 1) % 131, 0);
        }
        cpu_tensor_free(&x);
    }
}

TEST(amax__nothing_has_an_amax_of_zero) {
    for (int s = 0; s < 3; s++) {
        cpu_tensor x = filled(OCTET_BF16, s, CPU_INPUT_ZEROS, 1);
        float got = -1;
        oct_cpu_amax(&got, &x.m, NULL);
        CHECK_EQ_BITS(got, 0.0f);
        cpu_tensor_free(&x);
    }
}

static uint32_t code_at(const cpu_tensor *x, int64_t row, int64_t col) {
    uint32_t code = 0;
    size_t size = (size_t)octet_dtype_bits((octet_dtype)x->m.dtype) / 8;
    memcpy(&code, (char *)x->m.parts[0] + (size_t)(row * x->m.stride + col) * size, size);
    return code;
}

/* Bits, NaNs included; between equal dtypes nothing changes at all. */
TEST(cast__rounds_once) {
    for (int i = 0; i < 9 * CPU_INPUTS; i++) {
        octet_dtype from = (octet_dtype)(OCTET_F32 + i % 3),
                    to = (octet_dtype)(OCTET_F32 + i / 3 % 3);
        for (int s = 0; s < CPU_SHAPES; s += 2) {
            cpu_tensor x = filled(from, s, (cpu_input)(i / 9), (uint64_t)(i + s));
            cpu_tensor y = cpu_tensor_plain(to, x.m.rows, x.m.cols, x.m.cols + 2);
            oct_threads threads = cpu_threads(thread_counts[s % 3]);
            oct_cpu_cast(&y.m, &x.m, &threads);
            for (int64_t at = 0; at < x.m.rows * x.m.cols; at++) {
                uint32_t before = code_at(&x, at / x.m.cols, at % x.m.cols);
                uint32_t want =
                    from == to ? before : octet_encode(to, octet_decode(from, before));
                CHECK_EQ_BITS(code_at(&y, at / x.m.cols, at % x.m.cols), want);
            }
            CHECK(cpu_tensor_guarded(&y));
            cpu_tensor_free(&x);
            cpu_tensor_free(&y);
        }
    }
}

TEST(add_bias__is_an_fp32_sum_rounded_to_the_dtype) {
    for (int i = 0; i < 27; i++) {
        octet_dtype from = (octet_dtype)(OCTET_F32 + i % 3),
                    to = (octet_dtype)(OCTET_F32 + i / 3 % 3);
        octet_dtype kind = (octet_dtype)(OCTET_F32 + i / 9);
        for (int s = 0; s < CPU_SHAPES; s++) {
            cpu_tensor x = filled(from, s, (cpu_input)(s % CPU_INPUTS), (uint64_t)(i + s));
            cpu_tensor bias = cpu_tensor_plain(kind, 1, x.m.cols, x.m.cols);
            cpu_tensor y = cpu_tensor_plain(to, x.m.rows, x.m.cols, x.m.cols + 1);
            oct_threads threads = cpu_threads(thread_counts[i % 3]);
            cpu_fill(&bias, CPU_INPUT_BLOCKS, 5);
            oct_cpu_add_bias(&y.m, &x.m, bias.m.parts[0], kind, &threads);
            for (int64_t at = 0; at < x.m.rows * x.m.cols; at++) {
                int64_t r = at / x.m.cols, c = at % x.m.cols;
                float sum = cpu_tensor_get(&x, r, c) + cpu_tensor_get(&bias, 0, c);
                if (sum != sum) {
                    CHECK(isnan(cpu_tensor_get(&y, r, c)));
                } else {
                    CHECK_EQ_BITS(code_at(&y, r, c), octet_encode(to, sum));
                }
            }
            CHECK(cpu_tensor_guarded(&y));
            cpu_tensor_free(&x);
            cpu_tensor_free(&bias);
            cpu_tensor_free(&y);
        }
    }
}

#define LEAF 16

/* Leaves of 16 rows in order, joined in pairs from the left; what is left over is added from
 * the smallest up. */
static float column_sum(const cpu_tensor *x, int64_t col, int64_t begin, int64_t leaves) {
    float sum = 0;
    if (leaves > 1) {
        return column_sum(x, col, begin, leaves / 2) +
               column_sum(x, col, begin + leaves / 2 * LEAF, leaves / 2);
    }
    for (int64_t r = begin; r < begin + LEAF && r < x->m.rows; r++) {
        sum += cpu_tensor_get(x, r, col);
    }
    return sum;
}

static float whole_sum(const cpu_tensor *x, int64_t col) {
    int64_t leaves = (x->m.rows + LEAF - 1) / LEAF, begin[64], n = 0, at = 0;
    float sum = 0;
    for (int64_t bit = (int64_t)1 << 40; bit; bit /= 2) {
        if (leaves & bit) {
            begin[n++] = at;
            at += bit * LEAF;
        }
    }
    for (int64_t bit = 1; n > 0; bit *= 2) {
        if (leaves & bit) {
            sum += column_sum(x, col, begin[--n], bit);
        }
    }
    return sum;
}

/* What dst holds is added to the whole sum, and the result is rounded once. */
TEST(bias_grad__is_a_fixed_tree_of_fp32_sums) {
    static const int64_t shapes[][2] = {{0, 5},   {1, 1},   {15, 255}, {113, 257},  {128, 7},
                                        {129, 3}, {240, 9}, {700, 5},  {1023, 300}, {5000, 2}};
    for (int i = 0; i < 90; i++) {
        octet_dtype from = (octet_dtype)(OCTET_F32 + i % 3),
                    to = (octet_dtype)(OCTET_F32 + i / 3 % 3);
        const int64_t *shape = shapes[i / 9];
        cpu_tensor x = cpu_tensor_plain(from, shape[0], shape[1], shape[1] + i % 2);
        cpu_fill(&x, CPU_INPUT_BLOCKS, (uint64_t)i);
        for (int t = 0; t < 3; t++) {
            cpu_tensor y = cpu_tensor_plain(to, 1, shape[1], shape[1]);
            oct_threads threads = cpu_threads(thread_counts[t]);
            oct_cpu_bias_grad(&y.m, &x.m, false, &threads);
            for (int64_t c = 0; c < shape[1]; c++) {
                CHECK_EQ_BITS(code_at(&y, 0, c), octet_encode(to, whole_sum(&x, c)));
            }
            cpu_tensor old = cpu_tensor_plain(to, 1, shape[1], shape[1]);
            cpu_fill(&old, CPU_INPUT_TIES, (uint64_t)i);
            cpu_tensor_copy(&y, &old);
            oct_cpu_bias_grad(&y.m, &x.m, true, &threads);
            for (int64_t c = 0; c < shape[1]; c++) {
                float sum = whole_sum(&x, c) + cpu_tensor_get(&old, 0, c);
                CHECK_EQ_BITS(code_at(&y, 0, c), octet_encode(to, sum));
            }
            cpu_tensor_free(&old);
            CHECK(cpu_tensor_guarded(&y));
            cpu_tensor_free(&y);
        }
        cpu_tensor_free(&x);
    }
}

/* The error of a tree of depth d, leaf included, is at most d u sum |x|, to first order. */
TEST(bias_grad__stays_near_the_exact_sum) {
    cpu_tensor x = cpu_tensor_plain(OCTET_F32, 20000, 3, 3);
    cpu_tensor y = cpu_tensor_plain(OCTET_F32, 1, 3, 3);
    cpu_fill(&x, CPU_INPUT_TIES, 3);
    for (int64_t r = 0; r < 20000; r++) {
        cpu_tensor_set(&x, r, 1, 0.1f);
    }
    oct_cpu_bias_grad(&y.m, &x.m, false, NULL);
    for (int64_t c = 0; c < 3; c++) {
        double exact = 0, size = 0;
        for (int64_t r = 0; r < 20000; r++) {
            exact += (double)cpu_tensor_get(&x, r, c);
            size += fabs((double)cpu_tensor_get(&x, r, c));
        }
        double depth = LEAF + 11 + 11; /* a leaf, log2 of 1250 leaves, what is left over */
        CHECK(fabs((double)cpu_tensor_get(&y, 0, c) - exact) <= depth * 0x1p-24 * 1.01 * size);
    }
    cpu_tensor_free(&x);
    cpu_tensor_free(&y);
}

CPU_TEST_MAIN(amax__equals_the_model, amax__finds_the_largest_wherever_it_is,
              amax__nothing_has_an_amax_of_zero, cast__rounds_once,
              add_bias__is_an_fp32_sum_rounded_to_the_dtype,
              bias_grad__is_a_fixed_tree_of_fp32_sums, bias_grad__stays_near_the_exact_sum)
