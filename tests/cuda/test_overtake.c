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
    static const char *const ends[] = {"", " bias", " main_grad=add"};
    static const int rows[] = {272, 37, 400, 0};
    enum { RECIPES = sizeof recipes / sizeof recipes[0], ENDS = 3, ROWS = 4 };
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
                       rows[i / 2 % ROWS], ends[i / 8 % ENDS], recipes[i / 24]);
        run_check_layer(&report, text, &options);
    }
    octet_cuda_close(cuda);
    printf("%d launches began before the one in front\n", emulated_overtaken() - before);
    CHECK_EQ_INT(report.failures, 0);
    CHECK(emulated_overtaken() - before >= 300);
}

TEST_MAIN(overtake__every_recipe_computes_what_it_does_in_order)
