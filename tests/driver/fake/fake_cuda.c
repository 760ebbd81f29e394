/* fake_cuda.c - a driver and an NVRTC that only keep account: no GPU, no code. */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/api.h"

#define EXPORT __attribute__((visibility("default")))

/* Every function of the lists is declared, so a definition that differs does not compile. */
#define X(name, parameters) EXPORT int name parameters;
OCT_DRIVER_CALLS(X)
#undef X
#define X(result, name, parameters) EXPORT result name parameters;
OCT_NVRTC_CALLS(X)
#undef X

static fake_cuda counts = {.arch = 90, .driver_version = 13000};
static pthread_mutex_t texts =
    PTHREAD_MUTEX_INITIALIZER; /* of its texts, written by compilers */
static int the_context;
static _Thread_local void *current;
static _Thread_local void *below; /* one push deep */
static _Thread_local int capture_mode;

EXPORT fake_cuda *fake_cuda_counts(void);
EXPORT fake_cuda *fake_cuda_counts(void) {
    return &counts;
}

static void needs_context(void) {
    atomic_fetch_add(&counts.homeless, current != &the_context);
}

int cuInit(unsigned flags) {
    return flags ? 1 : 0;
}

int cuDriverGetVersion(int *version) {
    *version = counts.driver_version;
    return 0;
}

int cuGetErrorName(int result, const char **name) {
    *name = result == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == 500 ? "CUDA_ERROR_NOT_FOUND"
            : result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                            : NULL;
    return *name ? 0 : 1;
}

int cuGetErrorString(int result, const char **text) {
    *text = result == 2 ? "out of memory" : result == 700 ? "an illegal access" : NULL;
    return *text ? 0 : 1;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int index) {
    *device = 7 + index;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
    (void)snprintf(name, (size_t)size, "Fake %d", device);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == OCT_CU_MAJOR          ? counts.arch / 10
             : attribute == OCT_CU_MINOR        ? counts.arch % 10
             : attribute == OCT_CU_PROCESSORS   ? 132
             : attribute == OCT_CU_SHARED_OPTIN ? 232448
             : attribute == OCT_CU_L2_BYTES     ? 50 << 20
                                                : -1;
    return device == 7 ? 0 : 101;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = atomic_load(&counts.memory_mib) * ((size_t)1 << 20);
    return device == 7 ? 0 : 101;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &the_context;
    atomic_fetch_add(&counts.retains, device == 7);
    return atomic_load(&counts.retain_result);
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    atomic_fetch_add(&counts.releases, device == 7);
    return 0;
}

int cuCtxGetCurrent(void **context) {
    *context = current;
    return 0;
}

int cuCtxPushCurrent_v2(void *context) {
    int result = atomic_load(&counts.push_result);
    if (result) {
        return result;
    }
    below = current;
    current = context;
    atomic_fetch_add(&counts.pushes, 1);
    return 0;
}

int cuCtxPopCurrent_v2(void **context) {
    *context = current;
    current = below;
    atomic_fetch_add(&counts.pops, 1);
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    int was = capture_mode;
    capture_mode = *mode;
    *mode = was;
    return 0;
}

int cuModuleLoadData(void **module, const void *image) {
    needs_context();
    atomic_fetch_add(&counts.strict_loads, capture_mode != OCT_CU_CAPTURE_RELAXED);
    atomic_fetch_add(&counts.loads, 1);
    int result = atomic_load(&counts.load_result);
    if (atomic_load(&counts.bad_loads) > 0 && atomic_fetch_sub(&counts.bad_loads, 1) == 1) {
        atomic_store(&counts.load_result, 0);
    }
    char *copy = result ? NULL : malloc(64);
    if (copy) {
        memcpy(copy, image, 64);
    }
    *module = copy;
    return result;
}

int cuModuleUnload(void *module) {
    needs_context();
    atomic_fetch_add(&counts.unloads, 1);
    free(module);
    return 0;
}

/* A function is its name, kept for the life of the process. */
int cuModuleGetFunction(void **function, void *module, const char *name) {
    static char names[256][64];
    needs_context();
    if (!module || strstr(name, "absent")) {
        return 500;
    }
    int at = atomic_fetch_add(&counts.functions, 1) % 256;
    (void)snprintf(names[at], sizeof names[at], "%s", name);
    *function = names[at];
    return 0;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    atomic_fetch_add(&counts.attributes, attribute == OCT_CU_FUNC_SHARED && value > 0);
    return function ? 0 : 1;
}

