/* threads.c - torch's pool as an octet_exec, and when not to wake it. */
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

static void parallel_for(void *pool, int64_t count, octet_task task, void *arg) {
    bridge b = {task, arg};
    (void)pool;
    if (oct_torch.torch_parallel_for(0, count, 1, cross, &b)) {
        task(arg, 0, count);
    }
}

octet_exec oct_exec_make(uint32_t threads) {
    octet_exec exec = OCTET_EXEC_INIT;
    exec.threads = threads;
    exec.parallel_for = parallel_for;
    return exec;
}

/* Nanoseconds of one worker, roughly: half of one for each element that is read or written, one
 * for a hundred multiplications. */
static double work_ns(const oct_problem *p) {
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

/* A worker wakes in a few microseconds, and a plan wakes them once for every step. */
#define WORTH_DIVIDING_NS 20000

uint32_t oct_problem_threads(const oct_problem *problem) {
    uint32_t threads = 1;
    if (work_ns(problem) < WORTH_DIVIDING_NS || oct_torch.torch_get_num_threads(&threads)) {
        return 1;
    }
    return threads;
}
