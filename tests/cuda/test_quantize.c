/* test_quantize.c - amaxes and quantized bytes of every quantizer value: the CPU's bytes. */
#include "compare.h"

/* Beside the edges of blocks: whole tiles, whole patches of 16 rows, and rows that are whole
 * words but no whole vectors. */
static const int64_t even_shapes[][2] = {{128, 256}, {272, 400}, {64, 48},  {160, 384},
                                         {136, 128}, {132, 64},  {144, 136}};

#define EVEN_SHAPES ((int)(sizeof even_shapes / sizeof even_shapes[0]))

static void check_shape(const octet_quantizer *q, int64_t rows, int64_t cols, uint64_t seed) {
    static const int64_t gaps[] = {0, 0, 5, 8};
    octet_dtype dtype = (octet_dtype)(OCTET_F32 + seed % 3);
    cpu_tensor x = cpu_tensor_plain(dtype, rows, cols, cols + gaps[seed >> 8 & 3]);
    cpu_fill(&x, (cpu_input)((seed >> 16 & 0xffff) % CPU_INPUTS), seed);
    cuda_check_quantize(q, &x, seed, seed >> 33 & 3 ? 0 : 1);
    cpu_tensor_free(&x);
}

/* Every quantizer of a scheme; shapes, dtype, input, gap between rows and the place where they
 * begin change along. */
static void check_scheme(octet_scheme scheme, int every) {
    uint64_t state = 7 + (uint64_t)scheme;
    for (int i = 0; i < CPU_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cpu_quantizer(&q, scheme, i)) {
            continue;
        }
        int first = (int)(cpu_random(&state) % (uint64_t)every);
        for (int s = first; s < CPU_SHAPES + EVEN_SHAPES; s += every) {
            const int64_t *shape = s < CPU_SHAPES ? cpu_shapes[s] : even_shapes[s - CPU_SHAPES];
            check_shape(&q, shape[0], shape[1], cpu_random(&state));
        }
    }
}

TEST(quantize__one_scale_equals_the_cpu) {
    check_scheme(OCTET_FP8_TENSOR, 1);
    check_scheme(OCTET_FP8_DELAYED, 1);
}

TEST(quantize__blocks_equal_the_cpu) {
    check_scheme(OCTET_FP8_BLOCK, 1);
}

TEST(quantize__mxfp8_equals_the_cpu) {
    check_scheme(OCTET_MXFP8, 1);
}

TEST(quantize__nvfp4_equals_the_cpu) {
    check_scheme(OCTET_NVFP4, 2);
}

TEST(quantize__mxfp4_equals_the_cpu) {
    check_scheme(OCTET_MXFP4, 1);
}

/* 256 x 256: every code of bf16 and f16 once, mixed. */
TEST(quantize__every_16_bit_value) {
    static const char *const texts[] = {
        "fp8-tensor:e4m3",   "fp8-tensor:e5m2",   "fp8-delayed:e4m3",
        "fp8-delayed:e5m2",  "fp8-block:e4m3",    "fp8-block:e5m2/128x128",
        "mxfp8:e4m3",        "mxfp8:e5m2",        "mxfp8:e4m3/32x32",
        "nvfp4:e2m1",        "nvfp4:e2m1/16x16",  "nvfp4:e2m1+rht",
        "nvfp4:e2m1+sr+row", "nvfp4:e2m1+4over6", "nvfp4:e2m1+rht+sr",
        "mxfp4:e2m1",        "mxfp4:e2m1/32x32",  "mxfp4:e2m1+rht",
        "mxfp4:e2m1+sr",     "mxfp4:e2m1+rht+sr", "mxfp4:e2m1/32x32+sr",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i], NULL), OCTET_OK);
        for (int dtype = OCTET_BF16; dtype <= OCTET_F16; dtype++) {
            cpu_tensor x = cpu_tensor_plain((octet_dtype)dtype, 256, 256, 256);
            cpu_fill(&x, CPU_INPUT_CODES, i);
            cuda_check_quantize(&q, &x, i, 0);
            cpu_tensor_free(&x);
        }
    }
}

