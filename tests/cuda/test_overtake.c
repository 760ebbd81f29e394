/* test_overtake.c - launches that begin before the one in front has ended read what is there.
 */
#include "../run/check.h"
#include "device.h"
#include "emulate_launch.h"
#include "test.h"

/* Which launches of a phase overtake: emulated_overtake's. */
static int way;

static octet_status run_overtaking(const octet_plan *plan, int phase,
                                   const octet_memory *memory, const octet_exec *exec,
                                   octet_error *err) {
    emulated_overtake(way);
    octet_status status = octet_run_phase(plan, phase, memory, exec, err);
    emulated_overtake(0);
    return status;
}

TEST(overtake__every_recipe_computes_what_it_does_in_order) {
    static const char *const recipes[] = {"none",
                                          "delayed raise_amax",
                                          "current",
                                          "block",
                                          "mxfp8",
                                          "nvfp4",
                                          "mxfp4",
                                          "nvfp4+norht",
                                          "nvfp4+norht:4over6=weights"};
    static const char *const ends[] = {"", " bias", " main_grad=add", " prologue=swiglu"};
    static const int rows[] = {272, 37, 400, 0};
    enum { RECIPES = sizeof recipes / sizeof recipes[0], ENDS = 4, ROWS = 4 };
    run_report report = {0};
    octet_cuda *cuda = cuda_open(90);
    int before = emulated_overtaken();
    for (int i = 0; i < RECIPES * ENDS * ROWS * 2; i++) {
        run_options options = {.seed = (uint64_t)i,
                               .fill = 0xFF,
                               .strided = i / 8 % 2,
                               .cuda = cuda,
                               .run = run_overtaking};
        char text[256];
        way = 1 + i % 2;
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=96 n=48 in=bf16%s recipe=%s device=cuda:0/90",
                       rows[i / 2 % ROWS], ends[i / 8 % ENDS], recipes[i / 8 / ENDS]);
        run_check_layer(&report, text, &options);
    }
    octet_cuda_close(cuda);
    printf("%d launches began before the one in front\n", emulated_overtaken() - before);
    CHECK_EQ_INT(report.failures, 0);
    CHECK(emulated_overtaken() - before >= 300);
}

/* Launches overtake, steps run in pairs, and buffers share the workspace. */
static bool shares_workspace(const char *problem, octet_cuda *cuda, uint64_t seed) {
    octet_linear_backward_args args;
    run_options apart = {.seed = seed, .fill = 0xFF, .cuda = cuda};
    run_options shared = {
        .seed = seed, .fill = 0x7F, .shared = true, .cuda = cuda, .run = run_overtaking};
    static run_group first, other;
    if (!CHECK_EQ_INT(octet_linear_backward_parse(&args, problem, NULL), OCTET_OK)) {
        return false;
    }
    octet_status status = run_group_make(&first, &args, &apart);
    CHECK_EQ_INT(status ? status : run_group_run(&first), OCTET_OK);
    status = run_group_make(&other, &args, &shared);
    CHECK_EQ_INT(status ? status : run_group_run(&other), OCTET_OK);
    if (!CHECK(run_same_results(&first, &other))) {
        printf("    %s\n", problem);
    }
    bool less = false;
    for (int i = 0; i < first.count; i++) {
        less = less || other.plans[i].workspace_bytes < first.plans[i].workspace_bytes;
    }
    run_group_free(&first);
    run_group_free(&other);
    return less;
}

TEST(overtake__results_are_those_of_a_workspace_that_is_not_shared) {
    static const char *const recipes[] = {"none",
                                          "delayed",
                                          "current",
                                          "block",
                                          "mxfp8",
                                          "nvfp4",
                                          "mxfp8:product=exact",
                                          "mxfp4",
                                          "nvfp4+norht:4over6=weights"};
    static const char *const ends[] = {
        "bias", "prologue=swiglu save=memory", "prologue=rmsnorm eps=1e-5 save=memory",
        "prologue=gelu main_grad=add", "prologue=layernorm eps=1e-5 beta bias"};
    enum { RECIPES = sizeof recipes / sizeof recipes[0], ENDS = sizeof ends / sizeof ends[0] };
    static const int archs[] = {90, 100, 80};
    int less = 0;
    for (int arch = 0; arch < 3; arch++) {
        octet_cuda *cuda = cuda_open(archs[arch]);
        octet_device device = {0};
        CHECK_EQ_INT(octet_cuda_target(&device, cuda, NULL), OCTET_OK);
        for (int i = 0; i < RECIPES * ENDS; i++) {
            char text[256];
            way = 1 + i % 2;
            (void)snprintf(text, sizeof text,
                           "linear-backward m=%d k=96 n=48 in=bf16 %s recipe=%s "
                           "device=cuda:%d/%d",
                           i % 3 ? 160 : 37, ends[i % ENDS], recipes[i / ENDS], device.index,
                           archs[arch]);
            less += shares_workspace(text, cuda, (uint64_t)i);
        }
        octet_cuda_close(cuda);
    }
    CHECK(less > RECIPES * ENDS);
}

TEST_MAIN(overtake__every_recipe_computes_what_it_does_in_order,
          overtake__results_are_those_of_a_workspace_that_is_not_shared)
