/* recording.c - launches captured on a stream of their own, and launched as one graph. */
#include "cuda/recording.h"

#include <stdlib.h>

#include "cuda/state.h"

#define BYTES_FOR_ONE ((int64_t)512 << 17)
#define MOST_NODES 64 /* a plan has 32 steps, few of them with two launches */

struct oct_cuda_recording {
    octet_cuda *cuda;
    void *graph; /* CUgraphExec */
};

int64_t oct_cuda_recordings(const octet_cuda *cuda) {
    int64_t count = cuda->facts.memory_bytes / BYTES_FOR_ONE;
    return count < 1 ? 1 : count;
}

bool oct_cuda_is_captured(const octet_exec *exec) {
    int state = 0;
    return exec->cuda->driver->cuStreamIsCapturing(exec->stream, &state) || state;
}

/* ---- making one ------------------------------------------------------------------------ */

/* Whether a graph is kernels, one at least, and nothing else. */
static bool has_only_kernels(const oct_driver *driver, void *graph) {
    void *nodes[MOST_NODES];
    size_t count = 0;
    if (driver->cuGraphGetNodes(graph, NULL, &count) || count < 1 || count > MOST_NODES ||
        driver->cuGraphGetNodes(graph, nodes, &count)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        int type = -1;
        if (driver->cuGraphNodeGetType(nodes[i], &type) || type != OCT_CU_KERNEL_NODE) {
            return false;
        }
    }
    return true;
}

/* The graph of the launches; NULL where there is none. The capture has ended either way. */
static void *capture(octet_cuda *cuda, const octet_exec *exec,
                     const oct_cuda_launches *launches) {
    const oct_driver *driver = cuda->driver;
    octet_exec recorded = *exec;
    void *graph = NULL;
    recorded.stream = cuda->recorder;
    if (driver->cuStreamBeginCapture_v2(cuda->recorder, OCT_CU_CAPTURE_RELAXED)) {
        return NULL;
    }
    octet_status status = launches->launch(launches->arg, &recorded, NULL);
    int result = driver->cuStreamEndCapture(cuda->recorder, &graph);
    if (graph && (status || result || !has_only_kernels(driver, graph))) {
        (void)driver->cuGraphDestroy(graph);
        graph = NULL;
    }
    return graph;
}

static oct_cuda_recording *made_of(octet_cuda *cuda, void *graph) {
    oct_cuda_recording *recording = graph ? malloc(sizeof *recording) : NULL;
    if (recording) {
        *recording = (oct_cuda_recording){cuda, NULL};
        if (cuda->driver->cuGraphInstantiateWithFlags(&recording->graph, graph, 0)) {
            free(recording);
            recording = NULL;
        }
    }
    if (graph) {
        (void)cuda->driver->cuGraphDestroy(graph);
    }
    return recording;
}

/* The context is current, captures are relaxed, and no other thread is here. */
static oct_cuda_recording *record(octet_cuda *cuda, const octet_exec *exec,
                                  const oct_cuda_launches *launches) {
    if (!cuda->recorder &&
        cuda->driver->cuStreamCreate(&cuda->recorder, OCT_CU_STREAM_UNTIED)) {
        cuda->recorder = NULL;
        return NULL;
    }
    return made_of(cuda, capture(cuda, exec, launches));
}

oct_cuda_recording *oct_cuda_record(const octet_exec *exec, const oct_cuda_launches *launches) {
    octet_cuda *cuda = exec->cuda;
    oct_cuda_recording *recording = NULL;
    bool pushed;
    (void)pthread_mutex_lock(&cuda->record_lock);
    if (!oct_cuda_enter(cuda, &pushed, NULL)) {
        int mode = oct_cuda_relax(cuda);
        recording = record(cuda, exec, launches);
        oct_cuda_unrelax(cuda, mode);
        oct_cuda_leave(cuda, pushed);
    }
    (void)pthread_mutex_unlock(&cuda->record_lock);
    return recording;
}

/* ---- using one ------------------------------------------------------------------------- */

octet_status oct_cuda_replay(const oct_cuda_recording *recording, const octet_exec *exec,
                             octet_error *err) {
    octet_cuda *cuda = recording->cuda;
    bool pushed;
    octet_status status = oct_cuda_enter(cuda, &pushed, err);
    if (status) {
        return status;
    }
    int result = cuda->driver->cuGraphLaunch(recording->graph, exec->stream);
    oct_cuda_leave(cuda, pushed);
    return result ? oct_cuda_failed(err, "cuGraphLaunch", result) : OCTET_OK;
}

void oct_cuda_recording_free(oct_cuda_recording *recording) {
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
