/* test_run_memory.c - wrong memory is refused with its name and the rule, and nothing written.
 */
#include "check.h"
#include "test.h"

static const char *const problems[] = {
    "linear-backward m=8 k=16 n=24 in=bf16 bias recipe=mxfp8",
    "linear-backward m=8 k=16 n=24 in=f32 bias recipe=current quantize_output",
    "linear-backward m=8 k=16 n=24 in=bf16 recipe=nvfp4 main_grad=add cache=write",
    "linear-backward m=8 k=16 n=24 in=f16 recipe=delayed cache=read delay_wgrad",
    "linear-backward m=8 k=16 n=24 in=bf16 recipe=block qin=mxfp8:e4m3 save_original_input",
    "linear-backward m=128 k=16 n=8 in=bf16 recipe=current parallel=column tp=2 sequence",
    "linear-backward m=256 k=16 n=8 in=bf16 bias recipe=nvfp4 parallel=row tp=2 sequence",
};
#define PROBLEMS ((int)(sizeof problems / sizeof problems[0]))

/* A plan's phase on rank 0, with memory to spoil. */
typedef struct target {
    run_group *group;
    const octet_plan *plan;
    int index, phase;
    octet_memory memory; /* a copy */
    uint64_t hash;
    int64_t refusals;
} target;

static octet_status run_target(target *t, octet_error *err) {
    octet_exec exec = OCTET_EXEC_INIT;
    err->text[0] = '\0';
    return octet_run_phase(t->plan, t->phase, &t->memory, &exec, err);
}

/* Refused as INVALID with a text that says `about`, and no byte has changed. */
static void expect_refusal(target *t, const char *about) {
    octet_error err;
    bool refused = CHECK_EQ_INT(run_target(t, &err), OCTET_INVALID);
    if (!CHECK(strstr(err.text, about) != NULL) || !refused) {
        printf("    wanted \"%s\" in \"%s\"\n", about, err.text);
    }
    CHECK_EQ_BITS(run_group_hash(t->group), t->hash);
    t->memory = t->group->memory[0][t->index];
    t->refusals++;
}

static uint64_t phase_mask(const target *t, bool writes) {
    uint64_t mask = 0;
    for (int i = 0; i < t->plan->step_count; i++) {
        const octet_step *s = &t->plan->steps[i];
        if (s->phase == t->phase && s->op != OCTET_OP_COLLECTIVE) {
            mask |= writes ? s->writes : s->reads | s->writes;
        }
    }
    return mask;
}

/* The pointer through which the caller gives a buffer's memory. */
static const void **pointer_of(target *t, const octet_plan_buffer *b) {
    octet_memory *m = &t->memory;
    switch (b->place) {
    case OCTET_PLACE_ARG:
        return &m->args[b->port];
    case OCTET_PLACE_OUT:
        return (const void **)&m->outs[b->port];
    case OCTET_PLACE_EXCHANGE:
        return (const void **)&m->exchanges[b->port];
    case OCTET_PLACE_SAVED:
        return (const void **)&m->saved;
    case OCTET_PLACE_RESTORED:
        return &m->restored[b->port];
    default:
        return (const void **)&m->workspace;
    }
}

static const char *word_of(const octet_plan_buffer *b) {
    static const char *const words[OCTET_PLACES] = {
        [OCTET_PLACE_ARG] = "argument ",  [OCTET_PLACE_OUT] = "output ",
        [OCTET_PLACE_SAVED] = "saved",    [OCTET_PLACE_RESTORED] = "restored[",
        [OCTET_PLACE_WORK] = "workspace", [OCTET_PLACE_EXCHANGE] = "exchange ",
    };
    return words[b->place];
}

static bool in_block(const octet_plan_buffer *b) {
    return b->place == OCTET_PLACE_SAVED || b->place == OCTET_PLACE_RESTORED ||
           b->place == OCTET_PLACE_WORK;
}

static void spoil_pointer(target *t, const octet_plan_buffer *b) {
    const void **at = pointer_of(t, b);
    int align = in_block(b) ? OCTET_ARENA_ALIGN : octet_dtype_bits((octet_dtype)b->dtype) / 8;
    *at = NULL;
    expect_refusal(t, word_of(b));
    if (align > 1) {
        *at = (const char *)*at + align / 2;
        expect_refusal(t, "aligned to");
    }
}

static void spoil_size(target *t, const octet_plan_buffer *b) {
    octet_memory *m = &t->memory;
    int64_t *bytes = b->place == OCTET_PLACE_SAVED      ? &m->saved_bytes
                     : b->place == OCTET_PLACE_RESTORED ? &m->restored_bytes[b->port]
                                                        : &m->workspace_bytes;
    *bytes = b->offset + b->bytes - 1;
    expect_refusal(t, "bytes; the plan needs");
    *bytes = -1;
    expect_refusal(t, "bytes; the plan needs");
}

