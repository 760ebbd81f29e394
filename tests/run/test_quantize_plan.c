/* test_quantize_plan.c - one tensor to bytes and back: ports in flatten order, numbers near. */
#include "check.h"
#include "test.h"

static const char *const quantizers[] = {
    "fp8-tensor:e4m3",         "fp8-tensor:e5m2+pow2",      "fp8-tensor:e4m3+row",
    "fp8-delayed:e4m3",        "fp8-delayed:e5m2+row",      "fp8-block:e4m3/1x128",
    "fp8-block:e4m3/128x128",  "fp8-block:e5m2/1x128+col",  "mxfp8:e4m3",
    "mxfp8:e5m2+row",          "mxfp8:e4m3/32x32",          "mxfp8:e4m3+swizzled",
    "nvfp4:e2m1/1x16",         "nvfp4:e2m1/16x16",          "nvfp4:e2m1/1x16+rht",
    "nvfp4:e2m1/1x16+sr",      "nvfp4:e2m1/1x16+rowscaled", "nvfp4:e2m1/1x16+4over6",
    "nvfp4:e2m1/1x16+col+rht", "nvfp4:e2m1/1x16+rht+sr",    "mxfp4:e2m1/1x32",
    "mxfp4:e2m1/32x32",        "mxfp4:e2m1/1x32+rht+sr",
};
#define QUANTIZERS ((int)(sizeof quantizers / sizeof quantizers[0]))

static const int64_t shapes[][2] = {{0, 5}, {1, 1}, {3, 0}, {17, 33}, {128, 32}, {129, 131}};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

static octet_quantizer quantizer_of(const char *text) {
    octet_quantizer q = {0};
    octet_error err = {OCTET_OK, 0, ""};
    if (!CHECK_EQ_INT(octet_quantizer_parse(&q, text, &err), OCTET_OK)) {
        printf("    %s: %s\n", text, err.text);
    }
    return q;
}

TEST(quantize__outputs_are_the_buffers_in_flatten_order) {
    for (int i = 0; i < QUANTIZERS; i++) {
        octet_quantizer q = quantizer_of(quantizers[i]);
        octet_proto plain = octet_proto_make(OCTET_BF16, 2, shapes[3]), made = plain;
        octet_plan plan = OCTET_PLAN_INIT;
        made.quantizer = q;
        int count = octet_proto_buffer_count(&made);
        CHECK_EQ_INT(octet_plan_quantize(&plan, &plain, &q, NULL), OCTET_OK);
        bool delayed = q.scheme == OCTET_FP8_DELAYED;
        CHECK_EQ_INT(plan.kind, OCTET_PLAN_QUANTIZE);
        CHECK_EQ_INT(plan.out_count, count + delayed);
        CHECK_EQ_INT(plan.arg_count, 1 + delayed + q.stochastic);
        CHECK_EQ_INT(plan.phases, 1);
        for (int b = 0; b < count; b++) {
            octet_proto buffer;
            CHECK_EQ_INT(octet_proto_buffer(&buffer, &made, b, NULL), OCTET_OK);
            CHECK_EQ_INT(plan.outs[b].dtype, buffer.dtype);
            CHECK_EQ_INT(plan.outs[b].ndim, buffer.rank);
            for (int d = 0; d < buffer.rank; d++) {
                CHECK_EQ_INT(plan.outs[b].shape[d], buffer.shape[d]);
            }
        }
        if (delayed) {
            CHECK_EQ_INT(plan.args[1].name, OCTET_NAME_SCALE);
            CHECK_EQ_INT(plan.args[1].bytes, 4);
            CHECK_EQ_INT(plan.outs[count].name, OCTET_NAME_AMAX);
        } else if (q.stochastic) {
            CHECK_EQ_INT(plan.args[1].name, OCTET_NAME_SEED);
            CHECK_EQ_INT(plan.args[1].dtype, OCTET_I64);
            CHECK_EQ_INT(plan.args[1].ndim, 1);
            CHECK_EQ_INT(plan.args[1].shape[0], 1);
            CHECK(!plan.args[1].is_mutable);
        }
    }
}