/* Blocks from the tensor's amax down to where scales are subnormal and then 0, so that elements
 * lie past the largest code; some hold a NaN, and the last are zeros. */
static void fill_far_below(cpu_tensor *x, float unit, uint64_t seed) {
    for (int64_t r = 0; r < x->m.rows; r++) {
        for (int64_t c = 0; c < x->m.cols; c++) {
            int64_t block = r / 16 * (x->m.cols / 16) + c / 16;
            float size = ldexpf(unit, -(int)(block % 28));
            uint64_t bits = cpu_random(&seed);
            float part = (float)(int64_t)(bits % 511) / 255.0f - 1.0f;
            float value = block % 28 == 27 ? 0.0f : part * size;
            cpu_tensor_set(x, r, c, bits >> 32 & 0xfff ? value : NAN);
        }
    }
}

TEST(quantize__blocks_far_below_the_amax) {
    static const char *const texts[] = {
        "nvfp4:e2m1",        "nvfp4:e2m1/16x16", "nvfp4:e2m1+rht",      "nvfp4:e2m1+sr",
        "nvfp4:e2m1+rht+sr", "nvfp4:e2m1+row",   "nvfp4:e2m1/16x16+sr", "mxfp4:e2m1",
        "mxfp4:e2m1/32x32",  "mxfp4:e2m1+rht+sr"};
    static const float units[] = {1.0f, 0x1p-110f, 0x1p127f};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i], NULL), OCTET_OK);
        for (int k = 0; k < 9; k++) {
            cpu_tensor x = cpu_tensor_plain((octet_dtype)(OCTET_F32 + k % 3), 144, 272, 272);
            fill_far_below(&x, units[k / 3], i + 1);
            cuda_check_quantize(&q, &x, i, 0);
            cpu_tensor_free(&x);
        }
    }
}

/* Elements that need no scaling, for the amax is 2688 and that of each block 6, beside where
 * some random byte rounds up: a 512th part, and what the sum's rounding makes up for. */
static void fill_thresholds(cpu_tensor *x, uint64_t seed) {
    for (int64_t r = 0; r < x->m.rows; r++) {
        for (int64_t c = 0; c < x->m.cols; c++) {
            uint64_t bits = cpu_random(&seed);
            float step = bits >> 8 & 1 ? 0.5f : (float)(1 + (bits >> 9 & 1));
            float value = ldexpf((float)(bits % 256 + 1), -8) * step;
            value -= ldexpf((float)(int64_t)(bits >> 16 & 7) - 3.0f, -27);
            value = c % 16 == r % 16 ? 6.0f : value;
            cpu_tensor_set(x, r, c, bits >> 32 & 1 ? value : -value);
        }
    }
    cpu_tensor_set(x, 0, 0, 2688.0f);
}

TEST(quantize__elements_at_the_thresholds_of_random_bytes) {
    static const char *const texts[] = {"nvfp4:e2m1+sr", "nvfp4:e2m1+sr+row",
                                        "nvfp4:e2m1/16x16+sr", "mxfp4:e2m1+sr"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        octet_quantizer q;
        cpu_tensor x = cpu_tensor_plain(OCTET_F32, 512, 1024, 1024);
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i], NULL), OCTET_OK);
        fill_thresholds(&x, i + 1);
        cuda_check_quantize(&q, &x, i, 0);
        cpu_tensor_free(&x);
    }
}

/* More tiles than a GPU has room for at once, and more than one turn of the dense amax. */
TEST(quantize__large_tensors_equal_the_cpu) {
    static const char *const texts[] = {"fp8-tensor:e4m3",  "fp8-delayed:e4m3",
                                        "fp8-delayed:e5m2", "fp8-block:e4m3",
                                        "nvfp4:e2m1+rht",   "mxfp4:e2m1"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        octet_quantizer q;
        cpu_tensor x = cpu_tensor_plain(OCTET_BF16, 1040, 1304, 1304);
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i], NULL), OCTET_OK);
        cpu_fill(&x, CPU_INPUT_BLOCKS, 3);
        cuda_check_quantize(&q, &x, 3, 0);
        cpu_tensor_free(&x);
    }
}

