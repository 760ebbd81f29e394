/* test_lt.c - which matmul cuBLASLt is given for each scheme and product, and what is kept. */
#define _GNU_SOURCE /* setenv */
#include "cpu/gemm_pairs.h"
#include "cuda/lt.h"
#include "device.h"
#include "emulate_launch.h"
#include "test.h"

#include <pthread.h>

#define ROW OCTET_USE_ROW
#define COL OCTET_USE_COL
#define PLAIN OCTET_USE_VALUES

enum { N = OCT_LT_OP_N, T = OCT_LT_OP_T, NONE = OCT_LT_NONE };
enum { BF16 = OCT_LT_R_16BF, F16 = OCT_LT_R_16F, F32 = OCT_LT_R_32F };
enum { E4M3 = OCT_LT_R_8F_E4M3, E5M2 = OCT_LT_R_8F_E5M2, E2M1 = OCT_LT_R_4F_E2M1 };
enum { ONE = OCT_LT_SCALE_SCALAR_32F, VEC16 = OCT_LT_SCALE_VEC16_UE4M3 };
enum { VEC32 = OCT_LT_SCALE_VEC32_UE8M0, VEC128 = OCT_LT_SCALE_VEC128_32F };
enum { BLK128 = OCT_LT_SCALE_BLK128_32F };

/* A call: dst 48 x 64, length 160 unless `length` says otherwise. */
typedef struct given {
    pair operands;
    int arch;
    octet_dtype dst, bias;
    bool split;
    int64_t length;
} given;

/* Types, flags and modes are those of cuBLASLt's A (the product's b) and B (its a). */
typedef struct wanted {
    bool described;
    uint8_t a_op, b_op, a_type, b_type, d_type, a_scale, b_scale, bias_type;
    bool fast, device_alpha, bias_after;
} wanted;

typedef struct row {
    given given;
    wanted wanted;
} row;

#define TENSOR "fp8-tensor:e4m3"
#define GRAD "fp8-tensor:e5m2"
#define DELAYED "fp8-delayed:e4m3"
#define BLOCK "fp8-block:e4m3"
#define SQUARE "fp8-block:e4m3/128x128"
#define MX "mxfp8:e4m3+swizzled"
#define NV "nvfp4:e2m1+swizzled"
#define NV_SQUARE "nvfp4:e2m1/16x16+swizzled"
#define NV_RHT "nvfp4:e2m1+rht+swizzled"

