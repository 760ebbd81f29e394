/* batch_rows.h - a layer whose rows must not depend on their batch, and batches of any size. */
#ifndef OCTET_RUN_BATCH_ROWS_H
#define OCTET_RUN_BATCH_ROWS_H

#include <math.h>

#include "octet.h"
#include "run/simple.h"
#include "test.h"

#define BATCH_POOL 61 /* different rows, of which every batch is made */

/* Column c of a row of the pool: of many magnitudes, so that every other order of a sum gives
 * another result. Some rows are unusual: they must not change the others. */
static inline float batch_value_of(int id, int64_t c) {
    float value = (float)((id * 131 + c * 37 + c * c % 11) % 61 + 1) / 16;
    value *= ldexpf(1.0f, -(int)((c * 7 + c / 5 * 3 + id) % 11));
    value = (c + id) % 3 ? -value : value;
    switch (id) {
    case 5:
        return c % 50 == 3 ? NAN : value;
    case 9:
        return c % 40 == 7 ? INFINITY : value;
    case 13:
        return value * 1e37f;
    case 17:
        return value * 1e-38f;
    case 21:
        return 0;
    case 25: /* one block apart */
        return c < 32 ? value * 1e-36f : value;
    case 29:
        return c % 7 ? value : value * 1e30f;
    default:
        return value;
    }
}

static inline float batch_fixed_value(const octet_port *port, int64_t i) {
    float value = (float)((i * 29 + i / 7 * 13 + port->name) % 53 - 26) / 32;
    return value * ldexpf(1.0f, -(int)((i * 5 + i / 9) % 10));
}

/* A layer with room for batches of `most` rows, and what each row of the pool becomes. */
typedef struct batch_layer {
    octet_chain chain;
    octet_memory memory[2];
    const char *recipe;
    int64_t k, n;
    octet_exec exec;
    octet_pool *pool;
    float *values[2]; /* rows of the pool: of x and of dy */
    char *y, *dx;     /* [BATCH_POOL][n], [BATCH_POOL][k] */
} batch_layer;

static inline int batch_arg_of(const batch_layer *l, int plan, const char *name) {
    const octet_plan *p = &l->chain.plans[plan];
    return octet_port_find(p->args, p->arg_count, name);
}

/* y of the forward plan, dx of the backward one. */
static inline char *batch_result_of(const batch_layer *l, int plan) {
    const octet_plan *p = &l->chain.plans[plan];
    int at = octet_port_find(p->outs, p->out_count, plan ? "grad_input" : "output");
    return l->memory[plan].outs[at];
}

static inline float *batch_pool(int64_t cols) {
    float *values = simple_block(BATCH_POOL * cols * (int64_t)sizeof(float));
    for (int64_t i = 0; i < BATCH_POOL * cols; i++) {
        values[i] = batch_value_of((int)(i / cols), i % cols);
    }
    return values;
}

static inline void batch_allocate(batch_layer *l, int plan) {
    const octet_plan *p = &l->chain.plans[plan];
    octet_memory *m = &l->memory[plan];
    *m = (octet_memory){.size = sizeof *m};
    for (int i = 0; i < p->arg_count; i++) {
        m->args[i] = simple_argument(&p->args[i], batch_fixed_value);
    }
    for (int i = 0; i < p->out_count; i++) {
        m->outs[i] = simple_block(p->outs[i].bytes);
    }
    m->saved = simple_block(m->saved_bytes = p->saved_bytes);
    m->workspace = simple_block(m->workspace_bytes = p->workspace_bytes);
}

/* What layer it is, and where it runs; cuda NULL: on the CPU. */
typedef struct batch_problem {
    const char *recipe;
    int64_t most, k, n;
    octet_cuda *cuda;
} batch_problem;

static inline bool batch_start(batch_layer *l, const batch_problem *p) {
    octet_linear_backward_args args;
    char text[256], device[32] = "cpu";
    octet_device gpu = {0};
    if (p->cuda && CHECK_EQ_INT(octet_cuda_target(&gpu, p->cuda, NULL), OCTET_OK)) {
        (void)snprintf(device, sizeof device, "cuda:%d/%d", gpu.index, gpu.arch);
    }
    (void)snprintf(text, sizeof text,
                   "linear-backward m=%lld k=%lld n=%lld in=f32 recipe=%s:batch_invariant "
                   "grad=x threads=3 device=%s",
                   (long long)p->most, (long long)p->k, (long long)p->n, p->recipe, device);
    octet_error err = {OCTET_OK, 0, ""};
    *l = (batch_layer){.recipe = p->recipe, .k = p->k, .n = p->n, .exec = OCTET_EXEC_INIT};
    l->exec.cuda = p->cuda;
    octet_status status = octet_linear_backward_parse(&args, text, &err);
    status = status ? status : octet_plan_chain(&l->chain, &args, &err);
    status = status ? status : octet_pool_create(&l->pool, 3, &err);
    if (!CHECK_OF(status == OCTET_OK && l->chain.count == 2, err.text)) {
        return false;
    }
    l->values[0] = batch_pool(p->k);
    l->values[1] = batch_pool(p->n);
    batch_allocate(l, 0);
    batch_allocate(l, 1);
    l->memory[1].restored[0] = l->memory[0].saved;
    l->memory[1].restored_bytes[0] = l->memory[0].saved_bytes;
    return true;
}

