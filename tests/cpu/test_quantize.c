/* test_quantize.c - quantized bytes against the model: every scheme, option, dtype and edge. */
#include "every_isa.h"

#include "inputs.h"
#include "model.h"
#include "quantizers.h"

typedef struct cast_case {
    octet_quantizer q;
    octet_dtype dtype;
    int64_t rows, cols, stride;
    cpu_input input;
    int threads;
    uint64_t seed;
} cast_case;

static void describe(const cast_case *p, const char *what, int part, size_t at) {
    char text[OCTET_QUANTIZER_TEXT];
    if (test_failures <= TEST_REPORTS) {
        octet_quantizer_print(text, sizeof text, &p->q);
        printf("    %s: %s %s %dx%d stride %d input %d threads %d: %s at byte %zu\n", what,
               text, octet_dtype_name(p->dtype), (int)p->rows, (int)p->cols, (int)p->stride,
               (int)p->input, p->threads, octet_part_name((octet_part)part), at);
    }
}

static void check_equal(const cast_case *p, const char *what, const cpu_tensor *got,
                        const cpu_tensor *want) {
    size_t at = 0;
    int part = cpu_tensor_differ(got, want, &at);
    if (!CHECK_EQ_INT(part, -1)) {
        describe(p, what, part, at);
    }
    if (!CHECK(cpu_tensor_guarded(got))) {
        describe(p, "wrote past the end", 0, 0);
    }
}

/* Scales of delayed scaling: ordinary, extreme, and what a broken state would hold. */
static float stored_scale(uint64_t seed) {
    static const float scales[] = {1.0f, 0.37f, 448.0f, 0x1p-60f, 0x1p100f, 0x1p-149f, 0.0f};
    return scales[seed % 7];
}

static void measure(const cast_case *p, cpu_tensor *got, cpu_tensor *want,
                    const cpu_tensor *x) {
    oct_threads threads = cpu_threads(p->threads);
    if (p->q.scheme == OCTET_NVFP4) {
        oct_cpu_amax_parts(&got->m, &x->m, &threads);
        model_amax_parts(want, x);
    }
}

static void check_cast(const cast_case *p) {
    oct_threads threads = cpu_threads(p->threads);
    cpu_tensor x = cpu_tensor_plain(p->dtype, p->rows, p->cols, p->stride);
    cpu_tensor got = cpu_tensor_quantized(&p->q, p->dtype, p->rows, p->cols, 1);
    cpu_tensor want = cpu_tensor_quantized(&p->q, p->dtype, p->rows, p->cols, 1);
    cpu_fill(&x, p->input, p->seed);
    measure(p, &got, &want, &x);
    float amax = model_amax(&x), new_amax = -1;
    uint32_t stream = (uint32_t)(p->seed >> 48 & 7);
    model_live live = {stored_scale(p->seed), amax, p->seed, stream};
    oct_live given = {&live.scale, &live.amax, &new_amax, p->seed, stream, NULL};
    model_quantize(&want, &x, &live);
    oct_cpu_quantize(&got.m, &x.m, &given, &threads);
    check_equal(p, "quantize", &got, &want);
    if (p->q.scheme == OCTET_FP8_DELAYED) {
        CHECK_EQ_BITS(new_amax, amax);
    }
    cpu_tensor_free(&x);
    cpu_tensor_free(&got);
    cpu_tensor_free(&want);
}

/* Every quantizer of a scheme on every shape; dtype, input, stride and threads change along. */
static void check_scheme(octet_scheme scheme, bool (*wanted)(const octet_quantizer *)) {
    static const int threads[] = {1, 2, 5};
    uint64_t state = (uint64_t)scheme;
    for (int i = 0; i < CPU_QUANTIZERS; i++) {
        cast_case p = {0};
        if (!cpu_quantizer(&p.q, scheme, i) || (wanted && !wanted(&p.q))) {
            continue;
        }
        for (int s = 0; s < CPU_SHAPES; s++) {
            p.seed = cpu_random(&state);
            p.dtype = (octet_dtype)(OCTET_F32 + p.seed % 3);
            p.rows = cpu_shapes[s][0];
            p.cols = cpu_shapes[s][1];
            p.stride = p.cols + (p.seed >> 8 & 1 ? 5 : 0);
            p.input = (cpu_input)(p.seed >> 16 & 0xffff) % CPU_INPUTS;
            p.threads = threads[(p.seed >> 32 & 0xffff) % 3];
            check_cast(&p);
        }
    }
}

TEST(quantize__per_tensor_equals_the_model) {
    check_scheme(OCTET_FP8_TENSOR, NULL);
}

TEST(quantize__delayed_equals_the_model) {
    check_scheme(OCTET_FP8_DELAYED, NULL);
}

TEST(quantize__blocks_equal_the_model) {
    check_scheme(OCTET_FP8_BLOCK, NULL);
}

TEST(quantize__mxfp8_equals_the_model) {
    check_scheme(OCTET_MXFP8, NULL);
}

static bool nearest(const octet_quantizer *q) {
    return !q->stochastic && !q->four_over_six;
}

