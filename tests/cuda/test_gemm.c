/* test_gemm.c - products on the emulated GPU, by cuBLASLt and without it, keep the bound. */
#include "cpu/gemm_pairs.h"
#include "cuda/lt.h"
#include "device.h"
#include "emulate_launch.h"
#include "test.h"

#include <math.h>

/* What runs a product: memory for copies, scratch, and who is expected to multiply. */
typedef struct runner {
    oct_cuda_gemm_call call;
    char *scratch;
} runner;

static bool is_quantized(const oct_matrix *m) {
    return m->quantizer.scheme != OCTET_SCHEME_NONE;
}

static bool has_one_scale(const octet_quantizer *q) {
    return q->scheme == OCTET_FP8_TENSOR || q->scheme == OCTET_FP8_DELAYED;
}

static bool exact_in_bf16(const oct_matrix *m) {
    const octet_quantizer *q = &m->quantizer;
    return is_quantized(m) ? q->scheme != OCTET_FP8_BLOCK || q->pow2 : m->dtype == OCTET_BF16;
}

/* As a plan for this GPU decides. */
static bool is_native(const oct_matrix *a, const oct_matrix *b) {
    const octet_quantizer *x = &a->quantizer, *y = &b->quantizer;
    bool e5m2 = x->format == OCTET_E5M2 && y->format == OCTET_E5M2;
    bool squares = x->block_rows > 1 && y->block_rows > 1;
    if (!is_quantized(a) && !is_quantized(b)) {
        return true;
    }
    return !e5m2 &&
           ((has_one_scale(x) && has_one_scale(y)) ||
            (x->scheme == OCTET_FP8_BLOCK && y->scheme == OCTET_FP8_BLOCK && !squares));
}

static int64_t up(int64_t n, int64_t by) {
    return (n + by - 1) / by * by;
}

static oct_matrix copy_of(const oct_matrix *m, octet_use use, octet_dtype dtype) {
    oct_matrix copy = {.dtype = (uint8_t)dtype, .rows = m->rows, .cols = m->cols};
    bool ready = !is_quantized(m) && m->dtype == dtype;
    copy.cols = copy.stride = up(m->cols, 16 / product_bytes(dtype));
    copy.rows =
        m->quantizer.hadamard && use == OCTET_USE_COL ? (m->rows + 15) / 16 * 16 : m->rows;
    size_t bytes = (size_t)(copy.rows * copy.cols * product_bytes(dtype));
    copy.parts[0] = ready ? NULL : calloc(1, bytes + 1);
    return copy;
}

/* Room for storage lines of bytes, dirty; none where nothing is rounded up. */
static oct_matrix room_of(octet_dtype dtype, const int64_t exact[2], const int64_t whole[2]) {
    oct_matrix room = {.dtype = (uint8_t)dtype, .rows = whole[0], .cols = whole[1]};
    size_t bytes = (size_t)(whole[0] * whole[1] * (dtype == OCTET_F32 ? 4 : 1));
    room.stride = room.cols;
    if ((exact[0] != whole[0] || exact[1] != whole[1]) && bytes) {
        room.parts[0] = aligned_alloc(256, (size_t)up((int64_t)bytes, 256));
        memset(room.parts[0], 0xff, bytes);
    }
    return room;
}

static oct_matrix padded_copy(const oct_gemm_operand *o, int64_t outer, int64_t depth) {
    int64_t exact[2] = {o->across ? o->depth : o->outer, o->across ? o->outer : o->depth};
    int64_t whole[2] = {o->across ? depth : outer, o->across ? outer : depth};
    return room_of(OCTET_U8, exact, whole);
}

/* As a plan provides it for bytes that are multiplied as they are. */
static void provide_copies(oct_cuda_gemm_call *call) {
    oct_gemm_params own = oct_gemm_params_of(call);
    bool one_scale = has_one_scale(&call->a.quantizer), a_across = own.a.across;
    bool b_across = own.b.across;
    int64_t rows = call->dst.rows, cols = call->dst.cols, depth = own.a.depth;
    int64_t exact[2] = {rows, cols}, bytes = product_bytes((octet_dtype)call->dst.dtype);
    if (!is_quantized(&call->a)) {
        return;
    }
    rows = one_scale && a_across ? up(rows, 16) : rows;
    cols = up(cols, b_across ? 16 : one_scale ? 16 / bytes : 8);
    depth = a_across && b_across ? depth : up(depth, 16);
    call->a_copy = padded_copy(&own.a, rows, depth);
    call->b_copy = padded_copy(&own.b, cols, depth);
    call->dst_copy = room_of(OCTET_F32, exact, (int64_t[]){rows, cols});
    call->dst_copy.rows = rows < 32 ? rows : 32;
    if (!one_scale && call->b.quantizer.block_rows == 1) {
        int64_t blocks = (own.b.depth + 127) / 128;
        call->b_scales =
            room_of(OCTET_F32, (int64_t[]){blocks, exact[1]}, (int64_t[]){blocks, cols});
    }
}

