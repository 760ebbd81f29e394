/* test_watch.c - no kernel depends on the order of threads that nothing orders, and none
 * touches global memory before it has waited for the launch in front of it. */
#include "../run/check.h"
#include "device.h"
#include "emulate_launch.h"
#include "selftest.h"
#include "test.h"

#define BLOCKS 3
#define THREADS 256

/* How many accesses of a kernel of selftest.cu are found; without `numbers` it has a mistake.
 */
static int found_in(const char *name, const unsigned *numbers) {
    static unsigned total, sums[BLOCKS * THREADS];
    selftest_params params = {numbers, sums, &total, NULL};
    emulated_launch call = {emulated_kernel("selftest", name),
                            {BLOCKS, 1, 1},
                            THREADS,
                            0,
                            &params,
                            sizeof params,
                            1};
    int before = emulated_found();
    if (CHECK(call.kernel != NULL)) {
        emulated_run(&call);
    }
    return emulated_found() - before;
}

TEST(watch__each_mistake_is_found) {
    static const char *const kernels[] = {"selftest_no_barrier",        "selftest_no_warp_sync",
                                          "selftest_no_second_barrier", "selftest_no_atomic",
                                          "selftest_no_wait",           "selftest_late_wait"};
    const unsigned right = 1;
    if (!CHECK(emulated_watch(2))) { /* tests/CMakeLists.txt leaves this test out then */
        return;
    }
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        CHECK_EQ_INT(found_in(kernels[i], &right), 0);
        CHECK(found_in(kernels[i], NULL) > 0);
    }
    emulated_watch(0);
}

/* Which launches of a phase overtake: emulated_overtake's. */
static int way;

static octet_status run_watched(const octet_plan *plan, int phase, const octet_memory *memory,
                                const octet_exec *exec, octet_error *err) {
    emulated_overtake(way);
    emulated_watch(1); /* the first mistake ends the process */
    octet_status status = octet_run_phase(plan, phase, memory, exec, err);
    emulated_watch(0);
    emulated_overtake(0);
    return status;
}

static const char *const recipes[] = {
    "none",  "delayed raise_amax",    "current", "block", "block+batch_invariant",
    "mxfp8", "mxfp8+batch_invariant", "nvfp4",   "mxfp4", "nvfp4+norht:4over6=weights"};
static const char *const befores[] = {"",
                                      " prologue=rmsnorm eps=1e-05",
                                      " prologue=layernorm eps=1e-05 beta",
                                      " prologue=swiglu",
                                      " prologue=rmsnorm eps=1e-05 save=memory",
                                      " prologue=gelu save=memory"};
static const char *const afters[] = {"", " bias", " main_grad=add bias=f32"};
static const char *const dtypes[] = {"bf16", "f32", "f16"};
enum { RECIPES = 10, BEFORES = 6, AFTERS = 3, DTYPES = 3, ROWS = 4 };

/* Whole tiles, and ragged ones whose rows begin anywhere. */
static const int rows[ROWS] = {272, 37, 129, 16}, cols[ROWS] = {96, 150, 261, 128};

TEST(watch__layers_of_every_recipe) {
    octet_cuda *cuda = cuda_open(90);
    run_report report = {0};
    for (int i = 0; i < RECIPES * BEFORES; i++) {
        run_options options = {.seed = (uint64_t)i,
                               .fill = 0xFF,
                               .strided = i % 2,
                               .cuda = cuda,
                               .run = run_watched};
        char text[256];
        int shape = (i + i / BEFORES) % ROWS;
        way = i % 3;
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=%d n=48 in=%s%s%s recipe=%s device=cuda:0/90",
                       rows[shape], cols[shape], dtypes[(i / 2 + i / BEFORES) % DTYPES],
                       befores[i % BEFORES], afters[(i / 3 + i / BEFORES) % AFTERS],
                       recipes[i / BEFORES]);
        run_check_layer(&report, text, &options);
    }
    octet_cuda_close(cuda);
    CHECK_EQ_INT(report.failures, 0);
}

TEST_MAIN(watch__each_mistake_is_found, watch__layers_of_every_recipe)
