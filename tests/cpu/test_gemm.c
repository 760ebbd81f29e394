/* test_gemm.c - products stay within their bound, for every operand, shape, result and ISA. */
#include "cpu/isa.h"
#include "gemm_pairs.h"
#include "test.h"

/* The product of a pair by every instruction set of the machine, checked. */
static void check(const pair *pr, const int64_t shape[3], const product_options *o) {
    product *p = product_make(pr, shape, o);
    for (int isa = 0; isa <= oct_cpu_isa(); isa++) {
        oct_gemm_kernels kernels = oct_isa_table(isa).gemm;
        product_run(p, &kernels, 1);
        double worst = product_worst(p);
        kernels.stream_least = 0; /* and the way of a large b, whatever its size */
        product_run(p, &kernels, 1);
        worst = fmax(worst, product_worst(p));
        test_report(worst <= 1.0, TEST_HERE("error within its bound"),
                    "%s %s, gemm %d, %d x %d, length %d, %s: %g of the bound", pr->a, pr->b,
                    (int)pr->gemm, (int)shape[0], (int)shape[1], (int)shape[2],
                    oct_isa_name(isa), worst);
    }
    product_free(p);
}

TEST(gemm__every_operand_within_the_bound) {
    static const int64_t shapes[][3] = {{1, 1, 1},    {2, 3, 5},     {5, 37, 100}, {17, 31, 16},
                                        {29, 33, 17}, {33, 67, 129}, {18, 70, 600}};
    for (size_t n = 0; n < PAIRS; n++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            product_options o = {.dst = OCTET_F32, .seed = 100 * n + s + 1};
            check(&pairs[n], shapes[s], &o);
        }
    }
}

TEST(gemm__every_length_of_the_product) {
    static const int64_t lengths[] = {0,   2,   3,   15,  31,  32,  33,  127, 128,
                                      255, 256, 257, 511, 512, 513, 769, 1025};
    for (size_t n = 0; n < PAIRS; n++) {
        for (size_t s = 0; s < sizeof lengths / sizeof lengths[0]; s++) {
            product_options o = {.dst = OCTET_F32, .seed = 7 * n + s + 1};
            int64_t shape[3] = {s % 2 ? 17 : 3, 9, lengths[s]};
            check(&pairs[n], shape, &o);
        }
    }
}

TEST(gemm__every_size_around_the_register_tiles) {
    static const int64_t sizes[] = {1, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 28, 31, 32, 33};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    for (size_t i = 0; i < SIZES * SIZES; i++) {
        product_options o = {.dst = OCTET_F32, .seed = i + 1};
        int64_t shape[3] = {sizes[i / SIZES], sizes[i % SIZES], 37};
        check(&pairs[i % PAIRS], shape, &o);
        check(&pairs[8], shape, &o);
        check(&pairs[26], shape, &o);
    }
}

TEST(gemm__every_result_bias_and_old_value) {
    static const octet_dtype dtypes[] = {OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_NONE};
    for (size_t i = 0; i < 24; i++) {
        for (size_t n = i % 3; n < PAIRS; n += 3) {
            product_options o = {.dst = dtypes[i % 3],
                                 .bias = dtypes[i / 3 % 4],
                                 .accumulate = i >= 12,
                                 .seed = i + 1};
            check(&pairs[n], (int64_t[]){19, 53, 40}, &o);
            check(&pairs[n], (int64_t[]){2, 53, 0}, &o);
        }
    }
}

TEST(gemm__extreme_scales_within_the_bound) {
    for (size_t n = 0; n < PAIRS; n++) {
        for (uint64_t seed = 1; seed < 9; seed++) {
            product_options o = {.dst = OCTET_F32, .kind = OPERAND_EXTREME, .seed = seed};
            check(&pairs[n], (int64_t[]){21, 40, 300}, &o);
            check(&pairs[n], (int64_t[]){4, 40, 300}, &o);
        }
    }
}

