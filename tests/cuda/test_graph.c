/* test_graph.c - what was captured does, when it is launched, what was asked for. */
#include "../run/check.h"
#include "device.h"
#include "emulate_launch.h"
#include "test.h"

typedef struct phase_of {
    const octet_plan *plan;
    int phase;
    const octet_memory *memory;
} phase_of;

/* Phases that could be captured, and those that could not. */
static struct {
    int yes, no;
} captured;

static octet_status launch(const void *arg, const octet_exec *exec, octet_error *err) {
    const phase_of *it = arg;
    return octet_run_phase(it->plan, it->phase, it->memory, exec, err);
}

/* As octet_run_phase, by a graph that is launched once it is there. */
static octet_status run_captured(const octet_plan *plan, int phase, const octet_memory *memory,
                                 const octet_exec *exec, octet_error *err) {
    const phase_of it = {plan, phase, memory};
    int before = emulated_launches() + emulated_matmuls() + emulated_fills();
    octet_graph *graph = NULL;
    octet_status made = octet_capture(&graph, launch, &it, exec, NULL);
    CHECK_EQ_INT(emulated_launches() + emulated_matmuls() + emulated_fills(), before);
    captured.yes += made == OCTET_OK;
    captured.no += made == OCTET_UNSUPPORTED;
    octet_status status =
        made ? octet_run_phase(plan, phase, memory, exec, err) : octet_replay(graph, exec, err);
    octet_graph_free(graph);
    return status;
}

TEST(graph__of_every_recipe_computes_what_its_launches_do) {
    static const char *const recipes[] = {
        "none", "delayed raise_amax", "current", "block", "mxfp8", "nvfp4", "mxfp4+rht"};
    static const char *const ends[] = {"", " bias", " main_grad=add"};
    static const int rows[] = {64, 37};
    run_report report = {0};
    octet_cuda *cuda = cuda_open(90);
    for (int i = 0; i < 7 * 3 * 2; i++) {
        run_options options = {
            .seed = (uint64_t)i, .fill = 0xFF, .cuda = cuda, .run = run_captured};
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=96 n=48 in=bf16%s recipe=%s device=cuda:0/90",
                       rows[i % 2], ends[i / 2 % 3], recipes[i / 6]);
        run_check_layer(&report, text, &options);
    }
    octet_cuda_close(cuda);
    printf("%d captured, %d not\n", captured.yes, captured.no);
    CHECK_EQ_INT(report.failures, 0);
    CHECK(captured.yes >= 60);
}

TEST_MAIN(graph__of_every_recipe_computes_what_its_launches_do)