static runner runner_make(const product *p, int64_t scratch_bytes) {
    const oct_cpu_gemm_call *from = &p->call;
    runner r = {.call = {.gemm = from->gemm,
                         .dst = from->dst,
                         .a = from->a,
                         .b = from->b,
                         .a_use = from->a_use,
                         .b_use = from->b_use,
                         .bias = {from->bias, (uint8_t)from->bias_dtype},
                         .accumulate = from->accumulate,
                         .native = is_native(&from->a, &from->b),
                         .scratch_bytes = scratch_bytes}};
    octet_dtype dtype =
        exact_in_bf16(&from->a) && exact_in_bf16(&from->b) ? OCTET_BF16 : OCTET_F32;
    if (!r.call.native) {
        r.call.a_copy = copy_of(&from->a, from->a_use, dtype);
        r.call.b_copy = copy_of(&from->b, from->b_use, dtype);
    } else {
        provide_copies(&r.call);
    }
    r.scratch = aligned_alloc(256, (size_t)scratch_bytes + 256);
    r.call.scratch = scratch_bytes ? r.scratch + 64 : NULL;
    return r;
}

static void runner_free(runner *r) {
    free(r->call.a_copy.parts[0]);
    free(r->call.b_copy.parts[0]);
    free(r->call.dst_copy.parts[0]);
    free(r->call.b_scales.parts[0]);
    free(r->scratch);
}

/* Runs it and gives how many of its parts the library has multiplied. */
static int check(const pair *pr, const int64_t shape[3], const product_options *o,
                 int64_t scratch_bytes) {
    product *p = product_make(pr, shape, o);
    runner r = runner_make(p, scratch_bytes);
    octet_error err = {OCTET_OK, 0, ""};
    int before = emulated_matmuls();
    memcpy(p->call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    CHECK_EQ_INT(oct_cuda_gemm(cuda_on(), &r.call, &err), OCTET_OK);
    double worst = product_worst(p);
    test_report(worst <= 1.0, TEST_HERE("error within its bound"),
                "%s %s, gemm %d, %d x %d, length %d: %g of the bound; %s", pr->a, pr->b,
                (int)pr->gemm, (int)shape[0], (int)shape[1], (int)shape[2], worst, err.text);
    runner_free(&r);
    product_free(p);
    return emulated_matmuls() - before;
}

#define SCRATCH ((int64_t)9 << 20)

/* Swizzled scales are for GPUs that read them, rows across the product for MXFP8's. */
static bool is_for_library(const pair *pr) {
    bool across = pr->gemm == OCTET_DGRAD && pr->b_use == OCTET_USE_ROW;
    across = across || (pr->gemm == OCTET_WGRAD && pr->a_use == OCTET_USE_ROW);
    across = across || (pr->gemm == OCTET_FPROP && pr->b_use == OCTET_USE_COL);
    bool fp8 = strncmp(pr->a, "fp8", 3) == 0 && strncmp(pr->b, "fp8", 3) == 0;
    bool mixed = pr->a_use == OCTET_USE_VALUES && pr->b_use == OCTET_USE_VALUES &&
                 strcmp(pr->a, pr->b) != 0;
    return !mixed && !(fp8 && across);
}

TEST(gemm__library_takes_whole_shapes) {
    for (size_t n = 0; n < PAIRS; n++) {
        product_options o = {.dst = n % 2 ? OCTET_F32 : OCTET_BF16, .seed = n + 1};
        int parts = check(&pairs[n], (int64_t[]){48, 32, 160}, &o, SCRATCH);
        test_report(parts == is_for_library(&pairs[n]), TEST_HERE("who multiplies"),
                    "%s %s, gemm %d: %d", pairs[n].a, pairs[n].b, (int)pairs[n].gemm, parts);
    }
}

TEST(gemm__every_shape_within_the_bound) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {17, 31, 16}, {24, 40, 80}, {29, 33, 17}};
    for (size_t n = 0; n < PAIRS; n++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            product_options o = {.dst = OCTET_F32, .seed = 10 * n + s + 1};
            check(&pairs[n], shapes[s], &o, SCRATCH);
        }
    }
}