static bool decides(const octet_quantizer *q) {
    return !nearest(q);
}

TEST(quantize__nvfp4_equals_the_model) {
    check_scheme(OCTET_NVFP4, nearest);
}

TEST(quantize__nvfp4_with_a_decision_per_block_equals_the_model) {
    check_scheme(OCTET_NVFP4, decides);
}

TEST(quantize__mxfp4_equals_the_model) {
    check_scheme(OCTET_MXFP4, NULL);
}

/* 256 x 256: every code of bf16 and f16 once, mixed, under several stored scales. */
TEST(quantize__every_16_bit_value) {
    static const char *const texts[] = {
        "fp8-tensor:e4m3",   "fp8-tensor:e5m2",   "fp8-delayed:e4m3",
        "fp8-delayed:e5m2",  "fp8-block:e4m3",    "fp8-block:e5m2/128x128",
        "mxfp8:e4m3",        "mxfp8:e5m2",        "mxfp8:e4m3/32x32",
        "nvfp4:e2m1",        "nvfp4:e2m1/16x16",  "nvfp4:e2m1+rht",
        "nvfp4:e2m1+sr+row", "nvfp4:e2m1+4over6", "mxfp4:e2m1",
        "mxfp4:e2m1/32x32",  "mxfp4:e2m1+rht",    "mxfp4:e2m1+sr",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        for (uint64_t seed = 0; seed < 14; seed++) {
            cast_case p = {.rows = 256, .cols = 256, .stride = 256, .threads = 1, .seed = seed};
            p.input = CPU_INPUT_CODES;
            p.dtype = seed % 2 ? OCTET_BF16 : OCTET_F16;
            CHECK_EQ_INT(octet_quantizer_parse(&p.q, texts[i], NULL), OCTET_OK);
            if (seed < 2 || p.q.scheme == OCTET_FP8_DELAYED) {
                check_cast(&p);
            }
        }
    }
}

/* More bytes than a cache keeps are written another way; so are lines that are no whole number
 * of cache lines. */
TEST(quantize__large_tensors_equal_the_model) {
    static const char *const texts[] = {"fp8-tensor:e4m3+col", "fp8-block:e4m3/128x128",
                                        "fp8-block:e4m3+col", "nvfp4:e2m1+col",
                                        "mxfp4:e2m1+col"};
    for (int i = 0; i < 6; i++) {
        cast_case p = {.cols = 2053, .stride = 2053, .threads = 2, .seed = 3};
        p.rows = i == 5 ? 2050 : 2048;
        p.input = CPU_INPUT_BLOCKS;
        p.dtype = OCTET_BF16;
        CHECK_EQ_INT(octet_quantizer_parse(&p.q, texts[i % 5], NULL), OCTET_OK);
        check_cast(&p);
    }
}

/* The same bytes whoever does the work. */
TEST(quantize__threads_do_not_change_a_byte) {
    static const octet_scheme schemes[] = {OCTET_FP8_TENSOR, OCTET_FP8_DELAYED, OCTET_FP8_BLOCK,
                                           OCTET_MXFP8,      OCTET_NVFP4,       OCTET_MXFP4};
    cpu_tensor x = cpu_tensor_plain(OCTET_BF16, 270, 530, 531);
    cpu_fill(&x, CPU_INPUT_BLOCKS, 11);
    for (int i = 0; i < 6 * 40; i++) {
        octet_quantizer q;
        if (!cpu_quantizer(&q, schemes[i / 40], i % 40 * 43 + 2)) {
            continue;
        }
        cast_case p = {q, OCTET_BF16, 270, 530, 531, CPU_INPUT_BLOCKS, 1, 11};
        cpu_tensor one = cpu_tensor_quantized(&q, OCTET_BF16, 270, 530, 1);
        float amax = model_amax(&x), scale = 2.5f;
        oct_live live = {&scale, &amax, NULL, 77, 0, NULL};
        for (int threads = 1; threads <= 5; threads += threads == 1 ? 1 : 3) {
            oct_threads t = cpu_threads(threads);
            cpu_tensor more = cpu_tensor_quantized(&q, OCTET_BF16, 270, 530, 1);
            cpu_tensor *out = threads == 1 ? &one : &more;
            oct_cpu_amax_parts(&out->m, &x.m, &t);
            oct_cpu_quantize(&out->m, &x.m, &live, &t);
            p.threads = threads;
            check_equal(&p, "threads", out, &one);
            cpu_tensor_free(&more);
        }
        cpu_tensor_free(&one);
    }
    cpu_tensor_free(&x);
}

CPU_TEST_MAIN(quantize__per_tensor_equals_the_model, quantize__delayed_equals_the_model,
              quantize__blocks_equal_the_model, quantize__mxfp8_equals_the_model,
              quantize__nvfp4_equals_the_model,
              quantize__nvfp4_with_a_decision_per_block_equals_the_model,
              quantize__mxfp4_equals_the_model, quantize__every_16_bit_value,
              quantize__large_tensors_equal_the_model, quantize__threads_do_not_change_a_byte)
