/* test_invariant.c - with batch_invariant a row of y and of dx depends on its own row alone on
 * a GPU, too: no product is cuBLASLt's, which chooses by the number of rows. */
#include "device.h"
#include "emulate_launch.h"
#include "run/batch_rows.h"

static const char *const recipes[] = {"mxfp8", "block", "block+nopow2", "mxfp4+nosr",
                                      "delayed"};
#define RECIPES (sizeof recipes / sizeof recipes[0])

static const int gpus[] = {80, 90, 100, 120};
#define GPUS (sizeof gpus / sizeof gpus[0])

static void check_gpu(octet_cuda *cuda, const int64_t shape[2]) {
    static const int64_t some[] = {1, 2, 8, 16, 17, 63, 129, 140};
    for (size_t i = 0; i < RECIPES; i++) {
        batch_layer l;
        batch_problem problem = {recipes[i], 140, shape[0], shape[1], cuda};
        int matmuls = emulated_matmuls();
        if (batch_start(&l, &problem) && batch_learn(&l, 100)) {
            for (size_t n = 0; n < sizeof some / sizeof some[0]; n++) {
                batch_check_rows(&l, some[n], some[n]);
            }
            CHECK_EQ_INT(emulated_matmuls(), matmuls);
        }
        batch_end(&l);
    }
}

TEST(cuda_invariant__rows_do_not_see_their_batch) {
    static const int64_t ragged[] = {70, 21}, whole[] = {160, 32};
    for (size_t g = 0; g < GPUS; g++) {
        octet_cuda *cuda = cuda_open(gpus[g]);
        check_gpu(cuda, g % 2 ? ragged : whole);
        octet_cuda_close(cuda);
    }
}

TEST_MAIN(cuda_invariant__rows_do_not_see_their_batch)