/* Per-tensor bytes along the product are the library's in any shape. dst of odd rows comes 32
 * rows of sums at a time. */
TEST(gemm__library_takes_per_tensor_bytes_of_any_shape) {
    static const octet_dtype dtypes[] = {OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_NONE};
    static const size_t along[] = {8, 11, 13};
    for (uint64_t i = 0; i < 3 * 27 * 8; i++) {
        static const int64_t sizes[3][3] = {{48, 37, 70}, {32, 24, 45}, {64, 49, 17}};
        uint64_t n = i / 8;
        int64_t shape[3] = {sizes[0][n % 3], sizes[1][n / 3 % 3], sizes[2][n / 9 % 3]};
        octet_dtype dst = dtypes[i % 3], bias = dtypes[i / 2 % 4];
        product_options o = {.dst = dst, .bias = bias, .accumulate = i % 2, .seed = i + 1};
        bool ragged = shape[1] * product_bytes(dst) % 16 != 0;
        int parts = check(&pairs[along[n / 27]], shape, &o, SCRATCH);
        CHECK_EQ_INT(parts, ragged ? (shape[0] + 31) / 32 : 1);
    }
}

/* Parts of a product of 128-blocks: sums 32 rows at a time where columns are ragged, and the
 * rows behind whole eights. Few rows of whole lines are the own kernel's. */
static int block_parts(const pair *pr, const int64_t shape[3]) {
    if (shape[0] <= 16 && shape[2] % 16 == 0 && !strstr(pr->a, "e5m2") &&
        !strstr(pr->b, "e5m2")) {
        return 0;
    }
    int64_t whole = shape[0] / 8 * 8, chunk = shape[1] % 8 ? 32 : whole;
    return (int)((whole ? (whole + chunk - 1) / chunk : 0) + (shape[0] % 8 != 0));
}

/* 128-blocks are the library's in any shape but a few rows. */
TEST(gemm__library_takes_blocks_of_any_shape) {
    static const int64_t sizes[] = {1, 7, 8, 9, 15, 16, 17, 40, 127, 128, 129, 133};
    static const int64_t lengths[] = {16, 1, 130, 7, 257, 128, 127};
    static const octet_dtype dtypes[] = {OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_NONE};
    static const pair vectors_down = {OCTET_FPROP, "fp8-block:e4m3", "fp8-block:e4m3",
                                      OCTET_USE_ROW, OCTET_USE_ROW};
    static const pair squares_first = {OCTET_FPROP, "fp8-block:e4m3/128x128", "fp8-block:e4m3",
                                       OCTET_USE_ROW, OCTET_USE_ROW};
    const pair *const along[] = {&pairs[14], &pairs[15],    &pairs[17],    &pairs[18],
                                 &pairs[19], &vectors_down, &squares_first};
    for (uint64_t i = 0; i < 12 * 12 * 7; i++) {
        int64_t shape[3] = {sizes[i % 12], sizes[i / 12 % 12], lengths[(i + i / 144) % 7]};
        product_options o = {.dst = dtypes[i % 5 % 3],
                             .bias = dtypes[i / 3 % 4],
                             .accumulate = i / 5 % 2,
                             .seed = i + 1};
        int parts = check(along[i / 144], shape, &o, SCRATCH);
        int want = block_parts(along[i / 144], shape);
        test_report(parts == want, TEST_HERE("parts"), "%d x %d: %d, not %d", (int)shape[0],
                    (int)shape[1], parts, want);
    }
}

/* 20 blocks along the product: the scales of 128 rows in half of the room, or of 8 beside those
 * rows and their sums. */
