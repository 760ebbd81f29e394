/* test_run_threads.c - one plan, run by many threads at once on memory of their own. */
#include <pthread.h>
#include <stdlib.h>

#include "octet.h"
#include "test.h"

#define CALLERS 4
#define ROUNDS 8

static const char *const problems[] = {
    "linear m=40 k=72 n=56 in=bf16 bias recipe=mxfp8 threads=2",
    "linear m=40 k=72 n=56 in=f32 recipe=nvfp4+nosr threads=2",
    "linear m=40 k=72 n=56 in=f16 recipe=delayed threads=2",
    "linear m=40 k=72 n=56 in=bf16 recipe=current quantize_output threads=2",
};
#define PROBLEMS ((int)(sizeof problems / sizeof problems[0]))

/* A thread, its memory, and what came of it. */
typedef struct caller {
    const octet_plan *plan;
    octet_memory memory; /* arguments are shared, the rest is its own */
    octet_status status;
} caller;

static void *block(int64_t bytes) {
    size_t size = ((size_t)bytes + OCTET_ARENA_ALIGN) & ~(size_t)(OCTET_ARENA_ALIGN - 1);
    void *made = aligned_alloc(OCTET_ARENA_ALIGN, size);
    if (!made) {
        abort();
    }
    memset(made, 0xFF, size);
    return made;
}

static void own_memory(caller *c) {
    for (int i = 0; i < c->plan->out_count; i++) {
        c->memory.outs[i] = block(c->plan->outs[i].bytes);
    }
    c->memory.saved = block(c->memory.saved_bytes = c->plan->saved_bytes);
    c->memory.workspace = block(c->memory.workspace_bytes = c->plan->workspace_bytes);
}

static void drop_memory(caller *c) {
    for (int i = 0; i < c->plan->out_count; i++) {
        free(c->memory.outs[i]);
    }
    free(c->memory.saved);
    free(c->memory.workspace);
}

static void *call(void *arg) {
    caller *c = arg;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_pool *pool = NULL;
    c->status = octet_pool_create(&pool, 2, NULL);
    exec.threads = 2;
    exec.parallel_for = octet_pool_parallel_for;
    exec.pool = pool;
    for (int i = 0; i < ROUNDS && !c->status; i++) {
        c->status = octet_run(c->plan, &c->memory, &exec, NULL);
    }
    octet_pool_free(pool);
    return NULL;
}

/* Numbers of every port's dtype; what they are does not matter. */
static void *argument(const octet_port *port) {
    unsigned char *at = block(port->bytes);
    int size = octet_dtype_bits((octet_dtype)port->dtype) / 8;
    for (int64_t i = 0; i < port->bytes / size; i++) {
        float value = (float)(i * 37 % 61) / 16 + 1;
        uint32_t bits = octet_encode((octet_dtype)port->dtype, i % 2 ? -value : value);
        memcpy(at + i * size, &bits, (size_t)size);
    }
    if (port->name == OCTET_NAME_SCALE) {
        for (int64_t i = 0; i < port->bytes / 4; i++) {
            ((float *)at)[i] = 2;
        }
    }
    return at;
}

static bool same_outputs(const caller *a, const caller *b) {
    bool same = !memcmp(a->memory.saved, b->memory.saved, (size_t)a->plan->saved_bytes);
    for (int i = 0; i < a->plan->out_count; i++) {
        same = same &&
               !memcmp(a->memory.outs[i], b->memory.outs[i], (size_t)a->plan->outs[i].bytes);
    }
    return same;
}

static void check_problem(const char *problem) {
    octet_linear_args args;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_error err;
    CHECK_EQ_INT(octet_linear_parse(&args, problem, &err), OCTET_OK);
    CHECK_EQ_INT(octet_plan_linear(&plan, &args, &err), OCTET_OK);
    caller callers[CALLERS + 1]; /* the last one by itself */
    pthread_t threads[CALLERS];
    octet_memory shared = OCTET_MEMORY_INIT;
    for (int i = 0; i < plan.arg_count; i++) {
        shared.args[i] = argument(&plan.args[i]);
    }
    for (int i = 0; i <= CALLERS; i++) {
        callers[i] = (caller){&plan, shared, OCTET_INVALID};
        own_memory(&callers[i]);
    }
    for (int i = 0; i < CALLERS; i++) {
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
    }
    (void)call(&callers[CALLERS]);
    for (int i = 0; i <= CALLERS; i++) {
        CHECK_EQ_INT(callers[i].status, OCTET_OK);
        CHECK_OF(same_outputs(&callers[i], &callers[CALLERS]), problem);
    }
    for (int i = 0; i <= CALLERS; i++) {
        drop_memory(&callers[i]);
    }
    for (int i = 0; i < plan.arg_count; i++) {
        free((void *)(uintptr_t)shared.args[i]);
    }
}

TEST(run__one_plan_serves_many_threads_at_once) {
    for (int i = 0; i < PROBLEMS; i++) {
        check_problem(problems[i]);
    }
}

TEST_MAIN(run__one_plan_serves_many_threads_at_once)