static octet_status dequantize(run_group *group, run_values *out, const octet_proto *proto,
                               void *const parts[OCTET_PARTS]) {
    octet_plan plan = OCTET_PLAN_INIT;
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_status status = octet_plan_dequantize(&plan, proto, &group->err);
    if (status) {
        return status;
    }
    for (int i = 0; i < plan.arg_count; i++) {
        memory.args[i] = parts[plan.args[i].part];
    }
    void *room = calloc(1, (size_t)plan.outs[0].bytes + 1);
    memory.outs[0] = room;
    status = octet_run(&plan, &memory, &exec, &group->err);
    for (int64_t i = 0; !status && i < out->rows * out->cols; i++) {
        out->at[i] = run_load(room, (octet_dtype)proto->dtype, i);
    }
    free(room);
    return status;
}

/* Both directions, where there are two, decode within the format's law. A columnwise direction
 * with the transform is undone: what each of 16 numbers moved, a quarter of all may sum up. */
static void check_round_trip(run_report *report, const octet_quantizer *q, octet_dtype dtype,
                             const int64_t shape[2]) {
    run_group group = {0};
    uint64_t seed = 5;
    run_values x = run_values_random(shape[0], shape[1], dtype, &seed);
    run_values got = run_values_make(shape[0], shape[1]);
    int64_t rounding = 10;
    double amax = run_amax(&x);
    run_quantizing how = {
        *q, dtype,
        (float)(amax > 0 ? (q->format == OCTET_E5M2 ? 57344 : 448) / (1.5 * amax) : 1),
        &rounding, OCTET_STREAM_ALONE};
    for (int direction = 0; direction < 2; direction++) {
        void *parts[OCTET_PARTS] = {NULL};
        octet_proto proto = octet_proto_make(dtype, 2, shape);
        how.quantizer.rowwise = direction == 0;
        how.quantizer.columnwise = direction == 1;
        proto.quantizer = how.quantizer;
        octet_status status = run_quantize(&group, parts, &x, &how);
        status = status ? status : dequantize(&group, &got, &proto, parts);
        run_expect(report, status == OCTET_OK, "%s", group.err.text);
        bool undone = direction && q->hadamard;
        for (int64_t i = 0; i < x.rows * x.cols; i++) {
            int64_t r = i / x.cols, c = i % x.cols;
            run_spot spot = {&x, r, c, direction ? OCTET_USE_COL : OCTET_USE_ROW, amax};
            double law = undone ? 16 * 0.36 * run_block(&x, r, c, 16, 16) : run_law(q, &spot);
            law += run_unit(dtype) * (fabs(x.at[i]) + law) + run_least(dtype);
            run_expect(report, run_close(report, got.at[i], x.at[i], law),
                       "(%lld, %lld) of direction %d is %.9g, was %.9g, bound %.3g",
                       (long long)r, (long long)c, direction, got.at[i], x.at[i], law);
        }
    }
    run_values_free(&x);
    run_values_free(&got);
    run_group_free(&group);
}

TEST(quantize__round_trip_is_within_the_format) {
    static const octet_dtype dtypes[] = {OCTET_F32, OCTET_BF16, OCTET_F16};
    run_report report = {0};
    for (int i = 0; i < QUANTIZERS * SHAPES * 3; i++) {
        octet_quantizer q = quantizer_of(quantizers[i / 3 / SHAPES]);
        report.problem = quantizers[i / 3 / SHAPES];
        check_round_trip(&report, &q, dtypes[i % 3], shapes[i / 3 % SHAPES]);
    }
    CHECK_EQ_INT(report.failures, 0);
    CHECK(report.checks > 100000);
}

