/* test_target.c - what devices answer to planners. */
#define _GNU_SOURCE /* setenv */
#include "core/target.h"

#include <stdlib.h>

#include "cuda/target.h"
#include "octet/run.h"
#include "quant/support.h"
#include "test.h"

enum { ARCHS = 140 };

/* Compute capabilities that were sold, and their native schemes as bits. */
static const struct {
    uint16_t arch;
    uint32_t native;
} sold[] = {
#define BIT(scheme) (1u << OCTET_##scheme)
#define ONE_SCALE (BIT(FP8_TENSOR) | BIT(FP8_DELAYED))
    {0, 0},
    {80, 0},
    {86, 0},
    {89, ONE_SCALE},
    {90, ONE_SCALE | BIT(FP8_BLOCK)},
    {100, ONE_SCALE | BIT(MXFP8) | BIT(NVFP4)},
    {103, ONE_SCALE | BIT(MXFP8) | BIT(NVFP4)},
    {120, ONE_SCALE | BIT(NVFP4)},
    {121, ONE_SCALE | BIT(NVFP4)},
#undef ONE_SCALE
#undef BIT
};

TEST(target__native_schemes_are_those_of_the_hardware) {
    octet_device cpu = {OCTET_CPU, 0, 0};
    for (int scheme = OCTET_FP8_TENSOR; scheme < OCTET_SCHEMES; scheme++) {
        CHECK(octet_scheme_native((octet_scheme)scheme, &cpu));
        for (size_t i = 0; i < sizeof sold / sizeof sold[0]; i++) {
            octet_device device = {OCTET_CUDA, 0, sold[i].arch};
            CHECK_EQ_INT(octet_scheme_native((octet_scheme)scheme, &device),
                         sold[i].native >> scheme & 1);
        }
    }
}

/* MXFP8 alone is folded, where 128-blocks have a product and it has none itself. */
TEST(target__mxfp8_is_folded_where_blocks_of_128_are_multiplied) {
    for (int arch = 0; arch < ARCHS; arch++) {
        octet_device device = {OCTET_CUDA, 0, (uint16_t)arch};
        bool blocks = octet_scheme_native(OCTET_FP8_BLOCK, &device);
        for (int scheme = OCTET_FP8_TENSOR; scheme < OCTET_SCHEMES; scheme++) {
            octet_support support = octet_scheme_support((octet_scheme)scheme, &device);
            CHECK_EQ_INT(support == OCTET_SUPPORT_FOLDED, scheme == OCTET_MXFP8 && blocks);
        }
    }
}

/* No recipe has a product of two E5M2 gradients; a custom one may, and it is emulated. */
TEST(target__two_of_e5m2_are_not_folded) {
    octet_device device = {OCTET_CUDA, 0, 90};
    octet_quantizer q[2];
    CHECK_EQ_INT(octet_quantizer_parse(&q[0], "mxfp8:e4m3", NULL), OCTET_OK);
    CHECK_EQ_INT(octet_quantizer_parse(&q[1], "mxfp8:e5m2", NULL), OCTET_OK);
    for (int i = 0; i < 4; i++) {
        octet_support support =
            oct_target_of(&device)->multiplies(&device, &q[i / 2], &q[i % 2]);
        CHECK_EQ_INT(support, i == 3 ? OCTET_SUPPORT_EMULATED : OCTET_SUPPORT_FOLDED);
    }
}

/* What the environment says is read where it counts. */
TEST(target__the_environment_asks_for_exact_products) {
    octet_device device = {OCTET_CUDA, 0, 90};
    bool exact = true;
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_EQ_INT(setenv("OCTET_MXFP8", "exact", 1), 0);
    CHECK_EQ_INT(octet_scheme_support(OCTET_MXFP8, &device), OCTET_SUPPORT_EMULATED);
    CHECK_EQ_INT(setenv("OCTET_MXFP8", "folded", 1), 0);
    CHECK_EQ_INT(octet_scheme_support(OCTET_MXFP8, &device), OCTET_SUPPORT_FOLDED);
    CHECK_EQ_INT(setenv("OCTET_MXFP8", "quick", 1), 0);
    CHECK_EQ_INT(oct_exact_asked(&exact, &err), OCTET_INVALID);
    CHECK_EQ_STR(err.text, "OCTET_MXFP8 is 'quick'; it is exact, or folded, or not set");
    CHECK_EQ_INT(unsetenv("OCTET_MXFP8"), 0);
    CHECK_EQ_INT(oct_exact_asked(&exact, NULL), OCTET_OK);
    CHECK(!exact);
}

/* What is not native is decoded, and that may lie either way. */
TEST(target__what_is_not_native_is_read_across_and_never_swizzled) {
    for (int arch = 0; arch < ARCHS; arch++) {
        octet_device device = {OCTET_CUDA, 0, (uint16_t)arch};
        const oct_target *target = oct_target_of(&device);
        for (int scheme = OCTET_FP8_TENSOR; scheme < OCTET_SCHEMES; scheme++) {
            bool native =
                target->supports(&device, (octet_scheme)scheme) == OCTET_SUPPORT_NATIVE;
            CHECK(native || target->reads_across(&device, (octet_scheme)scheme));
            CHECK(native || !target->reads_swizzled(&device, (octet_scheme)scheme));
        }
    }
}

