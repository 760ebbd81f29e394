/* test_gemm_own.c - the project's own product, emulated, keeps the CPU's bound. */
#include "cpu/gemm_pairs.h"
#include "cuda/gemm.h"
#include "emulate_launch.h"
#include "test.h"

static void run(product *p) {
    oct_cuda_gemm_call call = {.gemm = p->call.gemm,
                               .dst = p->call.dst,
                               .a = p->call.a,
                               .b = p->call.b,
                               .a_use = p->call.a_use,
                               .b_use = p->call.b_use,
                               .bias = {p->call.bias, (uint8_t)p->call.bias_dtype},
                               .accumulate = p->call.accumulate};
    memcpy(p->call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    oct_gemm_params params = oct_gemm_params_of(&call);
    oct_cuda_launch launch;
    CHECK_EQ_INT(oct_gemm_own_launch(&launch, &params, NULL), OCTET_OK);
    emulated_launch emulated = {.kernel = emulated_kernel("gemm", launch.kernel),
                                .grid = {launch.grid[0], 1, 1},
                                .threads = launch.threads,
                                .params = launch.params,
                                .params_bytes = launch.params_bytes};
    if (CHECK(emulated.kernel != NULL) && launch.grid[0] > 0) {
        emulated_run(&emulated);
    }
}

static void check(const pair *pr, const int64_t shape[3], const product_options *o) {
    product *p = product_make(pr, shape, o);
    run(p);
    double worst = product_worst(p);
    test_report(worst <= 1.0, TEST_HERE("error within its bound"),
                "%s %s, gemm %d, %d x %d, length %d: %g of the bound", pr->a, pr->b,
                (int)pr->gemm, (int)shape[0], (int)shape[1], (int)shape[2], worst);
    product_free(p);
}

TEST(gemm_own__every_operand_within_the_bound) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {17, 31, 16}, {29, 33, 17}, {33, 131, 300}};
    for (size_t n = 0; n < PAIRS; n++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            check(&pairs[n], shapes[s],
                  &(product_options){.dst = OCTET_F32, .seed = 100 * n + s + 1});
        }
    }
}

/* Tails of a step of 32, of the 16 elements that a thread loads, and of their bytes. */
TEST(gemm_own__every_length_of_the_product) {
    static const int64_t lengths[] = {0, 2, 3, 15, 31, 32, 33, 47, 64, 97, 127, 128, 129, 257};
    enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
    for (size_t n = 0; n < PAIRS * LENGTHS; n++) {
        int64_t shape[3] = {n % 3 ? 17 : 3, 9, lengths[n / PAIRS]};
        check(&pairs[n % PAIRS], shape, &(product_options){.dst = OCTET_F32, .seed = n + 1});
    }
}

TEST(gemm_own__more_than_one_tile) {
    static const int64_t shapes[][3] = {{129, 7, 40}, {5, 260, 33}, {130, 140, 20}};
    for (size_t n = 0; n < PAIRS; n++) {
        check(&pairs[n], shapes[n % 3], &(product_options){.dst = OCTET_BF16, .seed = n + 1});
    }
}

/* More tiles down than run beside each other, and a group that is not full. */
TEST(gemm_own__more_than_one_group_of_tiles) {
    product_options o = {.dst = OCTET_BF16, .seed = 5};
    check(&pairs[8], (int64_t[]){9 * 128 + 3, 140, 16}, &o);
    check(&pairs[0], (int64_t[]){10 * 64 + 3, 140, 16}, &o);
}

TEST(gemm_own__every_result_bias_and_old_value) {
    static const octet_dtype dtypes[] = {OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_NONE};
    for (uint64_t i = 0; i < 24; i++) {
        for (size_t n = i % 7; n < PAIRS; n += 7) {
            product_options o = {.dst = dtypes[i % 3],
                                 .bias = dtypes[i / 3 % 4],
                                 .accumulate = i >= 12,
                                 .seed = i + 1};
            check(&pairs[n], (int64_t[]){19, 53, 40}, &o);
            check(&pairs[n], (int64_t[]){2, 53, 0}, &o);
        }
    }
}

TEST(gemm_own__extreme_scales_and_factors_within_the_bound) {
    static const operand_kind kinds[] = {OPERAND_EXTREME, OPERAND_FACTORS, OPERAND_TINY,
                                         OPERAND_NAN};
    for (size_t n = 0; n < PAIRS; n++) {
        for (size_t k = 0; k < 4; k++) {
            product_options o = {.dst = OCTET_F32, .kind = kinds[k], .seed = n + 3 * k + 1};
            check(&pairs[n], (int64_t[]){21, 40, 150}, &o);
        }
    }
}

TEST(gemm_own__nothing_to_do) {
    product_options o = {.dst = OCTET_F32, .seed = 1};
    check(&pairs[0], (int64_t[]){0, 5, 5}, &o);
    check(&pairs[8], (int64_t[]){5, 0, 5}, &o);
    check(&pairs[26], (int64_t[]){0, 0, 0}, &o);
}

TEST_MAIN(gemm_own__every_operand_within_the_bound, gemm_own__every_length_of_the_product,
          gemm_own__more_than_one_tile, gemm_own__more_than_one_group_of_tiles,
          gemm_own__every_result_bias_and_old_value,
          gemm_own__extreme_scales_and_factors_within_the_bound, gemm_own__nothing_to_do)