TEST(gemm__scratch_holds_the_scales_of_some_rows_at_a_time) {
    static const int64_t tall[3] = {301, 24, 2560}, ragged[3] = {301, 21, 2500};
    static const int64_t few[3] = {6, 24, 2560};
    const int64_t own = 512, scales = 2 * 128 * 20 * 4, eight = 8 * 2560 + 768 + 768;
    product_options o = {.dst = OCTET_F32, .seed = 1};
    product_options add = {.dst = OCTET_F32, .accumulate = true, .seed = 2};
    const pair *pr = &pairs[18];
    CHECK_EQ_INT(check(pr, tall, &o, own + scales), 4); /* 128, 128, 40; the last eight */
    CHECK_EQ_INT(check(pr, tall, &o, own + scales - 256), 0);
    CHECK_EQ_INT(check(pr, tall, &add, own + eight + scales), 4);
    CHECK_EQ_INT(check(pr, tall, &add, own + eight + scales - 256), 0);
    CHECK_EQ_INT(check(pr, ragged, &add, own + eight + scales), 11); /* sums of 32 rows */
    CHECK_EQ_INT(check(&pairs[19], few, &o, own + eight), 1);
    CHECK_EQ_INT(check(&pairs[19], few, &o, own + eight - 256), 0);
}

TEST(gemm__every_result_bias_and_old_value) {
    static const octet_dtype dtypes[] = {OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_NONE};
    for (uint64_t i = 0; i < 24; i++) {
        octet_dtype dst = dtypes[i % 3], bias = dtypes[i / 3 % 4];
        for (size_t n = i % 5; n < PAIRS; n += 5) {
            product_options o = {
                .dst = dst, .bias = bias, .accumulate = i >= 12, .seed = i + n + 1};
            check(&pairs[n], (int64_t[]){16, 48, 32}, &o, SCRATCH);
            check(&pairs[n], (int64_t[]){2, 53, 0}, &o, SCRATCH);
        }
    }
}

/* dst in parts: factors of rows and columns, types that the library does not write, and a bias
 * that it does not add. */
TEST(gemm__sums_that_fill_the_scratch_come_in_parts) {
    static const size_t by_sums[] = {1, 8, 14, 28, 29, 30, 35, 39};
    int64_t room = 512 + 256 + 128 * 26 * 4;
    for (size_t n = 0; n < sizeof by_sums / sizeof by_sums[0]; n++) {
        product_options o = {
            .dst = OCTET_BF16, .bias = OCTET_F32, .accumulate = n % 2, .seed = n + 1};
        int64_t shape[3] = {304, 24, 176};
        CHECK_EQ_INT(check(&pairs[by_sums[n]], shape, &o, room), 3);
        CHECK_EQ_INT(check(&pairs[by_sums[n]], shape, &o, SCRATCH), 1);
    }
    product_options plain = {.dst = OCTET_F16, .seed = 7};
    CHECK_EQ_INT(check(&pairs[1], (int64_t[]){300, 24, 32}, &plain, room), 3);
}

TEST(gemm__nothing_to_do_and_no_scratch) {
    product_options o = {.dst = OCTET_F32, .seed = 1};
    CHECK_EQ_INT(check(&pairs[0], (int64_t[]){0, 5, 5}, &o, SCRATCH), 0);
    CHECK_EQ_INT(check(&pairs[8], (int64_t[]){5, 0, 5}, &o, SCRATCH), 0);
    CHECK_EQ_INT(check(&pairs[1], (int64_t[]){16, 16, 32}, &o, 256), 0);
}

/* Per-tensor bytes need no scratch, unless the bias takes sums. */
TEST(gemm__per_tensor_bytes_need_no_scratch) {
    static const size_t per_tensor[] = {8, 11, 13};
    static const octet_dtype dtypes[] = {OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_NONE};
    for (size_t n = 0; n < sizeof per_tensor / sizeof per_tensor[0]; n++) {
        for (uint64_t i = 0; i < 12; i++) {
            octet_dtype dst = dtypes[i % 3], bias = dtypes[i / 3];
            product_options o = {
                .dst = dst, .bias = bias, .accumulate = n == 2, .seed = 12 * n + i + 1};
            bool sums = bias != OCTET_NONE && dst != OCTET_F32 && bias != dst;
            int parts = check(&pairs[per_tensor[n]], (int64_t[]){16, 48, 32}, &o, 0);
            CHECK_EQ_INT(parts, !sums);
        }
    }
}

