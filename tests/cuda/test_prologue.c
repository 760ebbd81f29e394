/* test_prologue.c - norms and activations: the CPU's bits. */
#include <stdlib.h>

#include "../cpu/prologue_cases.h"
#include "../cpu/quantizers.h"
#include "device.h"
#include "test.h"

/* The same case as a GPU reads and writes it. */
typedef struct device_case {
    prologue_case made;
    cpu_tensor x, grad, gamma, beta, sums;
    float amaxes[4];
} device_case;

static oct_prologue_call take(device_case *d, const prologue_case *c, int64_t shift) {
    oct_prologue_call call = c->call;
    d->x = cuda_exact(&c->x, shift);
    d->grad = cuda_exact(&c->grad, shift);
    d->gamma = cuda_exact(&c->gamma, 0);
    d->beta = cuda_exact(&c->beta, shift);
    d->sums = cpu_tensor_plain(OCTET_F32, (c->f.m.rows + 127) / 128, c->f.m.cols, c->f.m.cols);
    memset(d->amaxes, 0, sizeof d->amaxes);
    call.x = &d->x.m;
    call.gamma.at = call.gamma.at ? d->gamma.m.parts[0] : NULL;
    call.beta.at = call.beta.at ? d->beta.m.parts[0] : NULL;
    return call;
}

static void give_back(device_case *d, int64_t shift) {
    cuda_exact_free(&d->x, shift);
    cuda_exact_free(&d->grad, shift);
    cuda_exact_free(&d->gamma, 0);
    cuda_exact_free(&d->beta, shift);
    cpu_tensor_free(&d->sums);
}

static bool equal(const cpu_tensor *a, const cpu_tensor *b) {
    size_t at;
    return cpu_tensor_differ(a, b, &at) == -1 && cpu_tensor_guarded(a);
}

static void check_case(const prologue_case *want, prologue_case *got, int64_t shift, int tag) {
    device_case d;
    oct_prologue_call call = take(&d, want, shift);
    bool norm = oct_prologue_is_norm(call.prologue);
    octet_status status = OCTET_OK;
    if (norm) {
        call.dst = &got->stats.m;
        status = oct_cuda_statistics(cuda_on(), &call, NULL);
        call.stats = got->stats.m.parts[0];
    }
    call.dst = &got->f.m;
    call.amax = d.amaxes;
    call.amaxes = tag % 2 ? 4 : 1;
    status = status ? status : oct_cuda_prologue(cuda_on(), &call, NULL);
    call.amax = NULL;
    call.dst = &got->dx.m;
    call.grad = &d.grad.m;
    status = status ? status : oct_cuda_prologue_grad(cuda_on(), &call, NULL);
    call.dst = &got->dgamma.m;
    call.sums = d.sums.m.parts[0];
    status = status || !norm ? status : oct_cuda_gamma_grad(cuda_on(), &call, NULL);
    CHECK_EQ_INT(status, OCTET_OK);
    float most = 0;
    for (int i = 0; i < 4; i++) {
        most = d.amaxes[i] > most ? d.amaxes[i] : most;
    }
    int64_t row, col;
    bool stats = !norm || equal(&got->stats, &want->stats), f = equal(&got->f, &want->f);
    bool dx = equal(&got->dx, &want->dx);
    bool gamma = !norm || cuda_same(&got->dgamma, &want->dgamma, &row, &col);
    if (!CHECK(stats && f && dx && gamma && most == want->amax) &&
        test_failures <= TEST_REPORTS) {
        printf("    prologue %d, %dx%d, tag %d: stats %d f %d dx %d gamma %d amax %a, not %a\n",
               call.prologue, (int)want->f.m.rows, (int)want->f.m.cols, tag, stats, f, dx,
               gamma, (double)most, (double)want->amax);
    }
    CHECK(cpu_tensor_guarded(&d.sums));
    give_back(&d, shift);
}

TEST(prologue__equals_the_cpu) {
    for (int i = 0; i < (OCTET_PROLOGUES - 1) * CPU_SHAPES; i++) {
        int prologue = 1 + i % (OCTET_PROLOGUES - 1), shape = i / (OCTET_PROLOGUES - 1);
        prologue_case want, got;
        prologue_case_make(&want, prologue, cpu_shapes[shape][0], cpu_shapes[shape][1],
                           (uint64_t)i);
        prologue_case_make(&got, prologue, cpu_shapes[shape][0], cpu_shapes[shape][1],
                           (uint64_t)i);
        prologue_case_run(&want, NULL);
        check_case(&want, &got, i % 3, i);
        prologue_case_free(&want);
        prologue_case_free(&got);
    }
}

/* A grid has 65535 blocks below each other, and tiles have 128 rows. */
TEST(prologue__gamma_of_more_rows_than_a_grid_is_high) {
    int64_t rows = (int64_t)65535 * 128 + 1;
    uint16_t *x = malloc((size_t)rows * sizeof *x);
    float *stats = malloc((size_t)rows * sizeof *stats), *sums = malloc(65536 * sizeof *sums);
    float gamma = 1.0f, dgamma = 0.0f;
    for (int64_t i = 0; x && stats && i < rows; i++) {
        x[i] = i < rows - 1 ? 0 : 0x3f80; /* the last one is 1 in bf16 */
        stats[i] = 3.0f;
    }
    if (CHECK(x && stats && sums)) {
        oct_matrix m = {.dtype = OCTET_BF16, .rows = rows, .cols = 1, .stride = 1};
        oct_matrix to = {.dtype = OCTET_F32, .rows = 1, .cols = 1, .stride = 1};
        m.parts[0] = x;
        to.parts[0] = &dgamma;
        oct_prologue_call call = {.prologue = OCTET_RMSNORM,
                                  .x = &m,
                                  .grad = &m,
                                  .dst = &to,
                                  .stats = stats,
                                  .gamma = {&gamma, OCTET_F32},
                                  .sums = sums};
        CHECK_EQ_INT(oct_cuda_gamma_grad(cuda_on(), &call, NULL), OCTET_OK);
        CHECK_EQ_BITS(dgamma, 3.0f);
    }
    free(x);
    free(stats);
    free(sums);
}

TEST_MAIN(prologue__gamma_of_more_rows_than_a_grid_is_high, prologue__equals_the_cpu)
