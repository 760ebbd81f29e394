/* pool.c - a few threads that wait for work, for programs without a pool of their own.
 *
 * The caller of parallel_for is worker 0 and the created threads are 1 to threads - 1. Worker i
 * does the i-th of `threads` contiguous ranges. A round begins when `round` changes and ends
 * when `busy` is back at 0; both are polled for a moment before a thread goes to sleep, since
 * the rounds of one run follow each other closely. The only file that allocates. */
#define _XOPEN_SOURCE 700 /* getpid */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "octet.h"

#include "core/fail.h"

#define MOST_THREADS 1024
#define POLLS 4000 /* some microseconds */

typedef struct worker {
    octet_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct octet_pool {
    pthread_mutex_t mutex;
    pthread_cond_t begins, ends;
    atomic_uint round;
    atomic_int busy; /* created threads that have not finished the round */
    atomic_bool stops;
    int threads;
    pid_t process; /* that has the threads: a child of it has none */
    octet_task task;
    void *arg;
    int64_t count;
    worker workers[];
};

/* fork copies the pool, but only the thread that calls it: nobody would answer. */
static bool has_threads(const octet_pool *pool) {
    return pool->threads > 1 && pool->process == getpid();
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* The i-th of n ranges of [0, count), whose lengths differ by at most 1. */
static int64_t range_start(int64_t count, int i, int n) {
    int64_t each = count / n, more = count % n;
    return each * i + (i < more ? i : more);
}

static void do_range(const octet_pool *pool, int index) {
    int64_t begin = range_start(pool->count, index, pool->threads);
    int64_t end = range_start(pool->count, index + 1, pool->threads);
    if (begin < end) {
        pool->task(pool->arg, begin, end);
    }
}

static void await_round(octet_pool *pool, unsigned seen) {
    for (int i = 0; i < POLLS && atomic_load(&pool->round) == seen; i++) {
        relax();
    }
    if (atomic_load(&pool->round) == seen) {
        (void)pthread_mutex_lock(&pool->mutex);
        while (atomic_load(&pool->round) == seen) {
            (void)pthread_cond_wait(&pool->begins, &pool->mutex);
        }
        (void)pthread_mutex_unlock(&pool->mutex);
    }
}

static void *work(void *arg) {
    worker *self = arg;
    octet_pool *pool = self->pool;
    for (unsigned round = 0;; round++) {
        await_round(pool, round);
        if (atomic_load(&pool->stops)) {
            return NULL;
        }
        do_range(pool, self->index);
        if (atomic_fetch_sub(&pool->busy, 1) == 1) {
            (void)pthread_mutex_lock(&pool->mutex);
            (void)pthread_cond_signal(&pool->ends);
            (void)pthread_mutex_unlock(&pool->mutex);
        }
    }
}

static void begin_round(octet_pool *pool) {
    (void)pthread_mutex_lock(&pool->mutex);
    (void)atomic_fetch_add(&pool->round, 1);
    (void)pthread_cond_broadcast(&pool->begins);
    (void)pthread_mutex_unlock(&pool->mutex);
}

static void await_others(octet_pool *pool) {
    for (int i = 0; i < POLLS && atomic_load(&pool->busy); i++) {
        relax();
    }
    (void)pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->busy)) {
        (void)pthread_cond_wait(&pool->ends, &pool->mutex);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
}

void octet_pool_parallel_for(void *pool, int64_t count, octet_task task, void *arg) {
    octet_pool *p = pool;
    if (!p || count == 1 || !has_threads(p)) {
        if (count > 0) {
            task(arg, 0, count);
        }
        return;
    }
    p->task = task;
    p->arg = arg;
    p->count = count;
    atomic_store(&p->busy, p->threads - 1);
    begin_round(p);
    do_range(p, 0);
    await_others(p);
}

/* Ends the first `started` threads that were created. */
static void stop(octet_pool *pool, int started) {
    atomic_store(&pool->stops, true);
    begin_round(pool);
    for (int i = 1; i < started; i++) {
        (void)pthread_join(pool->workers[i].thread, NULL);
    }
    (void)pthread_cond_destroy(&pool->ends);
    (void)pthread_cond_destroy(&pool->begins);
    (void)pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

static octet_status start(octet_pool *pool, octet_error *err) {
    for (int i = 1; i < pool->threads; i++) {
        pool->workers[i] = (worker){.pool = pool, .index = i};
        if (pthread_create(&pool->workers[i].thread, NULL, work, &pool->workers[i])) {
            int threads = pool->threads;
            stop(pool, i);
            return oct_fail(err, OCTET_NO_MEMORY,
                            "the system gave %d threads; %d were asked for", i, threads);
        }
    }
    return OCTET_OK;
}

octet_status octet_pool_create(octet_pool **out, int threads, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    if (!status && (threads < 1 || threads > MOST_THREADS)) {
        status = oct_fail(err, OCTET_INVALID, "threads is %d; a pool has 1 to %d", threads,
                          MOST_THREADS);
    }
    if (status) {
        return status;
    }
    octet_pool *pool = calloc(1, sizeof *pool + sizeof(worker) * (size_t)threads);
    if (!pool) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for a pool of %d threads", threads);
    }
    pool->threads = threads;
    pool->process = getpid();
    (void)pthread_mutex_init(&pool->mutex, NULL);
    (void)pthread_cond_init(&pool->begins, NULL);
    (void)pthread_cond_init(&pool->ends, NULL);
    status = start(pool, err);
    if (!status) {
        *out = pool;
    }
    return status;
}

void octet_pool_free(octet_pool *pool) {
    if (pool && pool->process != getpid()) {
        free(pool); /* its locks may be those of a thread that is not here */
    } else if (pool) {
        stop(pool, pool->threads);
    }
}