/* The same pair with its scale and its bias elsewhere, and nothing where they were. */
TEST(gemm__descriptors_are_made_once_and_take_each_run) {
    static _Alignas(256) uint16_t bias[2][128];
    static _Alignas(256) float scales[2][64];
    product_options o = {.dst = OCTET_BF16, .bias = OCTET_BF16, .seed = 9};
    product *p = product_make(&pairs[8], (int64_t[]){32, 80, 144}, &o);
    const float scale = *(const float *)p->call.a.parts[OCTET_PART_SCALE];
    int made = emulated_descriptors(), done = emulated_matmuls();
    for (int run = 0; run < 4; run++) {
        for (int i = 0; i < 80; i++) {
            bias[run % 2][i] = (uint16_t)(0x3f80 + 64 * run + i); /* 1 and more */
        }
        p->call.bias = bias[run % 2];
        scales[run / 2][0] = scale;
        scales[1 - run / 2][0] = NAN;
        p->call.a.parts[OCTET_PART_SCALE] = scales[run / 2];
        memcpy(p->call.dst.parts[0], p->old, (size_t)p->dst_bytes);
        runner r = runner_make(p, 0);
        CHECK_EQ_INT(oct_cuda_gemm(cuda_on(), &r.call, NULL), OCTET_OK);
        CHECK(product_worst(p) <= 1.0);
        runner_free(&r);
    }
    CHECK_EQ_INT(emulated_matmuls() - done, 4);
    CHECK_EQ_INT(emulated_descriptors() - made, 4);
    product_free(p);
}

/* Long sums of 128-blocks have a workspace to be split in. */
TEST(gemm__a_library_without_kernels_for_it_leaves_the_product) {
    product_options o = {.dst = OCTET_BF16, .bias = OCTET_BF16, .seed = 3};
    product_options grad = {.dst = OCTET_BF16, .seed = 4};
    emulated_least_workspace(1);
    CHECK_EQ_INT(check(&pairs[8], (int64_t[]){32, 48, 64}, &o, 0), 0);
    CHECK_EQ_INT(check(&pairs[1], (int64_t[]){32, 48, 64}, &o, SCRATCH), 0);
    CHECK_EQ_INT(check(&pairs[15], (int64_t[]){32, 48, 8064}, &grad, SCRATCH), 0);
    CHECK_EQ_INT(check(&pairs[15], (int64_t[]){32, 48, 8192}, &grad, SCRATCH), 1);
    emulated_least_workspace(0);
}

/* Three chunks of 16 rows of 34 bytes: the second begins on a boundary of 32 bytes, the others
 * on 64 at least. Adds them and gives how many the library has multiplied. */
static int add_chunks(int64_t cols) {
    int64_t room = 512 + 16 * cols * 4;
    product_options o = {.dst = OCTET_BF16, .bias = OCTET_F32, .accumulate = true, .seed = 5};
    product *p = product_make(&pairs[1], (int64_t[]){48, cols, 14}, &o); /* 3 apart */
    void *own = p->call.a.parts[0], *moved = aligned_alloc(256, 7 * 256);
    memcpy(moved, own, 47 * 34 + 28);
    p->call.a.parts[0] = moved;
    runner r = runner_make(p, room);
    int before = emulated_matmuls();
    memcpy(p->call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    CHECK_EQ_INT(oct_cuda_gemm(cuda_on(), &r.call, NULL), OCTET_OK);
    CHECK(product_worst(p) <= 1.0);
    p->call.a.parts[0] = own;
    free(moved);
    runner_free(&r);
    product_free(p);
    return emulated_matmuls() - before;
}

TEST(gemm__no_part_is_added_before_all_have_an_algorithm) {
    emulated_least_boundary(64);
    CHECK_EQ_INT(add_chunks(24), 0);
    emulated_least_boundary(32);
    CHECK_EQ_INT(add_chunks(40), 3);
    emulated_least_boundary(0);
}

TEST_MAIN(gemm__library_takes_whole_shapes, gemm__every_shape_within_the_bound,
          gemm__library_takes_per_tensor_bytes_of_any_shape,
          gemm__library_takes_blocks_of_any_shape,
          gemm__scratch_holds_the_scales_of_some_rows_at_a_time,
          gemm__every_result_bias_and_old_value, gemm__sums_that_fill_the_scratch_come_in_parts,
          gemm__nothing_to_do_and_no_scratch, gemm__per_tensor_bytes_need_no_scratch,
          gemm__descriptors_are_made_once_and_take_each_run,
          gemm__a_library_without_kernels_for_it_leaves_the_product,
          gemm__no_part_is_added_before_all_have_an_algorithm)