/* clang-format off */
static const row rows[] = {
    /* Per tensor: bytes that lie along the product, fast sums unless split. */
    {{{OCTET_FPROP, TENSOR, TENSOR, ROW, ROW}, 90, OCTET_BF16, OCTET_BF16, 0, 0},
     {1, T, N, E4M3, E4M3, BF16, ONE, ONE, BF16, 1, 0, 0}},
    {{{OCTET_DGRAD, GRAD, TENSOR, ROW, COL}, 90, OCTET_BF16, OCTET_NONE, 1, 0},
     {1, T, N, E4M3, E5M2, BF16, ONE, ONE, NONE, 0, 0, 0}},
    {{{OCTET_WGRAD, GRAD, DELAYED, COL, COL}, 89, OCTET_F32, OCTET_NONE, 1, 0},
     {1, T, N, E4M3, E5M2, F32, ONE, ONE, NONE, 0, 0, 0}},
    {{{OCTET_FPROP, TENSOR, TENSOR, ROW, ROW}, 90, OCTET_F32, OCTET_BF16, 0, 0},
     {1, T, N, E4M3, E4M3, F32, ONE, ONE, BF16, 1, 0, 0}},
    {{{OCTET_FPROP, TENSOR, TENSOR, ROW, ROW}, 90, OCTET_F32, OCTET_F32, 0, 0},
     {1, T, N, E4M3, E4M3, F32, ONE, ONE, NONE, 1, 0, 1}},
    {{{OCTET_FPROP, TENSOR, TENSOR, ROW, ROW}, 90, OCTET_F16, OCTET_F16, 0, 0},
     {1, T, N, E4M3, E4M3, F16, ONE, ONE, F16, 1, 0, 0}},
    /* One buffer for both directions: only where bytes may lie across the product. */
    {{{OCTET_DGRAD, GRAD, TENSOR, ROW, ROW}, 100, OCTET_BF16, OCTET_NONE, 1, 0},
     {1, N, N, E4M3, E5M2, BF16, ONE, ONE, NONE, 0, 0, 0}},
    {{{OCTET_WGRAD, GRAD, TENSOR, ROW, ROW}, 103, OCTET_F32, OCTET_NONE, 1, 0},
     {1, N, T, E4M3, E5M2, F32, ONE, ONE, NONE, 0, 0, 0}},
    {{{OCTET_WGRAD, GRAD, TENSOR, ROW, ROW}, 90, OCTET_F32, OCTET_NONE, 1, 0}, {0}},
    {{{OCTET_DGRAD, GRAD, TENSOR, ROW, ROW}, 120, OCTET_F32, OCTET_NONE, 1, 0}, {0}},
    /* Rows that are not whole 16 bytes. */
    {{{OCTET_FPROP, TENSOR, TENSOR, ROW, ROW}, 90, OCTET_BF16, OCTET_NONE, 0, 152}, {0}},
    /* 128-blocks on Hopper. */
    {{{OCTET_FPROP, BLOCK, SQUARE, ROW, ROW}, 90, OCTET_BF16, OCTET_BF16, 1, 0},
     {1, T, N, E4M3, E4M3, BF16, BLK128, VEC128, BF16, 0, 0, 0}},
    {{{OCTET_DGRAD, BLOCK, SQUARE, ROW, COL}, 90, OCTET_BF16, OCTET_NONE, 1, 0},
     {1, T, N, E4M3, E4M3, BF16, BLK128, VEC128, NONE, 0, 0, 0}},
    {{{OCTET_WGRAD, BLOCK, BLOCK, COL, COL}, 90, OCTET_F32, OCTET_NONE, 1, 0},
     {1, T, N, E4M3, E4M3, F32, VEC128, VEC128, NONE, 0, 0, 0}},
    {{{OCTET_FPROP, SQUARE, SQUARE, ROW, ROW}, 90, OCTET_BF16, OCTET_NONE, 1, 0}, {0}},
    {{{OCTET_FPROP, TENSOR, BLOCK, ROW, ROW}, 90, OCTET_BF16, OCTET_NONE, 1, 0}, {0}},
    /* MXFP8 as it lies, NVFP4 along the product with the amaxes in alpha. */
    {{{OCTET_FPROP, MX, MX, ROW, ROW}, 100, OCTET_BF16, OCTET_BF16, 0, 0},
     {1, T, N, E4M3, E4M3, BF16, VEC32, VEC32, BF16, 0, 0, 0}},
    {{{OCTET_DGRAD, MX, MX, ROW, COL}, 100, OCTET_BF16, OCTET_NONE, 1, 0},
     {1, N, N, E4M3, E4M3, BF16, VEC32, VEC32, NONE, 0, 0, 0}},
    {{{OCTET_WGRAD, MX, MX, COL, COL}, 100, OCTET_F32, OCTET_NONE, 1, 0},
     {1, N, T, E4M3, E4M3, F32, VEC32, VEC32, NONE, 0, 0, 0}},
    {{{OCTET_FPROP, NV, NV_SQUARE, ROW, ROW}, 100, OCTET_BF16, OCTET_BF16, 1, 0},
     {1, T, N, E2M1, E2M1, BF16, VEC16, VEC16, BF16, 0, 1, 0}},
    {{{OCTET_DGRAD, NV, NV_SQUARE, ROW, COL}, 120, OCTET_BF16, OCTET_NONE, 1, 0},
     {1, T, N, E2M1, E2M1, BF16, VEC16, VEC16, NONE, 0, 1, 0}},
    {{{OCTET_WGRAD, NV_RHT, NV_RHT, COL, COL}, 100, OCTET_F32, OCTET_NONE, 1, 0},
     {1, T, N, E2M1, E2M1, F32, VEC16, VEC16, NONE, 0, 1, 0}},
    {{{OCTET_FPROP, "mxfp8:e4m3", MX, ROW, ROW}, 100, OCTET_BF16, OCTET_NONE, 0, 0}, {0}},
    {{{OCTET_FPROP, NV, NV_SQUARE, ROW, ROW}, 90, OCTET_BF16, OCTET_NONE, 1, 0}, {0}},
    /* Plain. */
    {{{OCTET_FPROP, "bf16", "bf16", PLAIN, PLAIN}, 80, OCTET_BF16, OCTET_BF16, 0, 0},
     {1, T, N, BF16, BF16, BF16, NONE, NONE, BF16, 0, 0, 0}},
    {{{OCTET_DGRAD, "f16", "f16", PLAIN, PLAIN}, 90, OCTET_F16, OCTET_NONE, 0, 0},
     {1, N, N, F16, F16, F16, NONE, NONE, NONE, 0, 0, 0}},
    {{{OCTET_WGRAD, "f32", "f32", PLAIN, PLAIN}, 90, OCTET_F32, OCTET_NONE, 0, 0},
     {1, N, T, F32, F32, F32, NONE, NONE, NONE, 0, 0, 0}},
    {{{OCTET_FPROP, "f32", "bf16", PLAIN, PLAIN}, 90, OCTET_F32, OCTET_NONE, 0, 0}, {0}},
};
/* clang-format on */

