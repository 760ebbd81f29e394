/* threads.c - torch's thread pool as an octet_exec, and when not to use it. */
#include "torch/threads.h"

#include "torch/api.h"

typedef struct bridge {
    octet_task task;
    void *arg;
} bridge;

static void cross(int64_t begin, int64_t end, void *arg) {
    const bridge *b = arg;
    b->task(b->arg, begin, end);
}

/* `pool` is only a number: how many of torch's workers may take part. */
static void parallel_for(void *pool, int64_t count, octet_task task, void *arg) {
    int64_t workers = (int64_t)(uintptr_t)pool;
    bridge b = {task, arg};
    if (oct_torch.torch_parallel_for(0, count, (count + workers - 1) / workers, cross, &b)) {
        task(arg, 0, count);
    }
}

octet_exec oct_exec_make(uint32_t threads) {
    octet_exec exec = OCTET_EXEC_INIT;
    exec.threads = threads;
    exec.parallel_for = parallel_for;
    exec.pool = (void *)(uintptr_t)threads;
    return exec;
}

/* A rough estimate of one worker's time in ns: 0.5 for each element read or written, 1 for a
 * hundred multiplications. */
static double work_ns(const oct_request *p) {
    bool one = p->kind == OCTET_PLAN_QUANTIZE || p->kind == OCTET_PLAN_DEQUANTIZE;
    int axes = p->rank - (one ? 1 : 2);
    double m = 1, k = 1, n = 1;
    for (int i = 0; i < axes; i++) {
        m *= (double)p->sizes[i];
    }
    if (axes >= 0) {
        k = (double)p->sizes[axes];
        n = one ? 1 : (double)p->sizes[axes + 1];
    }
    return (m * k + n * k + m * n) / 2 + m * n * k / 100;
}

/* The least work for one worker. Waking it takes a few microseconds for every step, and it
 * needs its own part of the workspace. */
#define SHARE_NS 20000

uint32_t oct_request_threads(const oct_request *request) {
    double shares = work_ns(request) / SHARE_NS;
    uint32_t threads = 1;
    if (shares < 2 || oct_torch.torch_get_num_threads(&threads) || threads == 0) {
        return 1;
    }
    return shares < threads ? (uint32_t)shares : threads;
}
