/* test_plain.c - casts, bias and column sums of plain tensors: the CPU's bits. */
#include "../cpu/inputs.h"
#include "../cpu/quantizers.h"
#include "device.h"
#include "test.h"

static void check_plain(const cpu_tensor *got, const cpu_tensor *want, int tag) {
    int64_t row = 0, col = 0;
    if (!CHECK(cuda_same(got, want, &row, &col)) && test_failures <= TEST_REPORTS) {
        printf("    %d: %dx%d dtype %d at (%d, %d): %a, not %a\n", tag, (int)want->m.rows,
               (int)want->m.cols, want->m.dtype, (int)row, (int)col,
               (double)cpu_tensor_get(got, row, col), (double)cpu_tensor_get(want, row, col));
    }
    CHECK(cpu_tensor_guarded(got));
}

static cpu_tensor filled(octet_dtype dtype, int shape, cpu_input input, uint64_t seed) {
    int64_t cols = cpu_shapes[shape][1];
    static const int64_t gaps[] = {0, 1, 8};
    cpu_tensor x = cpu_tensor_plain(dtype, cpu_shapes[shape][0], cols, cols + gaps[seed % 3]);
    cpu_fill(&x, input, seed);
    return x;
}

/* Every bit, also of NaNs: where dtypes differ they go through the same encoders. */
TEST(cast__equals_the_cpu) {
    for (int i = 0; i < 9 * CPU_INPUTS; i++) {
        octet_dtype to = (octet_dtype)(OCTET_F32 + i / 3 % 3);
        for (int s = i % 2; s < CPU_SHAPES; s += 2) {
            cpu_tensor x = filled((octet_dtype)(OCTET_F32 + i % 3), s, (cpu_input)(i / 9),
                                  (uint64_t)(i + s));
            cpu_tensor want = cpu_tensor_plain(to, x.m.rows, x.m.cols, x.m.cols + i % 3);
            cpu_tensor got = cpu_tensor_plain(to, x.m.rows, x.m.cols, x.m.cols + i % 3);
            cpu_tensor from = cuda_exact(&x, s % 4);
            size_t at;
            oct_cpu_cast(&want.m, &x.m, NULL);
            CHECK_EQ_INT(oct_cuda_cast(cuda_on(), &got.m, &from.m, NULL), OCTET_OK);
            CHECK_EQ_INT(cpu_tensor_differ(&got, &want, &at), -1);
            CHECK(cpu_tensor_guarded(&got));
            cuda_exact_free(&from, s % 4);
            cpu_tensor_free(&x);
            cpu_tensor_free(&want);
            cpu_tensor_free(&got);
        }
    }
}

TEST(add_bias__equals_the_cpu) {
    for (int i = 0; i < 27; i++) {
        octet_dtype to = (octet_dtype)(OCTET_F32 + i / 3 % 3),
                    kind = (octet_dtype)(OCTET_F32 + i / 9);
        for (int s = 0; s < CPU_SHAPES; s++) {
            cpu_tensor x = filled((octet_dtype)(OCTET_F32 + i % 3), s,
                                  (cpu_input)((i + s) % CPU_INPUTS), (uint64_t)(i + s));
            cpu_tensor bias = cpu_tensor_plain(kind, 1, x.m.cols, x.m.cols);
            cpu_tensor want = cpu_tensor_plain(to, x.m.rows, x.m.cols, x.m.cols + i % 2);
            cpu_tensor got = cpu_tensor_plain(to, x.m.rows, x.m.cols, x.m.cols + i % 2);
            cpu_fill(&bias, CPU_INPUT_BLOCKS, 5);
            cpu_tensor from = cuda_exact(&x, i % 3), add = cuda_exact(&bias, s % 2);
            oct_vector vector = {add.m.parts[0], (uint8_t)kind};
            oct_cpu_add_bias(&want.m, &x.m, bias.m.parts[0], kind, NULL);
            CHECK_EQ_INT(oct_cuda_add_bias(cuda_on(), &got.m, &from.m, &vector, NULL),
                         OCTET_OK);
            check_plain(&got, &want, i);
            cuda_exact_free(&from, i % 3);
            cuda_exact_free(&add, s % 2);
            cpu_tensor_free(&x);
            cpu_tensor_free(&bias);
            cpu_tensor_free(&want);
            cpu_tensor_free(&got);
        }
    }
}

