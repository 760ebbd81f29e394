/* test_applied.c - a cast that computes f(x) leaves the bytes of the CPU's f(x) cast. */
#include "../cpu/prologue_cases.h"
#include "../cpu/quantizers.h"
#include "compare.h"
#include "device.h"
#include "test.h"

/* A case in memory that ends where it ends, x at `shift` elements past a boundary. */
typedef struct exact_case {
    cpu_tensor x, gamma, beta, stats;
    oct_prologue_call call;
} exact_case;

static exact_case exact_of(const prologue_case *c, int64_t shift) {
    exact_case e = {.x = cuda_exact(&c->x, shift),
                    .gamma = cuda_exact(&c->gamma, shift),
                    .beta = cuda_exact(&c->beta, 0),
                    .stats = cuda_exact(&c->stats, 0),
                    .call = c->call};
    e.call.gamma.at = e.call.gamma.at ? e.gamma.m.parts[0] : NULL;
    e.call.beta.at = e.call.beta.at ? e.beta.m.parts[0] : NULL;
    e.call.stats = oct_prologue_is_norm(c->call.prologue) ? e.stats.m.parts[0] : NULL;
    return e;
}

static void exact_free(exact_case *e, int64_t shift) {
    cuda_exact_free(&e->x, shift);
    cuda_exact_free(&e->gamma, shift);
    cuda_exact_free(&e->beta, 0);
    cuda_exact_free(&e->stats, 0);
}

static void check(const octet_quantizer *q, int prologue, const int64_t sides[2],
                  uint64_t seed) {
    prologue_case c;
    int64_t shift = (int64_t)(seed % 3);
    prologue_case_make(&c, prologue, sides[0], sides[1], seed);
    prologue_case_run(&c, NULL);
    octet_dtype dtype = (octet_dtype)c.x.m.dtype;
    exact_case e = exact_of(&c, shift);
    cpu_tensor want = cpu_tensor_quantized(q, dtype, sides[0], sides[1], 1);
    cpu_tensor got = cpu_tensor_quantized(q, dtype, sides[0], sides[1], 1);
    bool delayed = q->scheme == OCTET_FP8_DELAYED, blocks = q->scheme == OCTET_MXFP8;
    float scale = 3.0f, amaxes[2] = {delayed ? -1 : 0, 0};
    oct_live live = {&scale, &c.amax, delayed ? &amaxes[0] : NULL, 0, 0, NULL};
    oct_cpu_quantize(&want.m, &c.f.m, &live, NULL);
    cpu_tensor row = cuda_copy_of(&got, OCTET_USE_ROW, blocks && seed % 5 < 3);
    cpu_tensor col = cuda_copy_of(&got, OCTET_USE_COL, blocks && seed % 7 < 4);
    oct_cuda_live on_gpu = {.scale = delayed ? &scale : NULL,
                            .amax = delayed ? NULL : &c.amax,
                            .new_amax = delayed ? &amaxes[1] : NULL,
                            .row_copy = &row.m,
                            .col_copy = &col.m,
                            .apply = &e.call};
    oct_matrix nowhere = c.f.m;
    nowhere.parts[0] = NULL;
    e.call.x = &e.x.m;
    CHECK_EQ_INT(oct_cuda_quantize(cuda_on(), &got.m, &nowhere, &on_gpu, NULL), OCTET_OK);
    int64_t before = test_failures;
    cuda_check_parts(&got, &want);
    CHECK_EQ_BITS(amaxes[1], amaxes[0]);
    if (test_failures > before && test_failures <= TEST_REPORTS) {
        printf("    prologue %d, %s, %dx%d, seed %d\n", prologue, octet_dtype_name(dtype),
               (int)sides[0], (int)sides[1], (int)seed);
    }
    cuda_check_copy(&row, &got, OCTET_USE_ROW);
    cuda_check_copy(&col, &got, OCTET_USE_COL);
    exact_free(&e, shift);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
    prologue_case_free(&c);
}

/* Every prologue and shape, numbers and quantizers as they come. */
static void check_scheme(octet_scheme scheme) {
    int index = 0;
    for (int i = 0; i < (OCTET_PROLOGUES - 1) * CPU_SHAPES; i++) {
        octet_quantizer q;
        do {
            index = (index + 1) % CPU_QUANTIZERS;
        } while (!cpu_quantizer(&q, scheme, index));
        check(&q, 1 + i % (OCTET_PROLOGUES - 1), cpu_shapes[i / (OCTET_PROLOGUES - 1)],
              (uint64_t)(i * 5 + 1));
    }
}

TEST(applied__one_scale_equals_the_cpu) {
    check_scheme(OCTET_FP8_TENSOR);
    check_scheme(OCTET_FP8_DELAYED);
}

TEST(applied__blocks_equal_the_cpu) {
    check_scheme(OCTET_FP8_BLOCK);
}

TEST(applied__mxfp8_equals_the_cpu) {
    check_scheme(OCTET_MXFP8);
}

TEST_MAIN(applied__one_scale_equals_the_cpu, applied__blocks_equal_the_cpu,
          applied__mxfp8_equals_the_cpu)