/* ---- streams and graphs ------------------------------------------------------------------ */

/* A stream that was made; what is put there while it captures becomes nodes. An executable
 * graph is one, too. */
typedef struct fake_stream {
    bool is_capturing;
    int nodes;
    int types[8]; /* as CUgraphNodeType */
} fake_stream;

static fake_stream *_Atomic last_stream; /* the one there is */

int cuStreamCreate(void **stream, unsigned flags) {
    needs_context();
    fake_stream *made = flags == OCT_CU_STREAM_UNTIED ? calloc(1, sizeof *made) : NULL;
    atomic_fetch_add(&counts.streams, made != NULL);
    atomic_store(&last_stream, made);
    *stream = made;
    return made ? 0 : 1;
}

int cuStreamDestroy_v2(void *stream) {
    needs_context();
    atomic_fetch_sub(&counts.streams, 1);
    atomic_store(&last_stream, NULL);
    free(stream);
    return 0;
}

static fake_stream *stream_of(void *stream) {
    return stream && stream == atomic_load(&last_stream) ? stream : NULL;
}

/* Whether a node was added instead of the work that was asked for. */
static bool is_recorded(void *stream, int type) {
    fake_stream *r = stream_of(stream);
    if (!r || !r->is_capturing) {
        return false;
    }
    r->types[r->nodes++ % 8] = type;
    return true;
}

int cuStreamIsCapturing(void *stream, int *capturing) {
    fake_stream *r = stream_of(stream);
    *capturing = r ? r->is_capturing : atomic_load(&counts.is_capturing);
    return 0;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    fake_stream *r = stream_of(stream);
    needs_context();
    atomic_fetch_add(&counts.strict_loads, capture_mode != OCT_CU_CAPTURE_RELAXED);
    if (!r || r->is_capturing || mode != OCT_CU_CAPTURE_RELAXED) {
        return 1;
    }
    r->is_capturing = true;
    r->nodes = 0;
    return 0;
}

int cuStreamEndCapture(void *stream, void **graph) {
    fake_stream *r = stream_of(stream), *made = r ? malloc(sizeof *made) : NULL;
    if (!made) {
        return 1;
    }
    *made = *r;
    r->is_capturing = false;
    atomic_fetch_add(&counts.graphs, 1);
    *graph = made;
    return 0;
}

int cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    fake_stream *r = graph;
    *count = (size_t)r->nodes;
    for (int i = 0; nodes && i < r->nodes; i++) {
        nodes[i] = &r->types[i % 8];
    }
    return 0;
}

int cuGraphNodeGetType(void *node, int *type) {
    *type = *(int *)node;
    return 0;
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    needs_context();
    atomic_fetch_add(&counts.strict_loads, capture_mode != OCT_CU_CAPTURE_RELAXED);
    int result = flags ? 1 : atomic_load(&counts.graph_result);
    fake_stream *made = result ? NULL : malloc(sizeof *made);
    if (made) {
        memcpy(made, graph, sizeof *made);
        atomic_fetch_add(&counts.graph_execs, 1);
    }
    *exec = made;
    return result;
}

int cuGraphLaunch(void *exec, void *stream) {
    needs_context();
    if (stream_of(stream)) {
        return 1;
    }
    atomic_fetch_add(&counts.graph_nodes, ((fake_stream *)exec)->nodes);
    atomic_fetch_add(&counts.graph_launches, 1);
    return atomic_load(&counts.launch_result);
}

int cuGraphExecDestroy(void *exec) {
    needs_context();
    atomic_fetch_sub(&counts.graph_execs, 1);
    free(exec);
    return 0;
}

int cuGraphDestroy(void *graph) {
    atomic_fetch_sub(&counts.graphs, 1);
    free(graph);
    return 0;
}

/* ---- work -------------------------------------------------------------------------------- */

