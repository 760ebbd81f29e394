/* test_dequantize.c - what bytes decode to, in each direction: the CPU's bits. */
#include "compare.h"

static void check_direction(const cpu_tensor *made, octet_use use, octet_dtype to,
                            int64_t gap) {
    int64_t rows = made->m.rows, cols = made->m.cols;
    cpu_tensor want = cpu_tensor_plain(to, rows, cols, cols + gap);
    cpu_tensor got = cpu_tensor_plain(to, rows, cols, cols + gap);
    cpu_tensor from = cuda_exact(made, 0);
    oct_cpu_dequantize(&want.m, &made->m, use, NULL);
    CHECK_EQ_INT(oct_cuda_dequantize(cuda_on(), &got.m, &from.m, use, NULL), OCTET_OK);
    cuda_check_plain(&got, &want, made);
    cuda_exact_free(&from, 0);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
}

static void check_scheme(octet_scheme scheme) {
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
            cpu_tensor made = cuda_quantized(&q, &x, seed);
            for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
                if (use == OCTET_USE_ROW ? q.rowwise : q.columnwise) {
                    check_direction(&made, (octet_use)use, to, (int64_t)(seed >> 40) % 3);
                }
            }
            cpu_tensor_free(&made);
            cpu_tensor_free(&x);
        }
    }
}

TEST(dequantize__one_scale_equals_the_cpu) {
    check_scheme(OCTET_FP8_TENSOR);
    check_scheme(OCTET_FP8_DELAYED);
}

TEST(dequantize__blocks_equal_the_cpu) {
    check_scheme(OCTET_FP8_BLOCK);
}

TEST(dequantize__mxfp8_equals_the_cpu) {
    check_scheme(OCTET_MXFP8);
}

TEST(dequantize__nvfp4_equals_the_cpu) {
    check_scheme(OCTET_NVFP4);
}

TEST(dequantize__mxfp4_equals_the_cpu) {
    check_scheme(OCTET_MXFP4);
}

/* Random bytes: every code under every scale, those that no quantizer makes included; shapes
 * whose rows and lines are aligned. */
TEST(dequantize__any_bytes) {
    static const char *const texts[] = {"fp8-tensor:e4m3",   "fp8-tensor:e5m2",
                                        "fp8-block:e4m3",    "fp8-block:e5m2/128x128",
                                        "mxfp8:e4m3",        "mxfp8:e5m2+swizzled",
                                        "nvfp4:e2m1",        "nvfp4:e2m1+rht+col",
                                        "nvfp4:e2m1/16x16",  "mxfp4:e2m1",
                                        "mxfp4:e2m1+rht+col"};
    static const int64_t shapes[][2] = {{128, 128}, {144, 272}, {300, 64}, {16, 4096}};
    for (int i = 0; i < 11 * 4; i++) {
        octet_quantizer q;
        uint64_t seed = (uint64_t)i;
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i % 11], NULL), OCTET_OK);
        cpu_tensor made =
            cpu_tensor_quantized(&q, OCTET_F32, shapes[i / 11][0], shapes[i / 11][1], 1);
        for (int part = 0; part < OCTET_PARTS; part++) {
            for (size_t b = 0; made.m.parts[part] && b < made.bytes[part]; b++) {
                ((uint8_t *)made.m.parts[part])[b] = (uint8_t)cpu_random(&seed);
            }
        }
        for (int to = OCTET_F32; to <= OCTET_F16; to++) {
            for (int use = q.rowwise ? OCTET_USE_ROW : OCTET_USE_COL; use <= OCTET_USE_COL;
                 use++) {
                check_direction(&made, (octet_use)use, (octet_dtype)to, 0);
            }
        }
        cpu_tensor_free(&made);
    }
}

/* ---- what an emulated product reads ---------------------------------------------------- */

/* The CPU's dequantize of the same bytes with the shared factor made 1. */
static void drop_factor(cpu_tensor *t) {
    float *amax[2] = {t->m.parts[OCTET_PART_ROW_AMAX], t->m.parts[OCTET_PART_COL_AMAX]};
    size_t bytes[2] = {t->bytes[OCTET_PART_ROW_AMAX], t->bytes[OCTET_PART_COL_AMAX]};
    if (t->m.parts[OCTET_PART_SCALE]) {
        *(float *)t->m.parts[OCTET_PART_SCALE] = 1.0f;
    }
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; amax[i] && k < bytes[i] / sizeof(float); k++) {
            amax[i][k] = t->m.quantizer.max256 ? 6.0f * 256.0f : 6.0f * 448.0f;
        }
    }
    t->m.quantizer.hadamard = OCTET_HADAMARD_NONE;
}

/* NVFP4 only in bf16: fl32(fl32(scale x 2688) x fl32(1 / 2688)) may miss the scale by an ulp,
 * which bf16 does not see. */