#define ROWS (sizeof rows / sizeof rows[0])
#define SCRATCH_BYTES (1 << 20)

static oct_cuda_gemm_call call_of(const product *p, const given *g, void *scratch) {
    const oct_cpu_gemm_call *from = &p->call;
    return (oct_cuda_gemm_call){.gemm = from->gemm,
                                .dst = from->dst,
                                .a = from->a,
                                .b = from->b,
                                .a_use = from->a_use,
                                .b_use = from->b_use,
                                .bias = {from->bias, (uint8_t)from->bias_dtype},
                                .split = g->split,
                                .native = true,
                                .scratch = scratch,
                                .scratch_bytes = SCRATCH_BYTES};
}

static product *product_of(const given *g, size_t seed) {
    product_options o = {.dst = g->dst, .bias = g->bias, .seed = seed + 1};
    return product_make(&g->operands, (int64_t[]){48, 64, g->length ? g->length : 160}, &o);
}

static void check_problem(const oct_lt_product *got, const wanted *want, int arch) {
    const oct_lt_matmul *p = &got->matmul;
    CHECK_EQ_INT(p->m, 64);
    CHECK_EQ_INT(p->n, 48);
    CHECK_EQ_INT(p->k, 160);
    CHECK_EQ_INT(p->a_op, want->a_op);
    CHECK_EQ_INT(p->b_op, want->b_op);
    CHECK_EQ_INT(p->a_type, want->a_type);
    CHECK_EQ_INT(p->b_type, want->b_type);
    CHECK_EQ_INT(p->d_type, want->d_type);
    CHECK_EQ_INT(p->a_scale, want->a_scale);
    CHECK_EQ_INT(p->b_scale, want->b_scale);
    CHECK_EQ_INT(p->bias_type, want->bias_type);
    CHECK_EQ_INT(p->fast, want->fast);
    CHECK_EQ_INT(p->device_alpha, want->device_alpha);
    CHECK_EQ_INT(got->bias_after, want->bias_after);
    bool room = want->a_scale == VEC32 || want->a_scale == VEC16 ||
                (want->a_scale == NONE && arch != 90);
    CHECK_EQ_INT(p->workspace_bytes > 0, room);
    CHECK_EQ_INT(got->memory.workspace != NULL, room);
    CHECK(!got->sums);
}

/* What gemm_alpha computes. */
static void put_alpha(const oct_lt_product *product, const oct_cuda_gemm_call *call) {
    oct_gemm_params p = oct_gemm_params_of(call);
    float *alpha = (float *)(uintptr_t)product->memory.alpha;
    double factor = p.a.unit * p.b.unit;
    if (!product->matmul.device_alpha) {
        return;
    }
    factor *= p.a.factor ? (double)*p.a.factor : 1.0;
    alpha[0] = (float)(factor * (p.b.factor ? (double)*p.b.factor : 1.0));
    alpha[1] = 0.0f;
}

