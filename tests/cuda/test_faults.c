/* test_faults.c - every call of CUDA's libraries and every allocation fails once, through the
 * whole of a training step on an emulated GPU.
 *
 * After each: the failure was told in the words and with the status that it has, or did no
 * harm; the next step works and gives the bytes of an undisturbed one; nothing is left over. */
#define _GNU_SOURCE /* setenv */
#include <stdlib.h>

#include "../run/check.h"
#include "device.h"
#include "faults.h"
#include "test.h"

#define SLOTS 3
#ifndef STRIDE
#define STRIDE 3 /* test_faults_long.c takes them all */
#endif

typedef struct delayed {
    float scale[SLOTS], history[4 * SLOTS], amax[SLOTS];
} delayed;

static const delayed fresh = {{1, 1, 1}, {2, 3, 4, 1, 1, 1}, {5, 1, 7}};

/* ---- a step ------------------------------------------------------------------------------ */

typedef struct phase_of {
    const octet_plan *plan;
    int phase;
    const octet_memory *memory;
} phase_of;

static octet_status launch(const void *arg, const octet_exec *exec, octet_error *err) {
    const phase_of *it = arg;
    return octet_run_phase(it->plan, it->phase, it->memory, exec, err);
}

static octet_status by_list(const octet_plan *plan, int phase, const octet_memory *memory,
                            const octet_exec *exec, octet_error *err) {
    octet_prepared *prepared = NULL;
    octet_status status = octet_prepare(&prepared, plan, phase, memory, exec, err);
    status = status ? status : octet_run_prepared(prepared, memory, exec, err);
    octet_prepared_free(prepared);
    return status;
}

static octet_status by_graph(const octet_plan *plan, int phase, const octet_memory *memory,
                             const octet_exec *exec, octet_error *err) {
    const phase_of it = {plan, phase, memory};
    octet_graph *graph = NULL;
    octet_status status = octet_capture(&graph, launch, &it, exec, err);
    if (status == OCTET_UNSUPPORTED) {
        return octet_run_phase(plan, phase, memory, exec, err);
    }
    status = status ? status : octet_replay(graph, exec, err);
    octet_graph_free(graph);
    return status;
}

static octet_status update(delayed *state, octet_cuda *cuda, octet_error *err) {
    octet_exec exec = OCTET_EXEC_INIT;
    octet_delayed rule = OCTET_DELAYED_INIT;
    *state = fresh;
    exec.cuda = cuda;
    rule.format = OCTET_E4M3;
    rule.length = 4;
    rule.slots = SLOTS;
    rule.scale = state->scale;
    rule.history = state->history;
    return octet_delayed_step(&rule, state->amax, &exec, err);
}

typedef struct step {
    run_group group;
    delayed state;
    octet_cuda *cuda;
} step;

static octet_status open_gpu(step *s) {
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    options.cache = "";
    return s->cuda ? OCTET_OK : octet_cuda_open(&s->cuda, &options, &s->group.err);
}

static octet_status run_step(step *s) {
    s->group.err = (octet_error){OCTET_OK, 0, ""};
    octet_status status = open_gpu(s);
    s->group.options.cuda = s->cuda;
    status = status ? status : run_group_run(&s->group);
    return status ? status : update(&s->state, s->cuda, &s->group.err);
}

static void close_gpu(step *s) {
    octet_cuda_close(s->cuda);
    s->cuda = NULL;
}

/* Of outputs, of what is saved, and of the state. */
static uint64_t results_of(const step *s) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (int plan = 0; plan < s->group.count; plan++) {
        const octet_plan *p = &s->group.plans[plan];
        for (int i = 0; i < p->buffer_count; i++) {
            const octet_plan_buffer *b = &p->buffers[i];
            bool result = b->place == OCTET_PLACE_OUT || b->place == OCTET_PLACE_SAVED;
            const unsigned char *at = result ? run_at(&s->group, 0, plan, i) : NULL;
            for (int64_t j = 0; at && j < b->bytes; j++) {
                hash = (hash ^ at[j]) * 0x100000001B3u;
            }
        }
    }
    const unsigned char *state = (const unsigned char *)&s->state;
    for (size_t j = 0; j < sizeof s->state; j++) {
        hash = (hash ^ state[j]) * 0x100000001B3u;
    }
    return hash;
}

/* ---- one fault after the other ----------------------------------------------------------- */