int cuLaunchKernelEx(const oct_cu_launch *how, void *function, void **params, void **extra) {
    needs_context();
    if (params || how->block[1] != 1 || how->block[2] != 1 || extra[0] != OCT_CU_PARAMS_AT ||
        extra[2] != OCT_CU_PARAMS_BYTES || extra[4]) {
        return 1;
    }
    if (is_recorded(how->stream, OCT_CU_KERNEL_NODE)) {
        return atomic_load(&counts.launch_result);
    }
    if (atomic_fetch_add(&counts.launches, 1) == 0) {
        (void)snprintf(counts.kernel, sizeof counts.kernel, "%s", (const char *)function);
        memcpy(counts.grid, how->grid, sizeof counts.grid);
        counts.threads = how->block[0];
        counts.shared_bytes = how->shared_bytes;
        counts.overtakes = how->attribute_count == 1 &&
                           how->attributes->id == OCT_CU_LAUNCH_OVERTAKES &&
                           how->attributes->value == 1;
        memcpy(&counts.params_bytes, extra[3], sizeof counts.params_bytes);
        if (counts.params_bytes <= sizeof counts.params) {
            memcpy(counts.params, extra[1], counts.params_bytes);
        }
    }
    return atomic_load(&counts.launch_result);
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream) {
    needs_context();
    if (is_recorded(stream, 2)) {
        return 0;
    }
    memset((void *)(uintptr_t)to, value, count);
    atomic_fetch_add(&counts.fills, 1);
    return atomic_load(&counts.memset_result);
}

int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream) {
    needs_context();
    if (is_recorded(stream, 2)) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        memcpy((char *)(uintptr_t)to + 4 * i, &value, 4);
    }
    atomic_fetch_add(&counts.fills, 1);
    return to % 4 ? 1 : atomic_load(&counts.memset_result);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    needs_context();
    if (is_recorded(stream, 1)) {
        return 0;
    }
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    atomic_fetch_add(&counts.copies, 1);
    return 0;
}

/* ---- NVRTC: a program is its name; its cubin names it and the architecture ----------------
 */

const char *nvrtcGetErrorString(int result) {
    return result == 6   ? "NVRTC_ERROR_COMPILATION"
           : result == 1 ? "NVRTC_ERROR_OUT_OF_MEMORY"
                         : "NVRTC_ERROR";
}

int nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return 0;
}

static const int archs[] = {75, 80, 86, 89, 90, 100, 120};

int nvrtcGetNumSupportedArchs(int *count) {
    *count = sizeof archs / sizeof archs[0];
    return 0;
}

int nvrtcGetSupportedArchs(int *out) {
    memcpy(out, archs, sizeof archs);
    return 0;
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int header_count,
                       const char *const *headers, const char *const *header_names) {
    *program = calloc(1, 64);
    if (!*program || !source[0] || !headers[header_count - 1][0] || !header_names[0][0]) {
        return 1;
    }
    (void)snprintf(*program, 64, "cubin of %.50s", name);
    (void)pthread_mutex_lock(&texts);
    (void)snprintf(counts.source, sizeof counts.source, "%s", name);
    counts.headers = header_count;
    (void)pthread_mutex_unlock(&texts);
    return 0;
}

int nvrtcDestroyProgram(void **program) {
    free(*program);
    *program = NULL;
    return 0;
}

int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    (void)program;
    atomic_fetch_add(&counts.compiles, 1);
    (void)pthread_mutex_lock(&texts);
    counts.options[0] = '\0';
    for (int i = 0; i < count; i++) {
        size_t used = strlen(counts.options);
        (void)snprintf(counts.options + used, sizeof counts.options - used, "%s ", options[i]);
    }
    (void)pthread_mutex_unlock(&texts);
    return atomic_load(&counts.compile_result);
}

static const char *log_text(void) {
    return counts.log ? counts.log : "kernel.cu(3): error: expected a ;";
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    (void)program;
    *bytes = strlen(log_text()) + 1;
    return 0;
}

int nvrtcGetProgramLog(void *program, char *log) {
    (void)program;
    memcpy(log, log_text(), strlen(log_text()) + 1);
    return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    (void)program;
    *bytes = 64;
    return 0;
}

int nvrtcGetCUBIN(void *program, char *cubin) {
    memcpy(cubin, program, 64);
    return 0;
}