static bool same_region(const octet_plan_buffer *a, const octet_plan_buffer *b) {
    bool single = a->place == OCTET_PLACE_SAVED || a->place == OCTET_PLACE_WORK;
    return a->place == b->place && (single || a->port == b->port);
}

/* Written memory laid over each other piece that the phase uses. */
static void spoil_overlap(target *t, const octet_plan_buffer *written, uint64_t used) {
    for (int i = 0; i < t->plan->buffer_count; i++) {
        const octet_plan_buffer *other = &t->plan->buffers[i];
        if (!(used >> i & 1) || !other->bytes || same_region(written, other)) {
            continue;
        }
        *pointer_of(t, written) = *pointer_of(t, other);
        expect_refusal(t, "overlaps");
    }
}

static void spoil_stride(target *t, const octet_plan_buffer *b) {
    int64_t *stride = &t->memory.arg_strides[b->port];
    bool matrix = b->part == OCTET_PART_VALUES && b->ndim == 2;
    *stride = matrix ? b->shape[1] - 1 : 7777;
    expect_refusal(t, "stride");
    *stride = -5;
    expect_refusal(t, "stride");
    if (matrix) {
        *stride = INT64_MAX;
        expect_refusal(t, "64-bit");
    }
}

static void spoil_all(target *t) {
    uint64_t used = phase_mask(t, false), written = phase_mask(t, true);
    for (int i = 0; i < t->plan->buffer_count; i++) {
        const octet_plan_buffer *b = &t->plan->buffers[i];
        if (!(used >> i & 1) || !b->bytes) {
            continue;
        }
        spoil_pointer(t, b);
        if (in_block(b)) {
            spoil_size(t, b);
        }
        if (written >> i & 1) {
            spoil_overlap(t, b, used);
        }
        if (b->place == OCTET_PLACE_ARG) {
            spoil_stride(t, b);
        }
    }
}

TEST(memory__every_bad_pointer_size_and_overlap_is_refused) {
    int64_t refusals = 0;
    for (int i = 0; i < PROBLEMS; i++) {
        octet_linear_backward_args args;
        octet_error err;
        run_group group;
        run_options options = {.seed = 3, .fill = 0x11};
        if (!CHECK_EQ_INT(octet_linear_backward_parse(&args, problems[i], &err), OCTET_OK)) {
            printf("%s\n", err.text);
            continue;
        }
        CHECK_EQ_INT(run_group_make(&group, &args, &options), OCTET_OK);
        CHECK_EQ_INT(run_group_run(&group), OCTET_OK); /* what phases read is there */
        for (int plan = 0; plan < group.count; plan++) {
            for (int phase = 0; phase < group.plans[plan].phases; phase++) {
                target t = {&group, &group.plans[plan],    plan,
                            phase,  group.memory[0][plan], run_group_hash(&group),
                            0};
                spoil_all(&t);
                refusals += t.refusals;
                CHECK_EQ_INT(run_target(&t, &err), OCTET_OK);
            }
        }
        run_group_free(&group);
    }
    printf("memory: %" PRId64 " refusals\n", refusals);
    CHECK(refusals > 500);
}

/* ---- structs and phases ------------------------------------------------------------------ */

static octet_plan plan_of(const char *problem) {
    octet_linear_args args;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_error err;
    if (octet_linear_parse(&args, problem, &err) || octet_plan_linear(&plan, &args, &err)) {
        printf("%s: %s\n", problem, err.text);
    }
    return plan;
}

TEST(memory__structs_and_phases_are_checked_first) {
    octet_plan plan = plan_of("linear m=4 k=8 n=8 in=f32");
    octet_plan two = plan_of("linear m=128 k=8 n=8 in=f32 recipe=current parallel=column "
                             "sequence tp=2");
    octet_plan summed = plan_of("linear m=4 k=8 n=8 in=f32 parallel=row tp=2");
    octet_plan cuda = plan_of("linear m=4 k=8 n=8 in=f32 device=cuda:0/90");
    octet_plan empty = OCTET_PLAN_INIT, old = plan;
    octet_memory memory = OCTET_MEMORY_INIT, other = memory;
    octet_exec exec = OCTET_EXEC_INIT, shorter = exec;
    octet_error err;
    old.size = 8;
    other.size--;
    shorter.size++;
#define REFUSED(status, call, about)                                                           \
    do {                                                                                       \
        err.text[0] = '\0';                                                                    \
        CHECK_EQ_INT(call, status);                                                            \
        if (!CHECK(strstr(err.text, about) != NULL)) {                                         \
            printf("    %s\n", err.text);                                                      \
        }                                                                                      \
    } while (0)
    REFUSED(OCTET_INVALID, octet_run(NULL, &memory, &exec, &err), "plan is NULL");
    REFUSED(OCTET_INVALID, octet_run(&plan, NULL, &exec, &err), "memory is NULL");
    REFUSED(OCTET_INVALID, octet_run(&plan, &memory, NULL, &err), "exec is NULL");
    REFUSED(OCTET_INVALID, octet_run(&old, &memory, &exec, &err), "octet_plan.size is 8");
    REFUSED(OCTET_INVALID, octet_run(&plan, &other, &exec, &err), "octet_memory.size");
    REFUSED(OCTET_INVALID, octet_run(&plan, &memory, &shorter, &err), "octet_exec.size");
    REFUSED(OCTET_INVALID, octet_run(&empty, &memory, &exec, &err), "plan is empty");
    REFUSED(OCTET_INVALID, octet_run(&cuda, &memory, &exec, &err), "octet_cuda_open");
    REFUSED(OCTET_INVALID, octet_run(&two, &memory, &exec, &err), "collective");
    REFUSED(OCTET_INVALID, octet_run(&summed, &memory, &exec, &err), "collective");
    REFUSED(OCTET_INVALID, octet_run_phase(&plan, -1, &memory, &exec, &err), "phase is -1");
    REFUSED(OCTET_INVALID, octet_run_phase(&plan, 1, &memory, &exec, &err), "phases 0 to 0");
    REFUSED(OCTET_INVALID, octet_run(&plan, &memory, &exec, &err), "argument 0 (input)");
    CHECK_EQ_INT(octet_run(&plan, &memory, &exec, NULL), OCTET_INVALID);
}