static inline void batch_end(batch_layer *l) {
    for (int plan = 0; plan < 2; plan++) {
        const octet_plan *p = &l->chain.plans[plan];
        for (int i = 0; i < p->arg_count; i++) {
            free((void *)(uintptr_t)l->memory[plan].args[i]);
        }
        for (int i = 0; i < p->out_count; i++) {
            free(l->memory[plan].outs[i]);
        }
        free(l->memory[plan].saved);
        free(l->memory[plan].workspace);
    }
    octet_pool_free(l->pool);
    free(l->values[0]);
    free(l->values[1]);
    free(l->y);
    free(l->dx);
}

/* Which row of the pool is row r of the batch number `deal`. */
static inline int batch_id_of(int64_t r, int64_t deal) {
    return (int)((r * (deal % 59 + 1) + deal * 3) % BATCH_POOL);
}

static inline void batch_deal_rows(const batch_layer *l, int plan, const char *name,
                                   int64_t rows, int64_t deal) {
    int64_t cols = plan ? l->n : l->k;
    float *to = (float *)(uintptr_t)l->memory[plan].args[batch_arg_of(l, plan, name)];
    for (int64_t r = 0; r < rows; r++) {
        memcpy(to + r * cols, l->values[plan] + batch_id_of(r, deal) * cols,
               (size_t)cols * sizeof *to);
    }
}

/* Odd batches are run by three threads. */
static inline bool batch_run(batch_layer *l, int64_t rows, int64_t deal) {
    octet_extents sizes = {rows, l->k, l->n};
    octet_error err = {OCTET_OK, 0, ""};
    bool threads = deal % 2 && !l->exec.cuda;
    l->exec.parallel_for = threads ? octet_pool_parallel_for : NULL;
    l->exec.pool = threads ? l->pool : NULL;
    l->exec.threads = threads ? 3 : 0;
    batch_deal_rows(l, 0, "input", rows, deal);
    batch_deal_rows(l, 1, "grad_output", rows, deal);
    octet_status status = octet_chain_bind(&l->chain, &sizes, &err);
    for (int plan = 0; !status && plan < 2; plan++) {
        status = octet_run(&l->chain.plans[plan], &l->memory[plan], &l->exec, &err);
    }
    return CHECK_OF(status == OCTET_OK, err.text);
}

/* Rows of this run that differ from their row of the pool, in y or in dx. */
static inline int64_t batch_different(const batch_layer *l, int64_t rows, int64_t deal) {
    size_t y = (size_t)l->n * 4, dx = (size_t)l->k * 4;
    int64_t count = 0;
    for (int64_t r = 0; r < rows; r++) {
        size_t id = (size_t)batch_id_of(r, deal), at = (size_t)r;
        count += memcmp(batch_result_of(l, 0) + at * y, l->y + id * y, y) != 0 ||
                 memcmp(batch_result_of(l, 1) + at * dx, l->dx + id * dx, dx) != 0;
    }
    return count;
}

/* What the rows of the pool become, as the first rows of a large batch. */
static inline bool batch_learn(batch_layer *l, int64_t rows) {
    size_t y = (size_t)l->n * 4 * BATCH_POOL, dx = (size_t)l->k * 4 * BATCH_POOL;
    if (!batch_run(l, rows, 0)) {
        return false;
    }
    l->y = malloc(y);
    l->dx = malloc(dx);
    memcpy(l->y, batch_result_of(l, 0), y);
    memcpy(l->dx, batch_result_of(l, 1), dx);
    return true;
}

static inline void batch_check_rows(batch_layer *l, int64_t rows, int64_t deal) {
    if (batch_run(l, rows, deal)) {
        int64_t count = batch_different(l, rows, deal);
        test_report(count == 0, TEST_HERE("rows are as in another batch"),
                    "%s: %lld of %lld rows, k=%lld n=%lld", l->recipe, (long long)count,
                    (long long)rows, (long long)l->k, (long long)l->n);
    }
}

#endif