/* ---- two at once ------------------------------------------------------------------------ */

/* A tensor on both devices, and what its amax is. */
typedef struct tensor {
    cpu_tensor x, want, got;
    float shares[OCT_AMAX_SHARES], scale, amax, new_amax[2];
} tensor;

static tensor make_tensor(const octet_quantizer *q, const int64_t *shape, octet_dtype dtype,
                          uint64_t seed) {
    int64_t rows = shape[0], cols = shape[1];
    tensor t = {.scale = 3.0f, .new_amax = {-1, 0}};
    t.x = cpu_tensor_plain(dtype, rows, cols, cols + (seed >> 40 & 7 ? 0 : 8));
    cpu_fill(&t.x, (cpu_input)(seed % CPU_INPUTS), seed);
    t.want = cpu_tensor_quantized(q, dtype, rows, cols, 1);
    t.got = cpu_tensor_quantized(q, dtype, rows, cols, 1);
    memset(t.shares, 0xFF, sizeof t.shares);
    oct_live live = {&t.scale, &t.amax, &t.new_amax[0], 0, 0, NULL};
    oct_cpu_amax(&t.amax, &t.x.m, NULL);
    oct_cpu_quantize(&t.want.m, &t.x.m, &live, NULL);
    return t;
}

static oct_cuda_quantizing quantizing_of(tensor *t) {
    bool delayed = t->want.m.quantizer.scheme == OCTET_FP8_DELAYED;
    oct_cuda_live live = {.scale = delayed ? &t->scale : NULL,
                          .amax = delayed ? NULL : t->shares,
                          .new_amax = delayed ? &t->new_amax[1] : NULL,
                          .amaxes = OCT_AMAX_SHARES};
    return (oct_cuda_quantizing){&t->got.m, &t->x.m, live};
}

static void check_tensor(tensor *t) {
    CHECK_EQ_BITS(cuda_largest(t->shares), t->amax);
    if (t->want.m.quantizer.scheme == OCTET_FP8_DELAYED) {
        CHECK_EQ_BITS(t->new_amax[1], t->new_amax[0]);
    }
    cuda_check_parts(&t->got, &t->want);
    cpu_tensor_free(&t->x);
    cpu_tensor_free(&t->want);
    cpu_tensor_free(&t->got);
}

/* One of 32 is large: blocks take several turns at it. */
static const int64_t *pair_shape(uint64_t seed) {
    static const int64_t large[] = {1040, 776};
    return seed % 32 ? cpu_shapes[seed / 32 % CPU_SHAPES] : large;
}

static void check_two(const octet_quantizer *p, const octet_quantizer *q, uint64_t seed) {
    octet_dtype dtype = (octet_dtype)(OCTET_F32 + seed % 3);
    octet_dtype other = seed >> 8 & 7 ? dtype : (octet_dtype)(OCTET_F32 + (seed + 1) % 3);
    tensor a = make_tensor(p, pair_shape(seed >> 16), dtype, seed >> 3);
    tensor b = make_tensor(q, pair_shape(seed >> 24), other, seed >> 5);
    oct_cuda_amaxing amaxes[2] = {{a.shares, OCT_AMAX_SHARES, &a.x.m, false},
                                  {b.shares, OCT_AMAX_SHARES, &b.x.m, false}};
    oct_cuda_quantizing two[2] = {quantizing_of(&a), quantizing_of(&b)};
    CHECK_EQ_INT(oct_cuda_amax_two(cuda_on(), amaxes, NULL), OCTET_OK);
    CHECK_EQ_INT(oct_cuda_quantize_two(cuda_on(), two, NULL), OCTET_OK);
    check_tensor(&a);
    check_tensor(&b);
}

