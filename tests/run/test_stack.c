/* test_stack.c - runs and plans take no more stack than the header says, on every set. */
#include "cpu/every_isa.h"

#include <pthread.h>

#include "check.h"
#include "linear/matrix.h"

/* Sanitizers and builds without optimization have frames of their own size. */
#if defined(__has_feature)
#define HAS_FEATURE(name) __has_feature(name)
#else
#define HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                           \
    HAS_FEATURE(address_sanitizer) || HAS_FEATURE(thread_sanitizer) || !defined(__OPTIMIZE__)
#define IS_MEASURED 0
#else
#define IS_MEASURED 1
#endif

#define ROOM ((size_t)1 << 19)
#define PAINT 0xA5

typedef struct job {
    void (*run)(void *arg);
    void *arg;
} job;

static void *start(void *arg) {
    const job *todo = arg;
    todo->run(todo->arg);
    return NULL;
}

static void do_nothing(void *arg) {
    (void)arg;
}

/* Bytes of a stack that were written by a thread that did the job. */
static int64_t written_by(const job *todo) {
    static unsigned char *stack;
    pthread_attr_t attributes;
    pthread_t thread;
    stack = stack ? stack : aligned_alloc(4096, ROOM);
    memset(stack, PAINT, ROOM);
    bool ran = !pthread_attr_init(&attributes) &&
               !pthread_attr_setstack(&attributes, stack, ROOM) &&
               !pthread_create(&thread, &attributes, start, (void *)(uintptr_t)todo) &&
               !pthread_join(thread, NULL);
    size_t untouched = 0;
    while (ran && untouched < ROOM && stack[untouched] == PAINT) {
        untouched++;
    }
    (void)pthread_attr_destroy(&attributes);
    return ran ? (int64_t)(ROOM - untouched) : -1;
}

/* Without what a thread takes that does nothing. */
static int64_t stack_of(void (*run)(void *), void *arg) {
    static int64_t least;
    job todo = {run, arg}, nothing = {do_nothing, NULL};
    if (!IS_MEASURED) {
        run(arg);
        return 0;
    }
    least = least ? least : written_by(&nothing);
    return written_by(&todo) - least;
}

/* ---- runs ------------------------------------------------------------------------------ */

static int64_t deepest;

typedef struct phase_call {
    const octet_plan *plan;
    int phase;
    const octet_memory *memory;
    const octet_exec *exec;
    octet_error *err;
    octet_status status;
} phase_call;

static void run_one(void *arg) {
    phase_call *call = arg;
    call->status =
        octet_run_phase(call->plan, call->phase, call->memory, call->exec, call->err);
}

static octet_status run_measured(const octet_plan *plan, int phase, const octet_memory *memory,
                                 const octet_exec *exec, octet_error *err) {
    phase_call call = {plan, phase, memory, exec, err, OCTET_OK};
    int64_t used = stack_of(run_one, &call);
    deepest = used > deepest ? used : deepest;
    return call.status;
}

/* Serial, so that tasks are on the same stack: rows that stream and rows that are packed. */
TEST(stack__of_a_run_is_within_its_bound) {
    static const matrix_size sizes[] = {{3, 272, 40}, {140, 144, 272}};
    matrix_random random = {5};
    int ran = 0;
    deepest = 0;
    for (int i = 0; i < 700; i++) {
        matrix_row row = matrix_draw(&random);
        octet_linear_backward_args args;
        run_group group;
        row.level[OPT_DEVICE] = row.level[OPT_PARALLEL] = 0;
        row.level[OPT_RECIPE] = (uint8_t)(i % matrix_table[OPT_RECIPE].count);
        if (matrix_args(&args, &row, &sizes[i % 2], NULL)) {
            continue;
        }
        run_options options = {.seed = 7, .fill = 0xFF, .run = run_measured};
        octet_status status = run_group_make(&group, &args, &options);
        status = status ? status : run_group_run(&group);
        CHECK_OF(status == OCTET_OK, group.err.text);
        run_group_free(&group);
        ran++;
    }
    printf("a run: %" PRId64 " of %d bytes\n", deepest, OCTET_RUN_STACK);
    CHECK(ran > 150);
    CHECK(deepest <= OCTET_RUN_STACK);
    CHECK(!IS_MEASURED || deepest > 4096);
}

/* ---- plans ----------------------------------------------------------------------------- */

static void plan_all(void *arg) {
    static char text[1 << 16];
    const octet_linear_backward_args *args = arg;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_signature signature;
    octet_backward_signature backward;
    octet_linear_backward_args back;
    static octet_chain chain; /* the caller's, as its plans are */
    octet_status status = octet_plan_linear(&plan, &args->forward, NULL);
    status = status ? status : octet_plan_linear_backward(&plan, args, NULL);
    if (!status && args->forward.delay_wgrad && args->forward.weight_requires_grad) {
        status = octet_plan_linear_wgrad(&plan, args, NULL);
    }
    (void)octet_plan_print(text, sizeof text, &plan);
    status = status ? status : octet_plan_chain(&chain, args, NULL);
    status = status ? status : octet_chain_bind(&chain, &plan.extents, NULL);
    octet_signature_of(&signature, &chain, false);
    octet_backward_signature_of(&backward, &chain, false);
    (void)octet_linear_backward_print(text, sizeof text, args);
    status = status ? status : octet_linear_backward_parse(&back, text, NULL);
    CHECK_EQ_INT(status, OCTET_OK);
}

TEST(stack__of_a_plan_is_within_its_bound) {
    static const matrix_size size = {128, 144, 40};
    matrix_random random = {6};
    deepest = 0;
    for (int i = 0; i < 700; i++) {
        matrix_row row = matrix_draw(&random);
        octet_linear_backward_args args;
        if (matrix_args(&args, &row, &size, NULL) == OCTET_OK) {
            int64_t used = stack_of(plan_all, &args);
            deepest = used > deepest ? used : deepest;
        }
    }
    printf("a plan: %" PRId64 " of %d bytes\n", deepest, OCTET_PLAN_STACK);
    CHECK(deepest <= OCTET_PLAN_STACK);
    CHECK(!IS_MEASURED || deepest > 4096);
}

CPU_TEST_MAIN(stack__of_a_run_is_within_its_bound, stack__of_a_plan_is_within_its_bound)