TEST(target__an_architecture_without_blocks_has_all_other_schemes) {
    for (int arch = 0; arch < ARCHS; arch++) {
        int without = oct_arch_without_blocks(arch);
        CHECK(without <= arch && !oct_arch_multiplies(without, OCTET_FP8_BLOCK));
        CHECK_EQ_INT(oct_arch_reads_across(without), oct_arch_reads_across(arch));
        for (int scheme = OCTET_FP8_TENSOR; scheme < OCTET_SCHEMES; scheme++) {
            CHECK_EQ_INT(oct_arch_multiplies(without, (octet_scheme)scheme),
                         scheme != OCTET_FP8_BLOCK &&
                             oct_arch_multiplies(arch, (octet_scheme)scheme));
        }
    }
}

/* Sums of 1024 rows at most, and scales of 1 x 128 blocks, where columns are ragged. */
TEST(target__scratch_has_room_for_what_is_padded) {
    static const octet_quantizer plain;
    octet_quantizer blocks;
    int64_t whole = 0, ragged = 0;
    CHECK_EQ_INT(octet_quantizer_parse(&blocks, "fp8-block:e4m3/1x128", NULL), OCTET_OK);
    octet_device hopper = {OCTET_CUDA, 0, 90}, cpu = {OCTET_CPU, 0, 0};
    oct_target_product product = {.a = &blocks,
                                  .b = &blocks,
                                  .a_use = OCTET_USE_ROW,
                                  .b_use = OCTET_USE_ROW,
                                  .support = OCTET_SUPPORT_NATIVE,
                                  .dst = OCTET_BF16,
                                  .rows = 5000,
                                  .cols = 64,
                                  .depth = 300};
    const oct_target *target = oct_target_of(&hopper);
    CHECK(target->scratch(&whole, &hopper, &product, 1) && whole > 0);
    product.cols = 60;
    CHECK(target->scratch(&ragged, &hopper, &product, 1));
    CHECK_EQ_INT(ragged - whole, 1024 * 64 * 4 + 3 * 64 * 4);
    product.cols = INT64_MAX - 1;
    CHECK(!target->scratch(&ragged, &hopper, &product, 1));
    product.support = OCTET_SUPPORT_EMULATED;
    product.a = product.b = &plain;
    CHECK(target->scratch(&ragged, &hopper, &product, 1) && ragged > 0);
    CHECK(oct_target_of(&cpu)->scratch(&whole, &cpu, &product, 1));
    CHECK(oct_target_of(&cpu)->scratch(&ragged, &cpu, &product, 3));
    CHECK_EQ_INT(ragged, 3 * whole);
}

TEST(target__a_kind_that_is_none_is_the_cpu) {
    octet_device cpu = {OCTET_CPU, 0, 0}, none = {77, 0, 0};
    CHECK(oct_target_of(&none) == oct_target_of(&cpu));
}

/* Who computes f(x) while it casts it: a "y" for each of these devices and functions. */
TEST(target__casts_apply_where_that_is_faster) {
    static const octet_device devices[] = {
        {OCTET_CPU, 0, 0}, {OCTET_CUDA, 0, 90}, {OCTET_CUDA, 0, 100}};
    static const uint8_t functions[] = {OCTET_RMSNORM, OCTET_LAYERNORM, OCTET_GELU,
                                        OCTET_SWIGLU};
    static const struct {
        const char *text;
        octet_dtype dtype;
        const char *answers[3]; /* of the devices */
    } cases[] = {
        {"fp8-tensor:e4m3+row", OCTET_BF16, {"----", "----", "----"}},
        {"fp8-delayed:e4m3+row", OCTET_BF16, {"yyyy", "yy--", "yy--"}},
        {"fp8-block:e4m3+row", OCTET_BF16, {"yyyy", "yy--", "yy--"}},
        {"fp8-block:e4m3", OCTET_F16, {"yyy-", "yy--", "yy--"}},
        {"fp8-block:e4m3", OCTET_F32, {"----", "yy--", "yy--"}},
        {"mxfp8:e4m3+row", OCTET_F32, {"yyyy", "yy--", "yy--"}},
        {"mxfp8:e4m3", OCTET_BF16, {"yyy-", "yy--", "yy--"}},
        {"mxfp4:e2m1", OCTET_BF16, {"yyy-", "----", "----"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(octet_quantizer_parse(&q, cases[i].text, NULL), OCTET_OK);
        for (int k = 0; k < 3 * 4; k++) {
            const octet_device *device = &devices[k / 4];
            bool applies = oct_target_of(device)->applies(device, &q, (uint8_t)cases[i].dtype,
                                                          functions[k % 4]);
            CHECK_EQ_INT(applies, cases[i].answers[k / 4][k % 4] == 'y');
        }
    }
}

TEST_MAIN(target__casts_apply_where_that_is_faster,
          target__native_schemes_are_those_of_the_hardware,
          target__mxfp8_is_folded_where_blocks_of_128_are_multiplied,
          target__two_of_e5m2_are_not_folded, target__the_environment_asks_for_exact_products,
          target__what_is_not_native_is_read_across_and_never_swizzled,
          target__an_architecture_without_blocks_has_all_other_schemes,
          target__scratch_has_room_for_what_is_padded, target__a_kind_that_is_none_is_the_cpu)
