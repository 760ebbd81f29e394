/* record.c - launches captured on a stream of their own, and launched as one graph. */
#include "octet/record.h"

#include <stdlib.h>

#include "core/fail.h"
#include "cuda/state.h"

#define BYTES_FOR_ONE ((int64_t)512 << 17)
#define MOST_NODES 256

struct octet_recording {
    octet_cuda *cuda;
    void *graph; /* CUgraphExec */
};

int64_t octet_cuda_recordings(const octet_cuda *cuda) {
    int64_t count = cuda ? cuda->facts.memory_bytes / BYTES_FOR_ONE : 0;
    return count < 1 ? 1 : count;
}

bool octet_is_captured(const octet_exec *exec) {
    int state = 0;
    return exec && exec->cuda &&
           (exec->cuda->driver->cuStreamIsCapturing(exec->stream, &state) || state);
}

/* ---- making one ------------------------------------------------------------------------ */

/* A graph is kernels, one at least, and nothing else. */
static octet_status check_graph(const oct_driver *driver, void *graph, octet_error *err) {
    void *nodes[MOST_NODES];
    size_t count = 0, others = 0;
    int result = driver->cuGraphGetNodes(graph, NULL, &count);
    if (!result && (count < 1 || count > MOST_NODES)) {
        return oct_fail(err, OCTET_UNSUPPORTED,
                        "the runs launch %zu kernels; a recording has 1 to %d", count,
                        MOST_NODES);
    }
    result = result ? result : driver->cuGraphGetNodes(graph, nodes, &count);
    for (size_t i = 0; i < count && !result; i++) {
        int type = -1;
        result = driver->cuGraphNodeGetType(nodes[i], &type);
        others += type != OCT_CU_KERNEL_NODE;
    }
    if (result) {
        return oct_cuda_failed(err, "cuGraphGetNodes", result);
    }
    return !others ? OCTET_OK
                   : oct_fail(err, OCTET_UNSUPPORTED,
                              "%zu of the %zu launches are fills or copies: run them as they "
                              "are, for a graph ties these to the allocations that it meets",
                              others, count);
}

/* What is to be recorded, and on which GPU. */
typedef struct recorded {
    octet_runs runs;
    const void *arg;
    octet_exec exec;
} recorded;

/* The graph of the runs. The capture has ended either way. */
static octet_status capture(void **graph, const recorded *r, octet_error *err) {
    const oct_driver *driver = r->exec.cuda->driver;
    int result = driver->cuStreamBeginCapture_v2(r->exec.stream, OCT_CU_CAPTURE_RELAXED);
    if (result) {
        return oct_cuda_failed(err, "cuStreamBeginCapture", result);
    }
    octet_status status = r->runs(r->arg, &r->exec, err);
    result = driver->cuStreamEndCapture(r->exec.stream, graph);
    if (!status && result) {
        status = oct_cuda_failed(err, "cuStreamEndCapture", result);
    }
    status = status ? status : check_graph(driver, *graph, err);
    if (status && *graph) {
        (void)driver->cuGraphDestroy(*graph);
    }
    return status;
}

static octet_status make_of(octet_recording **out, octet_cuda *cuda, void *graph,
                            octet_error *err) {
    octet_recording *made = malloc(sizeof *made);
    if (!made) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for a recording");
    }
    *made = (octet_recording){cuda, NULL};
    int result = cuda->driver->cuGraphInstantiateWithFlags(&made->graph, graph, 0);
    if (result) {
        free(made);
        return oct_cuda_failed(err, "cuGraphInstantiateWithFlags", result);
    }
    *out = made;
    return OCTET_OK;
}

/* The context is current, captures are relaxed, and no other thread is here. */
static octet_status record(octet_recording **out, recorded *r, octet_error *err) {
    octet_cuda *cuda = r->exec.cuda;
    int result = cuda->recorder
                     ? 0
                     : cuda->driver->cuStreamCreate(&cuda->recorder, OCT_CU_STREAM_UNTIED);
    if (result) {
        cuda->recorder = NULL;
        return oct_cuda_failed(err, "cuStreamCreate", result);
    }
    void *graph = NULL;
    r->exec.stream = cuda->recorder;
    octet_status status = capture(&graph, r, err);
    if (!status) {
        status = make_of(out, cuda, graph, err);
        (void)cuda->driver->cuGraphDestroy(graph);
    }
    return status;
}

static octet_status check_exec(const octet_exec *exec, octet_error *err) {
    octet_status status = oct_need(exec, "exec", err);
    status = status ? status : oct_need_size(exec->size, sizeof *exec, "octet_exec", err);
    return status || exec->cuda
               ? status
               : oct_fail(err, OCTET_INVALID,
                          "exec has no GPU, and only a GPU's runs are recorded: give it one "
                          "from octet_cuda_open");
}

octet_status octet_record(octet_recording **out, octet_runs runs, const void *arg,
                          const octet_exec *exec, octet_error *err) {
    bool pushed;
    octet_status status = oct_need(out, "out", err);
    status = status || runs ? status : oct_fail(err, OCTET_INVALID, "runs is NULL");
    status = status ? status : check_exec(exec, err);
    if (status) {
        return status;
    }
    octet_cuda *cuda = exec->cuda;
    recorded r = {runs, arg, *exec};
    (void)pthread_mutex_lock(&cuda->record_lock);
    status = oct_cuda_enter(cuda, &pushed, err);
    if (!status) {
        int mode = oct_cuda_relax(cuda);
        status = record(out, &r, err);
        oct_cuda_unrelax(cuda, mode);
        oct_cuda_leave(cuda, pushed);
    }
    (void)pthread_mutex_unlock(&cuda->record_lock);
    return status;
}

/* ---- using one ------------------------------------------------------------------------- */

octet_status octet_replay(const octet_recording *recording, const octet_exec *exec,
                          octet_error *err) {
    bool pushed;
    octet_status status = oct_need(recording, "recording", err);
    status = status ? status : check_exec(exec, err);
    if (!status && exec->cuda != recording->cuda) {
        status = oct_fail(err, OCTET_INVALID,
                          "the recording is of GPU %d; exec's is GPU %d, opened by itself",
                          recording->cuda->facts.index, exec->cuda->facts.index);
    }
    status = status ? status : oct_cuda_enter(recording->cuda, &pushed, err);
    if (status) {
        return status;
    }
    int result = exec->cuda->driver->cuGraphLaunch(recording->graph, exec->stream);
    oct_cuda_leave(exec->cuda, pushed);
    return result ? oct_cuda_failed(err, "cuGraphLaunch", result) : OCTET_OK;
}

void octet_recording_free(octet_recording *recording) {
    if (!recording) {
        return;
    }
    octet_cuda *cuda = recording->cuda;
    bool pushed;
    (void)oct_cuda_enter(cuda, &pushed, NULL);
    (void)cuda->driver->cuGraphExecDestroy(recording->graph);
    oct_cuda_leave(cuda, pushed);
    free(recording);
}
