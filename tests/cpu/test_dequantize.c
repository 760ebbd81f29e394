/* test_dequantize.c - what quantized bytes decode to, in each direction, against the model. */
#include "every_isa.h"

#include "inputs.h"
#include "model.h"
#include "quantizers.h"

static cpu_tensor quantized(const octet_quantizer *q, const cpu_tensor *x, uint64_t seed) {
    cpu_tensor out = cpu_tensor_quantized(q, (octet_dtype)x->m.dtype, x->m.rows, x->m.cols, 1);
    float scale = 3.0f, amax = model_amax(x);
    oct_live live = {&scale, &amax, NULL, seed, 0, NULL};
    oct_cpu_amax_parts(&out.m, &x->m, NULL);
    oct_cpu_quantize(&out.m, &x->m, &live, NULL);
    return out;
}

static void check_value(float got, float want, octet_dtype dtype) {
    uint32_t wanted = octet_encode(dtype, want), found = octet_encode(dtype, got);
    if (want != want) {
        CHECK(got != got); /* which NaN a product gives is the machine's choice */
    } else {
        CHECK_EQ_BITS(found, wanted);
    }
}

static void check_direction(const cpu_tensor *q, octet_use use, octet_dtype dtype, int count) {
    int64_t rows = q->m.rows, cols = q->m.cols;
    cpu_tensor got = cpu_tensor_plain(dtype, rows, cols, cols + count);
    oct_threads threads = cpu_threads(count);
    float *want = model_dequantize(q, use);
    oct_cpu_dequantize(&got.m, &q->m, use, &threads);
    int64_t before = test_failures;
    for (int64_t i = 0; i < rows * cols && test_failures < before + 3; i++) {
        check_value(cpu_tensor_get(&got, i / cols, i % cols), want[i], dtype);
    }
    CHECK(cpu_tensor_guarded(&got));
    if (test_failures > before) {
        char text[OCTET_QUANTIZER_TEXT];
        octet_quantizer_print(text, sizeof text, &q->m.quantizer);
        printf("    %s %dx%d use %d\n", text, (int)rows, (int)cols, (int)use);
    }
    free(want);
    cpu_tensor_free(&got);
}

static void check_scheme(octet_scheme scheme) {
    static const int threads[] = {1, 2, 5};
    uint64_t state = 100 + (uint64_t)scheme;
    for (int i = 0; i < CPU_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cpu_quantizer(&q, scheme, i)) {
            continue;
        }
        for (int s = (int)(cpu_random(&state) % 3); s < CPU_SHAPES; s += 3) {
            uint64_t seed = cpu_random(&state);
            octet_dtype dtype = (octet_dtype)(OCTET_F32 + seed % 3);
            octet_dtype to = (octet_dtype)(OCTET_F32 + (seed >> 8) % 3);
            cpu_tensor x =
                cpu_tensor_plain(dtype, cpu_shapes[s][0], cpu_shapes[s][1], cpu_shapes[s][1]);
            cpu_fill(&x, (cpu_input)((seed >> 16) % CPU_INPUTS), seed);
            cpu_tensor made = quantized(&q, &x, seed);
            for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
                if (use == OCTET_USE_ROW ? q.rowwise : q.columnwise) {
                    check_direction(&made, (octet_use)use, to, threads[(seed >> 40) % 3]);
                }
            }
            cpu_tensor_free(&made);
            cpu_tensor_free(&x);
        }
    }
}

TEST(dequantize__one_scale_equals_the_model) {
    check_scheme(OCTET_FP8_TENSOR);
    check_scheme(OCTET_FP8_DELAYED);
}

TEST(dequantize__blocks_equal_the_model) {
    check_scheme(OCTET_FP8_BLOCK);
}

TEST(dequantize__mxfp8_equals_the_model) {
    check_scheme(OCTET_MXFP8);
}

TEST(dequantize__nvfp4_equals_the_model) {
    check_scheme(OCTET_NVFP4);
}