static void check_decode(const cpu_tensor *made, octet_use use, octet_dtype to) {
    int64_t rows = made->m.rows, cols = made->m.cols;
    bool transformed = made->m.quantizer.hadamard && use == OCTET_USE_COL;
    int64_t tall = transformed ? (rows + 15) / 16 * 16 : rows;
    cpu_tensor got = cpu_tensor_plain(to, tall, cols, cols);
    cpu_tensor want = cpu_tensor_plain(to, tall, cols, cols);
    cpu_tensor from = cuda_exact(made, 0);
    CHECK_EQ_INT(oct_cuda_decode(cuda_on(), &got.m, &from.m, use, NULL), OCTET_OK);
    cuda_exact_free(&from, 0);
    from = cuda_exact(made, 0);
    from.m.rows = tall;
    drop_factor(&from);
    oct_cpu_dequantize(&want.m, &from.m, use, NULL);
    cuda_check_plain(&got, &want, made);
    cuda_exact_free(&from, 0);
    cpu_tensor_free(&got);
    cpu_tensor_free(&want);
}

/* Random bytes in shapes of whole vectors and of parts of them. */
TEST(decode__any_bytes) {
    static const char *const texts[] = {
        "nvfp4:e2m1", "nvfp4:e2m1+swizzled", "nvfp4:e2m1+rht", "mxfp8:e4m3+swizzled",
        "mxfp8:e5m2", "fp8-tensor:e4m3",     "mxfp4:e2m1",     "mxfp4:e2m1+swizzled"};
    static const int64_t shapes[][2] = {{64, 128}, {320, 264}, {75, 520}, {48, 17}};
    for (int i = 0; i < 8 * 4; i++) {
        octet_quantizer q;
        uint64_t seed = 77 + (uint64_t)i;
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i % 8], NULL), OCTET_OK);
        cpu_tensor made =
            cpu_tensor_quantized(&q, OCTET_BF16, shapes[i / 8][0], shapes[i / 8][1], 1);
        for (int part = 0; part < OCTET_PARTS; part++) {
            for (size_t b = 0; made.m.parts[part] && b < made.bytes[part]; b++) {
                ((uint8_t *)made.m.parts[part])[b] = (uint8_t)cpu_random(&seed);
            }
        }
        for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
            if (use == OCTET_USE_ROW ? q.rowwise : q.columnwise) {
                check_decode(&made, (octet_use)use, OCTET_BF16);
            }
        }
        cpu_tensor_free(&made);
    }
}

/* Nothing is lost in bf16. */
static void check_exact(const char *text) {
    octet_quantizer q;
    CHECK_EQ_INT(octet_quantizer_parse(&q, text, NULL), OCTET_OK);
    cpu_tensor x = cpu_tensor_plain(OCTET_BF16, 135, 260, 260);
    cpu_fill(&x, CPU_INPUT_BLOCKS, 4);
    cpu_tensor made = cuda_quantized(&q, &x, 1);
    for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
        cpu_tensor wide = cpu_tensor_plain(OCTET_F32, 135, 260, 260);
        cpu_tensor half = cpu_tensor_plain(OCTET_BF16, 135, 260, 260);
        octet_use way = (octet_use)use;
        CHECK_EQ_INT(oct_cuda_decode(cuda_on(), &wide.m, &made.m, way, NULL), OCTET_OK);
        CHECK_EQ_INT(oct_cuda_decode(cuda_on(), &half.m, &made.m, way, NULL), OCTET_OK);
        cuda_check_plain(&half, &wide, &made);
        cpu_tensor_free(&wide);
        cpu_tensor_free(&half);
    }
    cpu_tensor_free(&made);
    cpu_tensor_free(&x);
}

TEST(decode__fp4_is_exact_in_bf16) {
    check_exact("nvfp4:e2m1");
    check_exact("mxfp4:e2m1");
}

TEST(decode__leaves_out_the_shared_factor) {
    for (int i = 0; i < CUDA_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cuda_quantizer(&q, i) || q.stochastic) {
            continue;
        }
        int s = i % CPU_SHAPES;
        cpu_tensor x =
            cpu_tensor_plain(OCTET_BF16, cpu_shapes[s][0], cpu_shapes[s][1], cpu_shapes[s][1]);
        cpu_fill(&x, (cpu_input)(i % CPU_INPUTS), (uint64_t)i);
        cpu_tensor made = cuda_quantized(&q, &x, 1);
        for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
            if (use == OCTET_USE_ROW ? q.rowwise : q.columnwise) {
                check_decode(&made, (octet_use)use, OCTET_BF16);
                if (q.scheme != OCTET_NVFP4) {
                    check_decode(&made, (octet_use)use, OCTET_F32);
                }
            }
        }
        cpu_tensor_free(&made);
        cpu_tensor_free(&x);
    }
}

TEST_MAIN(dequantize__one_scale_equals_the_cpu, dequantize__blocks_equal_the_cpu,
          dequantize__mxfp8_equals_the_cpu, dequantize__nvfp4_equals_the_cpu,
          dequantize__mxfp4_equals_the_cpu, dequantize__any_bytes, decode__any_bytes,
          decode__fp4_is_exact_in_bf16, decode__leaves_out_the_shared_factor)