TEST(gemm__extreme_factors_within_the_bound) {
    for (size_t n = 0; n < PAIRS; n++) {
        for (uint64_t seed = 1; seed < 3; seed++) {
            product_options o = {.dst = OCTET_F32, .kind = OPERAND_FACTORS, .seed = seed};
            check(&pairs[n], (int64_t[]){21, 40, 100}, &o);
            check(&pairs[n], (int64_t[]){3, 40, 100}, &o);
        }
    }
}

/* Neither operand's scales suffer from what the other one's do to the sum. */
TEST(gemm__scales_far_apart_within_the_bound) {
    for (size_t n = 0; n < PAIRS; n++) {
        for (uint64_t seed = 1; seed < 5; seed++) {
            product_options o = {.dst = OCTET_F32, .kind = OPERAND_APART, .seed = seed};
            check(&pairs[n], (int64_t[]){21, 40, 100}, &o);
            check(&pairs[n], (int64_t[]){3, 40, 100}, &o);
        }
    }
}

TEST(gemm__subnormal_values_within_the_bound) {
    for (size_t n = 0; n < PAIRS; n++) {
        product_options o = {.dst = OCTET_F32, .kind = OPERAND_TINY, .seed = n + 1};
        check(&pairs[n], (int64_t[]){21, 40, 100}, &o);
    }
}

TEST(gemm__nan_and_inf_reach_what_they_touch) {
    for (size_t n = 0; n < PAIRS; n++) {
        for (int64_t rows = 3; rows < 40; rows += 17) {
            product_options o = {.dst = OCTET_BF16, .kind = OPERAND_NAN, .seed = 3};
            check(&pairs[n], (int64_t[]){rows, 35, 70}, &o);
        }
    }
}

/* Decoding: every number of rows around those that a kernel takes at once, odd sizes. */
TEST(gemm__few_rows_within_the_bound) {
    static const int64_t sizes[][2] = {{1, 7}, {9, 33}, {13, 191}, {66, 257}};
    static const operand_kind kinds[] = {OPERAND_USUAL, OPERAND_EXTREME, OPERAND_FACTORS,
                                         OPERAND_TINY, OPERAND_NAN};
    for (size_t n = 0; n < PAIRS; n++) {
        for (uint64_t i = 0; pairs[n].gemm == OCTET_FPROP && i < 9 * 4; i++) {
            product_options o = {.dst = OCTET_F32, .kind = kinds[i % 5], .seed = n + i + 1};
            check(&pairs[n], (int64_t[]){(int64_t)i / 4 + 1, sizes[i % 4][0], sizes[i % 4][1]},
                  &o);
        }
    }
}

TEST(gemm__larger_than_a_tile) {
    for (size_t n = 8; n < PAIRS; n += 9) {
        product_options o = {.dst = OCTET_BF16, .bias = OCTET_BF16, .seed = n};
        check(&pairs[n], (int64_t[]){530, 17, 40}, &o);
        check(&pairs[n], (int64_t[]){18, 1400, 20}, &o);
        check(&pairs[n], (int64_t[]){7, 1100, 20}, &o);
        check(&pairs[n], (int64_t[]){5, 6, 16400}, &o);
    }
}

TEST(gemm__nothing_to_do) {
    check(&pairs[0], (int64_t[]){0, 5, 5}, &(product_options){.dst = OCTET_F32, .seed = 1});
    check(&pairs[8], (int64_t[]){5, 0, 5}, &(product_options){.dst = OCTET_F32, .seed = 1});
    check(&pairs[26], (int64_t[]){0, 0, 0}, &(product_options){.dst = OCTET_F32, .seed = 1});
}

TEST_MAIN(gemm__every_operand_within_the_bound, gemm__every_length_of_the_product,
          gemm__every_size_around_the_register_tiles, gemm__every_result_bias_and_old_value,
          gemm__extreme_scales_within_the_bound, gemm__extreme_factors_within_the_bound,
          gemm__scales_far_apart_within_the_bound, gemm__subnormal_values_within_the_bound,
          gemm__nan_and_inf_reach_what_they_touch, gemm__few_rows_within_the_bound,
          gemm__larger_than_a_tile, gemm__nothing_to_do)