TEST(dequantize__mxfp4_equals_the_model) {
    check_scheme(OCTET_MXFP4);
}

/* Every code under every scale, codes that no quantizer makes included. */
TEST(dequantize__every_code) {
    static const octet_dtype formats[] = {OCTET_E4M3, OCTET_E5M2};
    static const float scales[] = {1.0f, 0.3f, 0x1p-126f, 0x1p-149f, 0x1p120f};
    for (int i = 0; i < 10; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(
            octet_quantizer_parse(&q, i % 2 ? "fp8-tensor:e5m2" : "fp8-tensor:e4m3", NULL),
            OCTET_OK);
        CHECK_EQ_INT(q.format, formats[i % 2]);
        cpu_tensor made = cpu_tensor_quantized(&q, OCTET_F32, 8, 32, 1);
        for (int code = 0; code < 256; code++) {
            ((uint8_t *)made.m.parts[OCTET_PART_ROW_DATA])[code] = (uint8_t)code;
            ((uint8_t *)made.m.parts[OCTET_PART_COL_DATA])[code] = (uint8_t)code;
        }
        *(float *)made.m.parts[OCTET_PART_SCALE] = scales[i / 2];
        for (int dtype = OCTET_F32; dtype <= OCTET_F16; dtype++) {
            check_direction(&made, OCTET_USE_ROW, (octet_dtype)dtype, 1);
            check_direction(&made, OCTET_USE_COL, (octet_dtype)dtype, 1);
        }
        cpu_tensor_free(&made);
    }
}

/* Ordinary numbers come back within half a step of the format: e4m3 has 3 mantissa bits, e2m1
 * one; the transform spreads a group's errors over it. */
TEST(dequantize__undoes_quantize) {
    static const struct {
        const char *text;
        double bound; /* of the amax */
    } rows[] = {{"fp8-tensor:e4m3", 1.0 / 16}, {"mxfp8:e4m3", 1.0 / 16},
                {"fp8-block:e4m3", 1.0 / 16},  {"nvfp4:e2m1", 0.25},
                {"nvfp4:e2m1+4over6", 0.25},   {"nvfp4:e2m1+rht+col", 0.75},
                {"mxfp4:e2m1", 0.34},          {"mxfp4:e2m1+rht+col", 1.0}};
    cpu_tensor x = cpu_tensor_plain(OCTET_F32, 70, 130, 130);
    for (int64_t i = 0; i < 70 * 130; i++) {
        cpu_tensor_set(&x, i / 130, i % 130, (float)((i * 7919) % 2001 - 1000) / 1000);
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(octet_quantizer_parse(&q, rows[i].text, NULL), OCTET_OK);
        cpu_tensor made = quantized(&q, &x, 5),
                   back = cpu_tensor_plain(OCTET_F32, 70, 130, 130);
        for (int use = q.rowwise ? OCTET_USE_ROW : OCTET_USE_COL; use <= OCTET_USE_COL; use++) {
            double worst = 0;
            oct_cpu_dequantize(&back.m, &made.m, (octet_use)use, NULL);
            for (int64_t at = 0; at < 70 * 130; at++) {
                double error = (double)cpu_tensor_get(&back, at / 130, at % 130) -
                               (double)cpu_tensor_get(&x, at / 130, at % 130);
                error = error < 0 ? -error : error;
                worst = error > worst ? error : worst;
            }
            CHECK(worst > 0 && worst < rows[i].bound);
        }
        cpu_tensor_free(&made);
        cpu_tensor_free(&back);
    }
    cpu_tensor_free(&x);
}

CPU_TEST_MAIN(dequantize__one_scale_equals_the_model, dequantize__blocks_equal_the_model,
              dequantize__mxfp8_equals_the_model, dequantize__nvfp4_equals_the_model,
              dequantize__mxfp4_equals_the_model, dequantize__every_code,
              dequantize__undoes_quantize)