/* The same bytes for the same seed and stream, others for another: all 64 bits count. */
TEST(quantize__bytes_follow_from_seed_and_stream) {
    static const int64_t seeds[] = {15, 15, 14, 15 + ((int64_t)1 << 32), INT64_MIN + 15, 15};
    static const uint8_t streams[] = {0, 0, 0, 0, 0, OCTET_STREAM_INPUT};
    enum { CASES = sizeof seeds / sizeof seeds[0] };
    octet_quantizer q = quantizer_of("nvfp4:e2m1/1x16+sr+row");
    run_group group = {0};
    uint64_t state = 1;
    run_values x = run_values_random(32, 64, OCTET_BF16, &state);
    void *parts[CASES][OCTET_PARTS] = {{NULL}};
    for (int i = 0; i < CASES; i++) {
        run_quantizing how = {q, OCTET_BF16, 1.0f, &seeds[i], streams[i]};
        CHECK_EQ_INT(run_quantize(&group, parts[i], &x, &how), OCTET_OK);
    }
    for (int i = 1; i < CASES; i++) {
        int order =
            memcmp(parts[0][OCTET_PART_ROW_DATA], parts[i][OCTET_PART_ROW_DATA], 32 * 64 / 2);
        CHECK_EQ_INT(order == 0, i == 1);
    }
    run_values_free(&x);
    run_group_free(&group);
}

TEST(quantize__plans_print_what_they_do) {
    octet_quantizer q = quantizer_of("mxfp8:e4m3");
    octet_proto x = octet_proto_make(OCTET_BF16, 2, shapes[3]);
    octet_plan plan = OCTET_PLAN_INIT;
    char text[4096];
    CHECK_EQ_INT(octet_plan_quantize(&plan, &x, &q, NULL), OCTET_OK);
    CHECK(octet_plan_print(text, sizeof text, &plan) < sizeof text);
    CHECK(strstr(text, "quantize: m=17 k=33, on cpu\n") == text);
    CHECK(strstr(text, "input.quantized columnwise scale") != NULL);
    octet_quantizer rounded = quantizer_of("nvfp4:e2m1/1x16+sr+row");
    CHECK_EQ_INT(octet_plan_quantize(&plan, &x, &rounded, NULL), OCTET_OK);
    CHECK(octet_plan_print(text, sizeof text, &plan) < sizeof text);
    CHECK(strstr(text, "nvfp4:e2m1/1x16+row+sr by seed stream 0\n") != NULL);
    x.quantizer = q;
    CHECK_EQ_INT(octet_plan_dequantize(&plan, &x, NULL), OCTET_OK);
    CHECK(octet_plan_print(text, sizeof text, &plan) < sizeof text);
    CHECK(strstr(text, "dequantize: m=17 k=33, on cpu\n") == text);
}

TEST(quantize__what_cannot_be_planned_is_refused) {
    octet_quantizer q = quantizer_of("mxfp8:e4m3"), none = {.size = sizeof none};
    octet_proto x = octet_proto_make(OCTET_BF16, 2, shapes[3]), quantized = x, bytes = x;
    octet_plan plan = OCTET_PLAN_INIT, before = plan, old = plan;
    octet_error err = {OCTET_OK, 0, ""};
    quantized.quantizer = q;
    bytes.dtype = OCTET_U8;
    old.size = 3;
    CHECK_EQ_INT(octet_plan_quantize(NULL, &x, &q, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_quantize(&plan, NULL, &q, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_quantize(&plan, &x, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_quantize(&old, &x, &q, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_quantize(&plan, &bytes, &q, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "u8") != NULL);
    CHECK_EQ_INT(octet_plan_quantize(&plan, &quantized, &q, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "already") != NULL);
    CHECK_EQ_INT(octet_plan_quantize(&plan, &x, &none, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_dequantize(&plan, &x, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_dequantize(NULL, &quantized, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_dequantize(&plan, NULL, &err), OCTET_INVALID);
    CHECK(octet_plan_equal(&plan, &before));
}

TEST_MAIN(quantize__outputs_are_the_buffers_in_flatten_order,
          quantize__round_trip_is_within_the_format,
          quantize__bytes_follow_from_seed_and_stream, quantize__plans_print_what_they_do,
          quantize__what_cannot_be_planned_is_refused)
