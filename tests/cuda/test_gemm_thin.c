/* test_gemm_thin.c - products of few rows, emulated: who takes them, and within the bound. */
#include "cpu/gemm_pairs.h"
#include "cuda/gemm.h"
#include "device.h"
#include "emulate_launch.h"
#include "test.h"

#define ROW OCTET_USE_ROW
#define COL OCTET_USE_COL

static const pair thin[] = {
    {OCTET_FPROP, "fp8-block:e4m3", "fp8-block:e4m3/128x128", ROW, ROW},
    {OCTET_FPROP, "fp8-block:e4m3+nopow2", "fp8-block:e4m3+nopow2", ROW, ROW},
    {OCTET_DGRAD, "fp8-block:e4m3/128x128", "fp8-block:e4m3/128x128", ROW, COL},
    {OCTET_FPROP, "mxfp8:e4m3", "mxfp8:e4m3", ROW, ROW},
    {OCTET_FPROP, "mxfp8:e4m3", "mxfp8:e4m3/32x32", ROW, ROW},
    {OCTET_FPROP, "nvfp4:e2m1", "nvfp4:e2m1/16x16", ROW, ROW},
    {OCTET_FPROP, "nvfp4:e2m1", "nvfp4:e2m1+4over6+max256", ROW, ROW},
    {OCTET_FPROP, "nvfp4:e2m1+rowscaled", "nvfp4:e2m1+rowscaled", ROW, ROW},
    {OCTET_DGRAD, "nvfp4:e2m1", "nvfp4:e2m1/16x16", ROW, COL},
    {OCTET_WGRAD, "nvfp4:e2m1+rht", "nvfp4:e2m1+rht", COL, COL},
};
enum { THIN = sizeof thin / sizeof thin[0] };

static oct_gemm_params params_of(const product *p) {
    oct_cuda_gemm_call call = {.gemm = p->call.gemm,
                               .dst = p->call.dst,
                               .a = p->call.a,
                               .b = p->call.b,
                               .a_use = p->call.a_use,
                               .b_use = p->call.b_use,
                               .bias = {p->call.bias, (uint8_t)p->call.bias_dtype},
                               .accumulate = p->call.accumulate};
    return oct_gemm_params_of(&call);
}

