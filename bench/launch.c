/* launch.c - what a run on a GPU costs the host, without the driver's part of it.
 *
 * The GPU is one whose driver and libraries take every call and do nothing: idle/idle_gpu.c. A
 * run is forward and backward of one small layer. CPU time. */
#define _GNU_SOURCE /* setenv, clock_gettime */
#include "octet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 7, RUNS = 6000, SIZES = 300 };

static double now_us(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

typedef struct layer {
    octet_chain chain;
    octet_memory memory[OCTET_CHAIN_PLANS];
    octet_prepared *prepared[OCTET_CHAIN_PLANS];
} layer;

/* How it is run: sizes that stay or change; decided by every run, by a run of its own before
 * each, or before all. */
typedef enum way { STAYS, CHANGES, PREPARED, PREPARED_EACH, WAYS } way;

/* Nobody follows them. */
static void *address(int number) {
    return (void *)(uintptr_t)((uint64_t)(number + 1) << 32);
}

static void place(layer *l) {
    for (int i = 0; i < l->chain.count; i++) {
        octet_memory *m = &l->memory[i];
        *m = OCTET_MEMORY_INIT;
        for (int port = 0; port < OCTET_PLAN_ARGS; port++) {
            m->args[port] = address(port);
        }
        for (int port = 0; port < OCTET_PLAN_OUTS; port++) {
            m->outs[port] = address(OCTET_PLAN_ARGS + port);
        }
        m->saved = address(100 + i);
        m->restored[0] = address(100);
        m->restored[1] = address(101);
        m->workspace = address(110);
        m->saved_bytes = m->restored_bytes[0] = m->restored_bytes[1] = m->workspace_bytes =
            (int64_t)1 << 31;
    }
}

static octet_status make(layer *l, const char *recipe, octet_cuda *cuda, octet_error *err) {
    char text[128];
    octet_linear_args args;
    octet_linear_backward_args backward;
    octet_device device;
    (void)snprintf(text, sizeof text, "linear m=16 k=32 n=32 in=bf16 bias recipe=%s", recipe);
    octet_status status = octet_linear_parse(&args, text, err);
    status = status ? status : octet_cuda_target(&device, cuda, err);
    if (!status) {
        args.input.device = args.weight.device = args.bias.device = device;
        status = octet_linear_backward_make(&backward, &args, err);
    }
    status = status ? status : octet_plan_chain(&l->chain, &backward, err);
    place(l);
    return status;
}

static void drop(layer *l) {
    for (int i = 0; i < l->chain.count; i++) {
        octet_prepared_free(l->prepared[i]);
        l->prepared[i] = NULL;
    }
}

static octet_status prepare(layer *l, const octet_exec *exec, octet_error *err) {
    octet_status status = OCTET_OK;
    drop(l);
    for (int i = 0; i < l->chain.count && !status; i++) {
        status =
            octet_prepare(&l->prepared[i], &l->chain.plans[i], 0, &l->memory[i], exec, err);
    }
    return status;
}

static octet_status run(const layer *l, const octet_exec *exec, octet_error *err) {
    octet_status status = OCTET_OK;
    for (int i = 0; i < l->chain.count && !status; i++) {
        status = l->prepared[i] ? octet_run_prepared(l->prepared[i], &l->memory[i], exec, err)
                                : octet_run(&l->chain.plans[i], &l->memory[i], exec, err);
    }
    return status;
}

static octet_status bind(layer *l, int64_t m, octet_error *err) {
    octet_extents sizes = l->chain.plans[0].extents;
    sizes.m = m;
    return octet_chain_bind(&l->chain, &sizes, err);
}

static octet_status once(layer *l, way how, int number, const octet_exec *exec,
                         octet_error *err) {
    bool changes = how == CHANGES || how == PREPARED_EACH;
    octet_status status = changes ? bind(l, 1 + number % SIZES, err) : OCTET_OK;
    if (!status && how == PREPARED_EACH) {
        status = prepare(l, exec, err);
    }
    return status ? status : run(l, exec, err);
}

/* The quietest mean of a run, in microseconds. */
static octet_status measure(double *out, layer *l, way how, const octet_exec *exec,
                            octet_error *err) {
    octet_status status = how == PREPARED ? prepare(l, exec, err) : OCTET_OK;
    *out = 1e9;
    for (int r = 0; r < REPEATS && !status; r++) {
        double start = now_us();
        for (int i = 0; i < RUNS && !status; i++) {
            status = once(l, how, i, exec, err);
        }
        double us = (now_us() - start) / (double)RUNS;
        *out = us < *out ? us : *out;
    }
    drop(l);
    return status;
}

static octet_status report(const char *recipe, const octet_exec *exec, octet_error *err) {
    static const way order[WAYS] = {STAYS, PREPARED, CHANGES, PREPARED_EACH};
    static layer l;
    double us[WAYS];
    octet_status status = make(&l, recipe, exec->cuda, err);
    for (int i = 0; i < WAYS && !status; i++) {
        status = measure(&us[order[i]], &l, order[i], exec, err);
    }
    if (!status) {
        printf("%-8s %10.2f %10.2f %10.2f %10.2f\n", recipe, us[STAYS], us[CHANGES],
               us[PREPARED], us[PREPARED_EACH]);
    }
    return status;
}

int main(void) {
    static const char *const recipes[] = {"none",  "delayed", "current",
                                          "block", "mxfp8",   "nvfp4"};
    octet_error err = {OCTET_OK, 0, ""};
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    options.cache = "";
    octet_status status = setenv("OCTET_CUDA_DRIVER", IDLE_GPU, 1) ? OCTET_DEVICE : OCTET_OK;
    status = status ? status : octet_cuda_open(&exec.cuda, &options, &err);
    printf("host us of forward and backward, 16 x 32 x 32; M changes: 1 to %d, bound anew\n"
           "%-8s %10s %10s %10s %10s\n",
           SIZES, "", "M stays", "changes", "prepared", "each time");
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0] && !status; i++) {
        status = report(recipes[i], &exec, &err);
    }
    if (status) {
        fprintf(stderr, "launch: %s\n", err.text);
    }
    octet_cuda_close(exec.cuda);
    return status != OCTET_OK;
}