/* The words name what failed: the call, its library, or memory. */
static bool is_told(const octet_error *err, octet_status status, const char *hit) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s", hit);
    char *version = strstr(name, "_v2");
    if (version) {
        *version = '\0';
    }
    bool nvrtc = strncmp(name, "nvrtc", 5) == 0 &&
                 (strstr(err->text, "NVRTC") || strstr(err->text, "nvrtc"));
    bool lt = strncmp(name, "cublas", 6) == 0 && strstr(err->text, "cublasLt");
    bool memory = strstr(name, "alloc") && status == OCTET_NO_MEMORY;
    bool words = strstr(err->text, name) || nvrtc || lt || memory;
    return words && err->status == status && (memory || status == OCTET_DEVICE);
}

static int64_t told, harmless;

static void check_fault(step *s, int kinds, long at, uint64_t wanted) {
    long before = faults_alive();
    faults_begin(kinds, at);
    octet_status status = run_step(s);
    const char *hit = faults_hit();
    octet_error err = s->group.err;
    faults_begin(FAULT_CALLS | FAULT_MEMORY, 0);
    CHECK(hit != NULL);
    if (status && hit && !CHECK(is_told(&err, status, hit))) {
        printf("    %s fails: %s: %s\n", hit, octet_status_name(status), err.text);
    }
    if (!status && !CHECK_EQ_BITS(results_of(s), wanted)) {
        printf("    %s fails: other results\n", hit ? hit : "nothing");
    }
    *(status ? &told : &harmless) += 1;
    if (!CHECK_EQ_INT(run_step(s), OCTET_OK) || !CHECK_EQ_BITS(results_of(s), wanted)) {
        printf("    after %s: %s\n", hit ? hit : "nothing", s->group.err.text);
    }
    close_gpu(s);
    (void)faults_end();
    if (!CHECK_EQ_INT(faults_alive(), before)) {
        printf("    %s (%ld) left something over\n", hit ? hit : "nothing", at);
    }
}

/* Every `stride`-th one, from another one on each time. */
static void check_problem(const char *problem, run_phase *run, int kinds) {
    static long first;
    long stride = kinds == FAULT_CALLS ? STRIDE : 1;
    octet_linear_backward_args args;
    octet_error err = {OCTET_OK, 0, ""};
    run_options options = {.seed = 5, .fill = 0xFF, .run = run};
    static step s;
    s.cuda = NULL;
    CHECK_OF(octet_linear_backward_parse(&args, problem, &err) == OCTET_OK, err.text);
    CHECK_EQ_INT(run_group_make(&s.group, &args, &options), OCTET_OK);
    CHECK_EQ_INT(run_step(&s), OCTET_OK);
    uint64_t wanted = results_of(&s);
    close_gpu(&s);
    faults_begin(kinds, 0);
    CHECK_EQ_INT(run_step(&s), OCTET_OK);
    long count = faults_end();
    CHECK_EQ_BITS(results_of(&s), wanted);
    close_gpu(&s);
    for (long at = 1 + first % stride; at <= count; at += stride) {
        check_fault(&s, kinds, at, wanted);
    }
    first++;
    printf("%ld calls: %s\n", count, problem);
    CHECK(count > (kinds == FAULT_MEMORY ? 5 : 50));
    run_group_free(&s.group);
}

static const char *const problems[] = {
    "linear-backward m=32 k=32 n=16 in=bf16 bias recipe=mxfp8 device=cuda:0/90",
    "linear-backward m=17 k=33 n=13 in=bf16 bias recipe=current device=cuda:0/90",
    "linear-backward m=16 k=32 n=16 in=bf16 recipe=delayed device=cuda:0/90",
    "linear-backward m=8 k=128 n=128 in=bf16 recipe=block device=cuda:0/90",
    "linear-backward m=32 k=32 n=32 in=f32 recipe=nvfp4 device=cuda:0/90",
    "linear-backward m=9 k=16 n=8 in=bf16 prologue=rmsnorm eps=1e-05 device=cuda:0/90",
};
#define PROBLEMS ((int)(sizeof problems / sizeof problems[0]))

static void check_all(int kinds) {
    run_phase *const ways[] = {octet_run_phase, by_list, by_graph};
    octet_cuda_close(cuda_open(90));
    told = harmless = 0;
    for (int i = 0; i < PROBLEMS; i++) {
        check_problem(problems[i], ways[i % 3], kinds);
        check_problem(problems[i], ways[(i + 1) % 3], kinds);
    }
    printf("%" PRId64 " faults were told, %" PRId64 " did no harm\n", told, harmless);
    CHECK(told > harmless);
}

TEST(faults__calls_of_the_driver_nvrtc_and_cublaslt) {
    check_all(FAULT_CALLS);
}

TEST(faults__allocations) {
    check_all(FAULT_MEMORY);
}

TEST_MAIN(faults__calls_of_the_driver_nvrtc_and_cublaslt, faults__allocations)