TEST(add_bias__in_place) {
    for (int dtype = OCTET_F32; dtype <= OCTET_F16; dtype++) {
        cpu_tensor x = cpu_tensor_plain((octet_dtype)dtype, 67, 521, 523);
        cpu_tensor bias = cpu_tensor_plain((octet_dtype)dtype, 1, 521, 521);
        cpu_fill(&x, CPU_INPUT_TIES, 1);
        cpu_fill(&bias, CPU_INPUT_TIES, 2);
        cpu_tensor want = cpu_tensor_plain((octet_dtype)dtype, 67, 521, 523);
        cpu_tensor_copy(&want, &x);
        oct_vector vector = {bias.m.parts[0], (uint8_t)dtype};
        oct_cpu_add_bias(&want.m, &x.m, bias.m.parts[0], (octet_dtype)dtype, NULL);
        CHECK_EQ_INT(oct_cuda_add_bias(cuda_on(), &x.m, &x.m, &vector, NULL), OCTET_OK);
        check_plain(&x, &want, dtype);
        cpu_tensor_free(&x);
        cpu_tensor_free(&bias);
        cpu_tensor_free(&want);
    }
}

static void check_sums(const cpu_tensor *x, octet_dtype to, int64_t shift) {
    cpu_tensor want = cpu_tensor_plain(to, 1, x->m.cols, x->m.cols);
    cpu_tensor got = cpu_tensor_plain(to, 1, x->m.cols, x->m.cols);
    cpu_tensor from = cuda_exact(x, shift);
    cpu_tensor sums =
        cpu_tensor_plain(OCTET_F32, (x->m.rows + 127) / 128, x->m.cols, x->m.cols);
    CHECK_EQ_INT(oct_cuda_sum_columns(cuda_on(), sums.m.parts[0], &from.m, NULL), OCTET_OK);
    for (int adds = 0; adds < 2; adds++) {
        oct_cuda_joining joining = {&got.m, sums.m.parts[0], x->m.rows, adds};
        cpu_fill(&want, CPU_INPUT_TIES, (uint64_t)x->m.rows);
        cpu_tensor_copy(&got, &want);
        oct_cpu_bias_grad(&want.m, &x->m, adds, NULL);
        CHECK_EQ_INT(oct_cuda_bias_grad(cuda_on(), &joining, NULL), OCTET_OK);
        check_plain(&got, &want, (int)x->m.rows);
    }
    CHECK(cpu_tensor_guarded(&sums));
    cpu_tensor_free(&sums);
    cuda_exact_free(&from, shift);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
}

TEST(bias_grad__equals_the_cpu) {
    for (int i = 0; i < 9; i++) {
        for (int s = 0; s < CPU_SHAPES; s++) {
            cpu_tensor x = filled((octet_dtype)(OCTET_F32 + i % 3), s,
                                  (cpu_input)((i + s) % CPU_INPUTS), (uint64_t)(i * 7 + s));
            check_sums(&x, (octet_dtype)(OCTET_F32 + i / 3), s % 3);
            cpu_tensor_free(&x);
        }
    }
}

/* Rows on both sides of a leaf, of a round of 64 leaves, and of several: the order in which
 * numbers are added shows in their sum. */
TEST(bias_grad__of_many_rows_equals_the_cpu) {
    static const int64_t rows[] = {127,  128,  129,  1000,  8063,  8064,
                                   8191, 8192, 8193, 16384, 24577, 8192 * 7 + 5000};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cpu_tensor x = cpu_tensor_plain((octet_dtype)(OCTET_F32 + i % 3), rows[i], 35, 36);
        cpu_fill(&x, CPU_INPUT_BLOCKS, 3 + i);
        check_sums(&x, OCTET_F32, 0);
        cpu_tensor_free(&x);
    }
}

TEST_MAIN(cast__equals_the_cpu, add_bias__equals_the_cpu, add_bias__in_place,
          bias_grad__equals_the_cpu, bias_grad__of_many_rows_equals_the_cpu)