/* Nothing to read and nothing to write: no pointer is asked for but of what has bytes. */
TEST(memory__empty_tensors_may_be_null) {
    octet_plan plan = plan_of("linear m=0 k=8 n=8 in=f32 recipe=mxfp8");
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    float weight[64] = {0};
    memory.args[1] = weight;
    memory.workspace_bytes = plan.workspace_bytes;
    memory.workspace = aligned_alloc(OCTET_ARENA_ALIGN, (size_t)plan.workspace_bytes);
    memory.saved_bytes = plan.saved_bytes;
    memory.saved = aligned_alloc(OCTET_ARENA_ALIGN, (size_t)plan.saved_bytes);
    if (!CHECK_EQ_INT(octet_run(&plan, &memory, &exec, &err), OCTET_OK)) {
        printf("    %s\n", err.text);
    }
    free(memory.workspace);
    free(memory.saved);
}

/* Where there are no elements no stride is wrong, and none is reckoned with. */
TEST(memory__strides_of_empty_tensors_do_not_count) {
    octet_plan plan = plan_of("linear m=4 k=0 n=8 in=f32 grad=none");
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    float y[32];
    memset(y, 0xFF, sizeof y);
    memory.arg_strides[0] = INT64_MIN;
    memory.arg_strides[1] = INT64_MAX;
    memory.outs[0] = y;
    memory.workspace_bytes = plan.workspace_bytes;
    memory.workspace = aligned_alloc(OCTET_ARENA_ALIGN, (size_t)plan.workspace_bytes);
    CHECK_EQ_INT(octet_run(&plan, &memory, &exec, &err), OCTET_OK);
    for (int i = 0; i < 32; i++) {
        CHECK_EQ_BITS(y[i], 0.0f);
    }
    free(memory.workspace);
}

/* A product works in the workspace even where no step lists a buffer of it. */
TEST(memory__products_need_their_workspace) {
    octet_plan plan = plan_of("linear m=4 k=8 n=8 in=f32 grad=none");
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    float x[32] = {0}, w[64] = {0}, y[32];
    memory.args[0] = x;
    memory.args[1] = w;
    memory.outs[0] = y;
    CHECK_EQ_INT(octet_run(&plan, &memory, &exec, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "workspace is NULL") != NULL);
    memory.workspace = aligned_alloc(OCTET_ARENA_ALIGN, (size_t)plan.workspace_bytes);
    memory.workspace_bytes = plan.workspace_bytes;
    CHECK_EQ_INT(octet_run(&plan, &memory, &exec, &err), OCTET_OK);
    memory.outs[0] = memory.workspace;
    CHECK_EQ_INT(octet_run(&plan, &memory, &exec, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "overlaps") != NULL);
    free(memory.workspace);
}

TEST(memory__any_number_of_workers_has_a_plan) {
    octet_plan many = plan_of("linear m=4 k=8 n=8 in=f32 recipe=mxfp8 threads=4294967295");
    octet_plan most = plan_of("linear m=4 k=8 n=8 in=f32 recipe=mxfp8 threads=910");
    octet_plan fewer = plan_of("linear m=4 k=8 n=8 in=f32 recipe=mxfp8 threads=909");
    CHECK(octet_plan_equal(&many, &most));
    CHECK(many.workspace_bytes > fewer.workspace_bytes);
}

TEST_MAIN(memory__every_bad_pointer_size_and_overlap_is_refused,
          memory__structs_and_phases_are_checked_first, memory__empty_tensors_may_be_null,
          memory__strides_of_empty_tensors_do_not_count, memory__products_need_their_workspace,
          memory__any_number_of_workers_has_a_plan)