TEST(quantize__two_at_once_equal_the_cpu) {
    static const char *const texts[][2] = {
        {"fp8-tensor:e4m3", "fp8-tensor:e4m3"},
        {"fp8-tensor:e5m2+row", "fp8-tensor:e5m2+pow2"},
        {"fp8-tensor:e4m3", "fp8-tensor:e5m2"},
        {"fp8-delayed:e4m3", "fp8-delayed:e4m3+row"},
        {"fp8-tensor:e4m3", "fp8-delayed:e4m3"},
        {"fp8-block:e4m3", "fp8-block:e4m3/128x128"},
        {"fp8-block:e5m2+row", "fp8-block:e5m2"},
        {"mxfp8:e4m3", "mxfp8:e4m3/32x32"},
        {"mxfp8:e5m2", "fp8-block:e5m2"},
    };
    uint64_t state = 5;
    for (int i = 0; i < 9 * 60; i++) {
        octet_quantizer p, q;
        CHECK_EQ_INT(octet_quantizer_parse(&p, texts[i % 9][0], NULL), OCTET_OK);
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i % 9][1], NULL), OCTET_OK);
        check_two(&p, &q, cpu_random(&state));
    }
}

/* ---- factors of products ----------------------------------------------------------------- */

/* A cast of a product's operand that is to make `count` factors: rounded once, of doubles. */
static void check_factors(const octet_quantizer *q, octet_dtype dtype, int count) {
    static const float amaxes[3] = {3.7f, 0x1.8p-140f, 0x1.234567p99f};
    octet_quantizer wide = *q;
    cpu_tensor x = cpu_tensor_plain(dtype, 48, 160, 160);
    cpu_tensor made = cpu_tensor_quantized(q, dtype, 48, 160, 1);
    int64_t seed = 11;
    float to[2][2] = {{-1, -1}, {-1, -1}};
    oct_alpha alphas[2] = {
        {{&amaxes[0], &amaxes[1]}, {q, &wide}, count > 0 ? to[0] : NULL, false},
        {{&amaxes[2], &amaxes[0]}, {q, q}, count > 1 ? to[1] : NULL, true}};
    oct_cuda_live live = {.seed = q->stochastic ? &seed : NULL, .alphas = alphas};
    wide.max256 = 1;
    memset(x.m.parts[0], 0, x.bytes[0]);
    for (int part = OCTET_PART_ROW_AMAX; part <= OCTET_PART_COL_AMAX; part++) {
        if (made.m.parts[part]) {
            memset(made.m.parts[part], 0, made.bytes[part]);
        }
    }
    CHECK_EQ_INT(oct_cuda_quantize(cuda_on(), &made.m, &x.m, &live, NULL), OCTET_OK);
    double units[2] = {1 / 2688.0 * (1 / 1536.0), 1 / 2688.0 * (1 / 2688.0)};
    float want[2] = {(float)(units[0] * (double)amaxes[0] * (double)amaxes[1]),
                     (float)(units[1] * (double)amaxes[2] * (double)amaxes[0])};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_BITS(to[i][0], i < count ? want[i] : -1.0f);
        CHECK_EQ_BITS(to[i][1], i < count ? (float)i : -1.0f);
    }
    cpu_tensor_free(&x);
    cpu_tensor_free(&made);
}

TEST(quantize__nvfp4_casts_make_factors_of_products) {
    static const char *const texts[] = {"nvfp4:e2m1/1x16", "nvfp4:e2m1/1x16+rht+sr",
                                        "nvfp4:e2m1/16x16", "nvfp4:e2m1/1x16+row"};
    for (int i = 0; i < 4 * 3 * 3; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i / 9], NULL), OCTET_OK);
        check_factors(&q, (octet_dtype)(OCTET_F32 + i / 3 % 3), i % 3);
    }
}

TEST_MAIN(quantize__one_scale_equals_the_cpu, quantize__blocks_equal_the_cpu,
          quantize__mxfp8_equals_the_cpu, quantize__nvfp4_equals_the_cpu,
          quantize__mxfp4_equals_the_cpu, quantize__every_16_bit_value,
          quantize__blocks_far_below_the_amax,
          quantize__elements_at_the_thresholds_of_random_bytes,
          quantize__large_tensors_equal_the_cpu, quantize__two_at_once_equal_the_cpu,
          quantize__nvfp4_casts_make_factors_of_products)