/* The library's answer to the matmul is the product. */
static void check_answer(product *p, const oct_lt_product *product,
                         const oct_cuda_gemm_call *call) {
    oct_lt *lt = NULL;
    oct_lt_algorithm algorithm;
    bool found = false, refused = true;
    CHECK_EQ_INT(oct_lt_get(&lt, cuda_on()->cuda, NULL), OCTET_OK);
    CHECK_EQ_INT(oct_lt_find(&algorithm, &found, lt, product, NULL), OCTET_OK);
    if (CHECK(found)) {
        memcpy(call->dst.parts[0], p->old, (size_t)p->dst_bytes);
        put_alpha(product, call);
        CHECK_EQ_INT(oct_lt_run(&refused, lt, product, &algorithm, NULL, NULL), OCTET_OK);
        CHECK(!refused);
        p->call.bias = product->bias_after ? NULL : p->call.bias;
        CHECK(product_worst(p) <= 1.0);
    }
}

TEST(lt__each_scheme_and_product_is_the_right_matmul) {
    void *scratch = aligned_alloc(64, SCRATCH_BYTES);
    for (size_t n = 0; n < ROWS; n++) {
        product *p = product_of(&rows[n].given, n);
        oct_cuda_gemm_call call = call_of(p, &rows[n].given, scratch);
        oct_lt_target target = {rows[n].given.arch, 130002};
        oct_lt_product product;
        bool described = oct_lt_describe(&product, &call, &target);
        int64_t failures = test_failures;
        if (CHECK_EQ_INT(described, rows[n].wanted.described) && described) {
            check_problem(&product, &rows[n].wanted, target.arch);
            check_answer(p, &product, &call);
        }
        if (test_failures > failures) {
            printf("    row %d: %s %s\n", (int)n, rows[n].given.operands.a,
                   rows[n].given.operands.b);
        }
        product_free(p);
    }
    free(scratch);
}

/* 128-blocks came with 12.9. */
TEST(lt__an_older_library_has_no_blocks) {
    void *scratch = aligned_alloc(64, SCRATCH_BYTES);
    given blocks = {{OCTET_WGRAD, BLOCK, BLOCK, COL, COL}, 90, OCTET_F32, OCTET_NONE, 1, 0};
    product *p = product_of(&blocks, 3);
    oct_cuda_gemm_call call = call_of(p, &blocks, scratch);
    oct_lt_product product;
    CHECK(!oct_lt_describe(&product, &call, &(oct_lt_target){90, 120800}));
    CHECK(oct_lt_describe(&product, &call, &(oct_lt_target){90, 120900}));
    CHECK(!oct_lt_describe(&product, &call, &(oct_lt_target){100, 130000}));
    product_free(p);
    free(scratch);
}

/* Outer indices in eights, and scales on a boundary of 16 bytes. */
TEST(lt__blocks_are_refused_as_documented) {
    void *scratch = aligned_alloc(64, SCRATCH_BYTES);
    given blocks = {{OCTET_WGRAD, BLOCK, BLOCK, COL, COL}, 90, OCTET_F32, OCTET_NONE, 1, 0};
    product *p = product_of(&blocks, 5);
    oct_cuda_gemm_call call = call_of(p, &blocks, scratch);
    oct_lt_product product, narrow, flat;
    oct_lt_algorithm algorithm;
    oct_lt *lt = NULL;
    bool found = false, refused = false;
    CHECK_EQ_INT(oct_lt_get(&lt, cuda_on()->cuda, NULL), OCTET_OK);
    CHECK(oct_lt_describe(&product, &call, &(oct_lt_target){90, 130002}));
    narrow = flat = product;
    narrow.matmul.m -= 4;
    flat.matmul.n -= 4;
    CHECK(!oct_lt_find(&algorithm, &found, lt, &narrow, NULL) && !found);
    CHECK(!oct_lt_find(&algorithm, &found, lt, &flat, NULL) && !found);
    CHECK(!oct_lt_find(&algorithm, &found, lt, &product, NULL) && found);
    product.memory.b_scale = (const char *)product.memory.b_scale + 4;
    CHECK(!oct_lt_run(&refused, lt, &product, &algorithm, NULL, NULL) && refused);
    product_free(p);
    free(scratch);
}

