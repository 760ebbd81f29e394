/* graph.c - launches captured on a stream of their own, and launched as one graph. */
#include "octet/graph.h"

#include <stdlib.h>

#include "core/fail.h"
#include "cuda/open.h"

#define BYTES_FOR_ONE ((int64_t)512 << 17)
#define MOST_NODES 256

struct octet_graph {
    octet_cuda *cuda;
    void *executable; /* CUgraphExec */
};

int64_t octet_cuda_graphs(const octet_cuda *cuda) {
    int64_t count = cuda ? cuda->facts.memory_bytes / BYTES_FOR_ONE : 0;
    return count < 1 ? 1 : count;
}

bool octet_is_captured(const octet_exec *exec) {
    int capturing = 0;
    return exec && exec->cuda &&
           (exec->cuda->driver->cuStreamIsCapturing(exec->stream, &capturing) || capturing);
}

/* ---- making one ------------------------------------------------------------------------ */

/* A graph is kernels, one at least, and nothing else. */
static octet_status check_graph(const oct_driver *driver, void *graph, octet_error *err) {
    void *nodes[MOST_NODES];
    size_t count = 0, others = 0;
    int result = driver->cuGraphGetNodes(graph, NULL, &count);
    if (!result && (count < 1 || count > MOST_NODES)) {
        return oct_fail(err, OCTET_UNSUPPORTED,
                        "the runs launch %zu kernels; a graph has 1 to %d", count, MOST_NODES);
    }
    result = result ? result : driver->cuGraphGetNodes(graph, nodes, &count);
    const char *call = result ? "cuGraphGetNodes" : "cuGraphNodeGetType";
    for (size_t i = 0; i < count && !result; i++) {
        int type = -1;
        result = driver->cuGraphNodeGetType(nodes[i], &type);
        others += type != OCT_CU_KERNEL_NODE;
    }
    if (result) {
        return oct_cuda_failed(err, call, result);
    }
    return !others ? OCTET_OK
                   : oct_fail(err, OCTET_UNSUPPORTED,
                              "%zu of the %zu launches are fills or copies: run them as they "
                              "are, for a graph ties these to the allocations that it meets",
                              others, count);
}

/* What is to be captured, and on which GPU. */
typedef struct captured_runs {
    octet_runs runs;
    const void *arg;
    octet_exec exec;
} captured_runs;

/* The graph of the runs. The capture has ended either way. */
static octet_status capture(void **graph, const captured_runs *r, octet_error *err) {
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

static octet_status make_of(octet_graph **out, octet_cuda *cuda, void *graph,
                            octet_error *err) {
    octet_graph *made = malloc(sizeof *made);
    if (!made) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for a graph");
    }
    *made = (octet_graph){cuda, NULL};
    int result = cuda->driver->cuGraphInstantiateWithFlags(&made->executable, graph, 0);
    if (result) {
        free(made);
        return oct_cuda_failed(err, "cuGraphInstantiateWithFlags", result);
    }
    *out = made;
    return OCTET_OK;
}

/* The context is current, captures are relaxed, and no other thread is here. */
static octet_status make_graph(octet_graph **out, captured_runs *r, octet_error *err) {
    octet_cuda *cuda = r->exec.cuda;
    int result = cuda->capture_stream ? 0
                                      : cuda->driver->cuStreamCreate(&cuda->capture_stream,
                                                                     OCT_CU_STREAM_UNTIED);
    if (result) {
        cuda->capture_stream = NULL;
        return oct_cuda_failed(err, "cuStreamCreate", result);
    }
    void *graph = NULL;
    r->exec.stream = cuda->capture_stream;
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
                          "exec has no GPU, and only a GPU's runs are captured: give it one "
                          "from octet_cuda_open");
}

octet_status octet_capture(octet_graph **out, octet_runs runs, const void *arg,
                           const octet_exec *exec, octet_error *err) {
    bool pushed;
    octet_status status = oct_need(out, "out", err);
    status = status || runs ? status : oct_fail(err, OCTET_INVALID, "runs is NULL");
    status = status ? status : check_exec(exec, err);
    if (status) {
        return status;
    }
    octet_cuda *cuda = exec->cuda;
    captured_runs r = {runs, arg, *exec};
    (void)pthread_mutex_lock(&cuda->capture_lock);
    status = oct_cuda_enter(cuda, &pushed, err);
    if (!status) {
        int mode = oct_cuda_relax(cuda);
        status = make_graph(out, &r, err);
        oct_cuda_unrelax(cuda, mode);
        oct_cuda_leave(cuda, pushed);
    }
    (void)pthread_mutex_unlock(&cuda->capture_lock);
    return status;
}

/* ---- using one ------------------------------------------------------------------------- */

octet_status octet_replay(const octet_graph *graph, const octet_exec *exec, octet_error *err) {
    bool pushed;
    octet_status status = oct_need(graph, "graph", err);
    status = status ? status : check_exec(exec, err);
    if (!status && exec->cuda != graph->cuda) {
        status = oct_fail(err, OCTET_INVALID,
                          "the graph is of GPU %d; exec's is GPU %d, opened by itself",
                          graph->cuda->facts.index, exec->cuda->facts.index);
    }
    status = status ? status : oct_cuda_enter(graph->cuda, &pushed, err);
    if (status) {
        return status;
    }
    int result = exec->cuda->driver->cuGraphLaunch(graph->executable, exec->stream);
    oct_cuda_leave(exec->cuda, pushed);
    return result ? oct_cuda_failed(err, "cuGraphLaunch", result) : OCTET_OK;
}

void octet_graph_free(octet_graph *graph) {
    if (!graph) {
        return;
    }
    octet_cuda *cuda = graph->cuda;
    bool pushed;
    (void)oct_cuda_enter(cuda, &pushed, NULL);
    (void)cuda->driver->cuGraphExecDestroy(graph->executable);
    oct_cuda_leave(cuda, pushed);
    free(graph);
}