static void run(product *p) {
    oct_gemm_params params = params_of(p);
    memcpy(p->call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    if (CHECK(oct_gemm_is_thin(&params))) {
        CHECK_EQ_INT(oct_gemm_thin(cuda_on(), &params, NULL), OCTET_OK);
    }
}

static void check_made(product *p, const pair *pr) {
    run(p);
    double worst = product_worst(p);
    test_report(worst <= 1.0, TEST_HERE("error within its bound"),
                "%s %s, gemm %d, %d x %d, length %d: %g of the bound", pr->a, pr->b,
                (int)pr->gemm, (int)p->rows, (int)p->cols, (int)p->depth, worst);
}

static void check(const pair *pr, const int64_t shape[3], const product_options *o) {
    product *p = product_make(pr, shape, o);
    check_made(p, pr);
    product_free(p);
}

/* A line of whole 16 bytes. */
static int64_t whole(const pair *pr, int64_t length) {
    return operand_up(length, pr->a[0] == 'n' ? 32 : 16);
}

static bool is_thin(const pair *pr, const int64_t shape[3]) {
    product *p = product_make(pr, shape, &(product_options){.dst = OCTET_F32, .seed = 1});
    oct_gemm_params params = params_of(p);
    product_free(p);
    return oct_gemm_is_thin(&params);
}

TEST(gemm_thin__few_rows_of_whole_lines_with_blocks_along_the_product) {
    for (size_t n = 0; n < THIN; n++) {
        CHECK(is_thin(&thin[n], (int64_t[]){1, 1, 32}));
        CHECK(is_thin(&thin[n], (int64_t[]){16, 33, 4096}));
        CHECK(!is_thin(&thin[n], (int64_t[]){17, 33, 4096}));
        CHECK(!is_thin(&thin[n], (int64_t[]){1, 33, 0}));
        if (thin[n].gemm != OCTET_WGRAD) { /* the transform rounds lines up */
            CHECK(!is_thin(&thin[n], (int64_t[]){1, 33, 1}));
            CHECK(!is_thin(&thin[n], (int64_t[]){1, 33, 29}));
            CHECK(!is_thin(&thin[n], (int64_t[]){1, 33, 33}));
        }
    }
    static const pair others[] = {
        {OCTET_FPROP, "bf16", "mxfp8:e4m3", OCTET_USE_VALUES, ROW},
        {OCTET_FPROP, "mxfp8:e4m3", "fp8-block:e4m3", ROW, ROW},
        {OCTET_FPROP, "fp8-tensor:e4m3", "fp8-tensor:e4m3", ROW, ROW},
        {OCTET_FPROP, "mxfp8:e5m2", "mxfp8:e4m3", ROW, ROW},
        {OCTET_FPROP, "mxfp8:e4m3", "mxfp8:e4m3+swizzled", ROW, ROW},
        {OCTET_DGRAD, "mxfp8:e4m3", "mxfp8:e4m3", ROW, COL},
        {OCTET_DGRAD, "nvfp4:e2m1", "nvfp4:e2m1/16x16", ROW, ROW},
    };
    for (size_t n = 0; n < sizeof others / sizeof others[0]; n++) {
        CHECK(!is_thin(&others[n], (int64_t[]){1, 32, 64}));
    }
}

/* Columns that fill no block, or more than one; of 128 lines that share scales, two parts. */
TEST(gemm_thin__any_number_of_rows_and_columns) {
    static const int64_t cols[] = {1, 7, 15, 16, 17, 31, 33, 131};
    for (int64_t i = 0; i < THIN * 16; i++) {
        const pair *pr = &thin[i / 16];
        check(
            pr, (int64_t[]){1 + i % 16, cols[i % 8], whole(pr, 100 + 60 * (i % 5))},
            &(product_options){.dst = i % 2 ? OCTET_F32 : OCTET_BF16, .seed = 1 + (uint64_t)i});
    }
}

/* Less than a lane's 16 bytes for some, less than a chunk, a batch, a batch for each warp. */
TEST(gemm_thin__any_length_of_whole_lines) {
    static const int64_t lengths[] = {1,   31,  32,  33,   60,   64,   100,  127,  128, 129,
                                      255, 256, 257, 2032, 2048, 2064, 4096, 4128, 8200};
    enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
    static const int64_t rows[] = {3, 1, 9, 2, 4};
    for (size_t i = 0; i < THIN * LENGTHS; i++) {
        const pair *pr = &thin[i / LENGTHS];
        check(pr, (int64_t[]){rows[i % 5], 5, whole(pr, lengths[i % LENGTHS])},
              &(product_options){.dst = OCTET_F32, .seed = i + 1});
    }
    for (int64_t i = 0; i < 4; i++) { /* half a byte at the end */
        product_options o = {.dst = OCTET_F32, .seed = 1 + (uint64_t)i};
        check(&thin[5 + i % 3], (int64_t[]){2, 18, i % 2 ? 31 : 4127}, &o);
    }
}

TEST(gemm_thin__every_result_bias_and_old_value) {
    static const octet_dtype dtypes[] = {OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_NONE};
    for (uint64_t i = 0; i < 24; i++) {
        for (size_t n = i % 3; n < THIN; n += 3) {
            product_options o = {.dst = dtypes[i % 3],
                                 .bias = dtypes[i / 3 % 4],
                                 .accumulate = i >= 12,
                                 .seed = i + 1};
            check(&thin[n], (int64_t[]){n % 2 ? 11 : 5, 53, 64}, &o);
        }
    }
}

TEST(gemm_thin__extreme_scales_and_factors_within_the_bound) {
    static const operand_kind kinds[] = {OPERAND_EXTREME, OPERAND_FACTORS, OPERAND_APART,
                                         OPERAND_NAN};
    static const int64_t rows[] = {6, 1, 14, 2, 4};
    for (size_t i = 0; i < THIN * 20; i++) {
        product_options o = {.dst = OCTET_F32, .kind = kinds[i % 4], .seed = i + 1};
        check(&thin[i / 20], (int64_t[]){rows[i % 5], 40, 160}, &o);
    }
}

/* Makes the scale of a line's block NaN, and with it the block; lines run along the product. */
static void break_block(operand *o, const oct_gemm_operand *where, int64_t line,
                        int64_t block) {
    int64_t at = oct_scale_at(&where->scales, line, block), length = (int64_t)1 << where->shift;
    int64_t first = line >> where->scales.share << where->scales.share;
    int64_t end = where->scales.share ? where->outer : line + 1;
    if (where->scale_format == OCTET_F32) {
        ((float *)(uintptr_t)where->scale)[at] = NAN;
    } else {
        ((uint8_t *)(uintptr_t)where->scale)[at] =
            where->scale_format == OCTET_E8M0 ? 0xff : 0x7f;
    }
    for (int64_t i = first; i < end; i++) {
        for (int64_t k = block * length; k < (block + 1) * length && k < where->depth; k++) {
            o->values[i * o->cols + k] = NAN;
        }
    }
}

TEST(gemm_thin__a_block_whose_scale_is_nan) {
    for (size_t i = 0; i < 7 * 12; i++) {
        const pair *pr = &thin[i / 12 + (i / 12 > 1)]; /* fprops */
        product *p = product_make(pr, (int64_t[]){i / 6 % 2 ? 13 : 4, 21, 4128},
                                  &(product_options){.dst = OCTET_F32, .seed = i + 1});
        oct_gemm_params params = params_of(p);
        int64_t blocks = params.b.scales.blocks, block = (int64_t)(i % 3) * (blocks - 1) / 2;
        if (i % 6 < 3) {
            break_block(&p->b, &params.b, 9, block);
        } else {
            break_block(&p->a, &params.a, 2, block);
        }
        check_made(p, pr);
        product_free(p);
    }
}

/* What lies in padding of scales and in memory behind a line has no part in a product. */
TEST(gemm_thin__padding_is_not_multiplied) {
    for (size_t n = 0; n < 2 * THIN; n++) {
        const pair *pr = &thin[n / 2];
        product *p = product_make(pr, (int64_t[]){n % 2 ? 5 : 2, 19, whole(pr, 80)},
                                  &(product_options){.dst = OCTET_F32, .seed = n + 1});
        oct_gemm_params params = params_of(p);
        const oct_gemm_operand *both[2] = {&params.a, &params.b};
        for (int o = 0; o < 2; o++) {
            const oct_scales *s = &both[o]->scales;
            int64_t bytes = both[o]->scale_format == OCTET_F32 ? 4 : 1;
            char *used = calloc((size_t)s->count, 1);
            for (int64_t i = 0; i < s->lines * s->blocks; i++) {
                used[oct_scale_at(s, i / s->blocks, i % s->blocks)] = 1;
            }
            for (int64_t i = 0; i < s->count * bytes; i++) {
                ((uint8_t *)(uintptr_t)both[o]->scale)[i] |= used[i / bytes] ? 0 : 0xff;
            }
            free(used);
        }
        check_made(p, pr);
        product_free(p);
    }
}

TEST(gemm_thin__the_same_bytes_each_time) {
    for (size_t n = 0; n < THIN; n++) {
        product *p = product_make(&thin[n], (int64_t[]){7, 35, 2080},
                                  &(product_options){.dst = OCTET_F32, .seed = n + 1});
        run(p);
        void *first = malloc((size_t)p->dst_bytes);
        memcpy(first, p->call.dst.parts[0], (size_t)p->dst_bytes);
        run(p);
        CHECK(memcmp(first, p->call.dst.parts[0], (size_t)p->dst_bytes) == 0);
        free(first);
        product_free(p);
    }
}

TEST_MAIN(gemm_thin__few_rows_of_whole_lines_with_blocks_along_the_product,
          gemm_thin__any_number_of_rows_and_columns, gemm_thin__any_length_of_whole_lines,
          gemm_thin__every_result_bias_and_old_value,
          gemm_thin__extreme_scales_and_factors_within_the_bound,
          gemm_thin__a_block_whose_scale_is_nan, gemm_thin__padding_is_not_multiplied,
          gemm_thin__the_same_bytes_each_time)