/* A result that is not read has its last eight rows written twice; one that is added to, and
 * one of fewer rows, has a copy of them. */
TEST(lt__rows_behind_whole_eights_are_apart) {
    static const int64_t rows[] = {48, 47, 5};
    void *scratch = aligned_alloc(64, SCRATCH_BYTES);
    pair blocks = {OCTET_FPROP, BLOCK, SQUARE, ROW, ROW};
    given g = {blocks, 90, OCTET_BF16, OCTET_NONE, 1, 0};
    for (int i = 0; i < 6; i++) {
        product_options o = {.dst = OCTET_BF16, .seed = 1};
        product *p = product_make(&blocks, (int64_t[]){rows[i % 3], 64, 160}, &o);
        oct_cuda_gemm_call call = call_of(p, &g, scratch);
        oct_lt_product product;
        call.accumulate = i / 3;
        CHECK(oct_lt_describe(&product, &call, &(oct_lt_target){90, 130002}));
        CHECK_EQ_INT(product.matmul.n, rows[i % 3] / 8 * 8);
        CHECK_EQ_INT(product.tail, i == 1);
        CHECK_EQ_INT(product.rest, i == 1 ? 0 : rows[i % 3] % 8);
        product_free(p);
    }
    free(scratch);
}

/* ---- parts ------------------------------------------------------------------------------ */

/* dst = 304 x 24, length 192, in parts of 128 rows; NVFP4 lines are whole 32 elements. Where
 * the library has a workspace there is room for one. */
static void check_parts(const pair *operands, int arch, bool workspace) {
    int64_t room = (workspace ? (int64_t)8 << 20 : 0) + 512 + 256 + 128 * 26 * 4;
    product_options o = {.dst = OCTET_BF16, .bias = OCTET_F32, .seed = (uint64_t)arch};
    product *p = product_make(operands, (int64_t[]){304, 24, 192}, &o);
    void *scratch = aligned_alloc(256, (size_t)room);
    given g = {*operands, arch, OCTET_BF16, OCTET_F32, false, 0};
    oct_cuda_gemm_call call = call_of(p, &g, scratch);
    call.scratch_bytes = room;
    oct_gemm_params own = oct_gemm_params_of(&call);
    oct_lt_target target = {arch, 130002};
    oct_lt_product whole;
    oct_lt *lt = NULL;
    memcpy(call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    CHECK_EQ_INT(oct_lt_get(&lt, cuda_on()->cuda, NULL), OCTET_OK);
    CHECK(oct_lt_describe(&whole, &call, &target) && whole.sums && whole.chunk == 128);
    CHECK_EQ_INT(whole.matmul.workspace_bytes > 0, workspace);
    for (int64_t first = 0; first < 304; first += 128) {
        oct_lt_product part = oct_lt_part(&whole, &own.a, first, first < 256 ? 128 : 48);
        oct_lt_algorithm algorithm;
        bool found = false, refused = true;
        CHECK_EQ_INT(oct_lt_find(&algorithm, &found, lt, &part, NULL), OCTET_OK);
        CHECK(found && !oct_lt_part_move(cuda_on(), &part, &own.a, first, NULL));
        CHECK(found && !oct_lt_run(&refused, lt, &part, &algorithm, NULL, NULL) && !refused);
        CHECK_EQ_INT(oct_lt_part_finish(cuda_on(), &part, &own, first, NULL), OCTET_OK);
    }
    double worst = product_worst(p);
    test_report(worst <= 1.0, TEST_HERE("error within its bound"), "%s %s: %g", operands->a,
                operands->b, worst);
    free(scratch);
    product_free(p);
}

TEST(lt__parts_have_their_rows_data_and_scales) {
    check_parts(&(pair){OCTET_FPROP, "bf16", "bf16", PLAIN, PLAIN}, 80, true);
    check_parts(&(pair){OCTET_FPROP, TENSOR, TENSOR, ROW, ROW}, 89, false);
    check_parts(&(pair){OCTET_FPROP, BLOCK, SQUARE, ROW, ROW}, 90, false);
    check_parts(&(pair){OCTET_FPROP, BLOCK, BLOCK, ROW, ROW}, 90, false);
    check_parts(&(pair){OCTET_FPROP, SQUARE, BLOCK, ROW, ROW}, 90, false);
    check_parts(&(pair){OCTET_FPROP, MX, MX, ROW, ROW}, 100, true);
    check_parts(&(pair){OCTET_FPROP, NV, NV_SQUARE, ROW, ROW}, 120, true);
}

/* In a capture a kernel can be loaded only where the thread says so. Whole eights and a tail
 * are two shapes, and so two kernels, both of them found before the first one is launched. */
TEST(lt__a_kernel_is_loaded_where_a_capture_allows_it) {
    void *scratch = aligned_alloc(256, SCRATCH_BYTES);
    pair blocks = {OCTET_FPROP, BLOCK, SQUARE, ROW, ROW};
    given g = {blocks, 90, OCTET_BF16, OCTET_NONE, 1, 0};
    product_options o = {.dst = OCTET_BF16, .seed = 1};
    product *p = product_make(&blocks, (int64_t[]){77, 72, 208}, &o);
    oct_cuda_gemm_call call = call_of(p, &g, scratch);
    int before = emulated_matmuls(), strict = emulated_strict_loads();
    memcpy(call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    CHECK_EQ_INT(oct_cuda_gemm(cuda_on(), &call, NULL), OCTET_OK);
    CHECK_EQ_INT(emulated_matmuls() - before, 2);
    CHECK_EQ_INT(emulated_strict_loads(), strict);
    CHECK(!emulated_is_relaxed() && product_worst(p) <= 1.0);
    product_free(p);
    free(scratch);
}

static octet_status multiply_once(octet_error *err) {
    void *scratch = aligned_alloc(256, SCRATCH_BYTES);
    product *p = product_of(&rows[0].given, 2);
    oct_cuda_gemm_call call = call_of(p, &rows[0].given, scratch);
    memcpy(call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    octet_status status = oct_cuda_gemm(cuda_on(), &call, err);
    CHECK(status || product_worst(p) <= 1.0);
    product_free(p);
    free(scratch);
    return status;
}

/* ALLOC_FAILED; EXECUTION_FAILED and INTERNAL_ERROR, which is all that the library says where a
 * kernel of somebody's has failed before; NOT_INITIALIZED. */
TEST(lt__a_failure_of_the_library_is_told_as_what_it_is) {
    static const struct {
        int result;
        octet_status status;
        bool earlier;
    } cases[] = {{3, OCTET_NO_MEMORY, false},
                 {13, OCTET_DEVICE, true},
                 {14, OCTET_DEVICE, true},
                 {1, OCTET_DEVICE, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_error err = {OCTET_OK, 0, ""};
        int before = emulated_launches();
        emulated_matmul_status(cases[i].result);
        CHECK_EQ_INT(multiply_once(&err), cases[i].status);
        CHECK(strstr(err.text, "cublasLtMatmul: emulated") != NULL);
        CHECK_EQ_INT(strstr(err.text, "launched earlier") != NULL, cases[i].earlier);
        CHECK_EQ_INT(emulated_launches(), before);
        emulated_matmul_status(0);
        CHECK_OF(multiply_once(&err) == OCTET_OK, err.text);
    }
}

/* Opens another GPU with these in the environment, multiplies, and gives how many products the
 * library has done. */
static int multiply_with(const char *gemm, const char *algo) {
    given g = rows[0].given;
    product *p = product_of(&g, 1);
    void *scratch = aligned_alloc(64, SCRATCH_BYTES);
    oct_cuda_gemm_call call = call_of(p, &g, scratch);
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    oct_cuda_on on = {.stream = cuda_on()->stream};
    int before = emulated_matmuls();
    memcpy(call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    options.cache = "";
    CHECK_EQ_INT(setenv("OCTET_CUDA_GEMM", gemm, 1), 0);
    CHECK_EQ_INT(setenv("OCTET_CUDA_ALGO", algo, 1), 0);
    if (CHECK_EQ_INT(octet_cuda_open(&on.cuda, &options, NULL), OCTET_OK)) {
        CHECK_EQ_STR(oct_cuda_gemm_name(on.cuda), *gemm ? gemm : "cublaslt");
        CHECK_EQ_INT(oct_cuda_gemm(&on, &call, NULL), OCTET_OK);
        CHECK(product_worst(p) <= 1.0);
        octet_cuda_close(on.cuda);
    }
    product_free(p);
    free(scratch);
    return emulated_matmuls() - before;
}

/* The library proposes three. */
TEST(lt__environment_picks_the_kernel) {
    CHECK_EQ_INT(multiply_with("", ""), 1);
    CHECK_EQ_INT(emulated_algorithm(), 0xa160);
    CHECK_EQ_INT(multiply_with("", "1"), 1);
    CHECK_EQ_INT(emulated_algorithm(), 0xa161);
    CHECK_EQ_INT(multiply_with("", "40"), 1);
    CHECK_EQ_INT(emulated_algorithm(), 0xa162);
    CHECK_EQ_INT(multiply_with("own", ""), 0);
}

/* ---- what is kept ---------------------------------------------------------------------- */

static void key_of(uint64_t key[OCT_LT_KEY], uint64_t n) {
    for (uint64_t i = 0; i < OCT_LT_KEY; i++) {
        key[i] = i < 3 ? n * 128 + i : i;
    }
}

static oct_lt_algorithm value_of(uint64_t n, uint64_t version) {
    oct_lt_algorithm value = {.found = OCT_LT_FOUND};
    for (uint64_t i = 0; i < 8; i++) {
        value.algo[i] = n * 1000003 + version;
    }
    return value;
}

TEST(cache__the_last_put_is_found) {
    oct_lt_cache *cache = calloc(1, sizeof *cache);
    oct_lt_cache_start(cache);
    oct_lt_algorithm got, none = {.found = OCT_LT_REFUSED};
    uint64_t key[OCT_LT_KEY];
    for (uint64_t n = 0; n < 100; n++) {
        oct_lt_algorithm value = value_of(n, 0);
        key_of(key, n);
        CHECK(!oct_lt_cache_find(&got, cache, key));
        oct_lt_cache_put(cache, key, &value);
        CHECK(oct_lt_cache_find(&got, cache, key) && !memcmp(&got, &value, sizeof got));
        oct_lt_cache_put(cache, key, &none);
        CHECK(oct_lt_cache_find(&got, cache, key) && got.found == OCT_LT_REFUSED);
        oct_lt_cache_put(cache, key, &value);
    }
    int kept = 0;
    for (uint64_t n = 0; n < 100; n++) {
        key_of(key, n);
        kept += oct_lt_cache_find(&got, cache, key) && got.algo[7] == n * 1000003;
    }
    CHECK(kept > 95); /* of 4096 places, in sets of 4 */
    oct_lt_cache_end(cache);
    free(cache);
}

TEST(cache__more_matmuls_than_places_replace_each_other) {
    oct_lt_cache *cache = calloc(1, sizeof *cache);
    oct_lt_cache_start(cache);
    uint64_t key[OCT_LT_KEY], count = 10 * OCT_LT_MATMULS, kept = 0;
    oct_lt_algorithm got;
    for (uint64_t n = 0; n < count; n++) {
        oct_lt_algorithm value = value_of(n, 0);
        key_of(key, n);
        oct_lt_cache_put(cache, key, &value);
        CHECK(oct_lt_cache_find(&got, cache, key) && got.algo[0] == n * 1000003);
    }
    for (uint64_t n = 0; n < count; n++) {
        key_of(key, n);
        kept += oct_lt_cache_find(&got, cache, key);
    }
    CHECK_EQ_INT(kept, OCT_LT_MATMULS);
    CHECK_EQ_INT(oct_table_count(&cache->table), OCT_LT_MATMULS);
    oct_lt_cache_end(cache);
    free(cache);
}

TEST(cache__the_environment_bounds_it) {
    oct_lt_cache *cache = calloc(1, sizeof *cache);
    int most = 0;
    CHECK_EQ_INT(octet_cuda_algorithms(&most, NULL), 0);
    CHECK_EQ_INT(most, OCT_LT_MATMULS);
    CHECK_EQ_INT(setenv("OCTET_CACHE_ENTRIES", "8", 1), 0);
    oct_lt_cache_start(cache);
    for (uint64_t n = 0; n < 100; n++) {
        uint64_t key[OCT_LT_KEY];
        oct_lt_algorithm value = value_of(n, 0);
        key_of(key, n);
        oct_lt_cache_put(cache, key, &value);
    }
    CHECK_EQ_INT(oct_table_count(&cache->table), 8);
    CHECK_EQ_INT(octet_cuda_algorithms(&most, NULL), 0);
    CHECK_EQ_INT(most, 8);
    CHECK_EQ_INT(unsetenv("OCTET_CACHE_ENTRIES"), 0);
    oct_lt_cache_end(cache);
    free(cache);
}

/* One algorithm for each kind of product. */
TEST(cache__a_gpu_says_what_it_remembers) {
    octet_cuda *cuda = cuda_on()->cuda;
    int most = 0, before = octet_cuda_algorithms(&most, cuda);
    CHECK(before > 0 && most == OCT_LT_MATMULS); /* of the tests before */
}

typedef struct racer {
    oct_lt_cache *cache;
    uint64_t seed;
    int64_t torn, hits;
} racer;

/* A few keys of one set, so that threads meet. */
static void *race(void *arg) {
    racer *r = arg;
    uint64_t state = r->seed;
    for (int i = 0; i < 200000; i++) {
        uint64_t key[OCT_LT_KEY], n = operand_random(&state) % 24;
        oct_lt_algorithm got, value = value_of(n, operand_random(&state) % 1000);
        key_of(key, n);
        if (i % 4 == 0) {
            oct_lt_cache_put(r->cache, key, &value);
        } else if (oct_lt_cache_find(&got, r->cache, key)) {
            r->hits++;
            for (int w = 0; w < 8; w++) {
                r->torn += got.algo[w] != got.algo[0] || got.algo[w] / 1000003 != n;
            }
        }
    }
    return NULL;
}

TEST(cache__threads_never_see_half_an_entry) {
    enum { THREADS = 4 };
    oct_lt_cache *cache = calloc(1, sizeof *cache);
    oct_lt_cache_start(cache);
    pthread_t threads[THREADS];
    racer racers[THREADS];
    for (int t = 0; t < THREADS; t++) {
        racers[t] = (racer){cache, (uint64_t)t + 1, 0, 0};
        CHECK_EQ_INT(pthread_create(&threads[t], NULL, race, &racers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        (void)pthread_join(threads[t], NULL);
        CHECK_EQ_INT(racers[t].torn, 0);
        CHECK(racers[t].hits > 0);
    }
    oct_lt_cache_end(cache);
    free(cache);
}

TEST_MAIN(lt__each_scheme_and_product_is_the_right_matmul, lt__an_older_library_has_no_blocks,
          lt__blocks_are_refused_as_documented, lt__rows_behind_whole_eights_are_apart,
          lt__parts_have_their_rows_data_and_scales,
          lt__a_kernel_is_loaded_where_a_capture_allows_it,
          lt__a_failure_of_the_library_is_told_as_what_it_is, lt__environment_picks_the_kernel,
          cache__the_last_put_is_found, cache__more_matmuls_than_places_replace_each_other,
          cache__the_environment_bounds_it, cache__a_gpu_says_what_it_remembers,
          cache__threads_never_see_half_an_entry)
