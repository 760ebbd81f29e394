/* emulate_driver.cpp - the driver and NVRTC, as far as the library uses them, over the
 * emulation.
 *
 * Device memory is the process's. Compiling gives a module's name as its code, loading it opens
 * the library that was made of it. A stream does everything at once, unless it is being
 * captured; any handle is one. */
#include "cuda/api.h"
#include "emulate_launch.h"

#include <atomic>
#include <dlfcn.h>
#include <functional>
#include <mutex>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

/* The lists are the library's own: a function whose parameters changed does not compile. */
#define X(name, parameters) extern "C" int name parameters;
OCT_DRIVER_CALLS(X)
#undef X
#define X(result, name, parameters) extern "C" result name parameters;
OCT_NVRTC_CALLS(X)
#undef X

namespace {

constexpr int ARCHS[] = {90, 80, 89, 100, 120}; /* of the GPUs, which are the same otherwise */
constexpr int GPUS = sizeof ARCHS / sizeof ARCHS[0];
constexpr int INVALID = 1, NOT_FOUND = 500;

const char context_object = 0;
void *const the_context = const_cast<char *>(&context_object);
thread_local int depth; /* of the thread's contexts, all of them this one */
thread_local int capture_mode;

std::atomic<int> launches, fills;

struct module {
    char name[64];
};

/* A stream that was made, a graph, and one that can be launched: work in order. */
struct graph {
    bool capturing = false;
    std::vector<int> types; /* CUgraphNodeTypes */
    std::vector<std::function<void()>> work;
};

std::mutex streams_lock;
std::set<void *> streams; /* those that were made */

/* The stream, where it is one that was made. */
graph *stream_of(void *stream) {
    std::lock_guard<std::mutex> guard(streams_lock);
    return streams.count(stream) ? static_cast<graph *>(stream) : nullptr;
}

void *address(uint64_t at) {
    return reinterpret_cast<void *>(static_cast<uintptr_t>(at));
}

} // namespace

void emulated_do(void *stream, int type, std::function<void()> work) {
    graph *g = stream_of(stream);
    if (g && g->capturing) {
        g->types.push_back(type);
        g->work.push_back(std::move(work));
    } else {
        work();
    }
}

int emulated_launches(void) {
    return launches;
}

int emulated_fills(void) {
    return fills;
}

int emulated_is_relaxed(void) {
    return capture_mode == OCT_CU_CAPTURE_RELAXED;
}

int cuInit(unsigned) {
    return 0;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

int cuGetErrorName(int result, const char **name) {
    *name = result == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}

int cuGetErrorString(int, const char **text) {
    *text = "emulated";
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = GPUS;
    return 0;
}

int cuDeviceGet(int *device, int index) {
    *device = index;
    return index < 0 || index >= GPUS ? INVALID : 0;
}

int cuDeviceGetName(char *name, int size, int) {
    snprintf(name, static_cast<size_t>(size), "emulation");
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case OCT_CU_PROCESSORS:
        *value = 8;
        return 0;
    case OCT_CU_L2_BYTES:
        *value = 1 << 20;
        return 0;
    case OCT_CU_MAJOR:
        *value = ARCHS[device] / 10;
        return 0;
    case OCT_CU_MINOR:
        *value = ARCHS[device] % 10;
        return 0;
    case OCT_CU_SHARED_OPTIN:
        *value = 227 << 10;
        return 0;
    default:
        return INVALID;
    }
}

int cuDeviceTotalMem_v2(size_t *bytes, int) {
    *bytes = static_cast<size_t>(16) << 30;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int) {
    *context = the_context;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int) {
    return 0;
}

int cuCtxGetCurrent(void **context) {
    *context = depth ? the_context : nullptr;
    return 0;
}

int cuCtxPushCurrent_v2(void *context) {
    depth++;
    return context == the_context ? 0 : INVALID;
}

int cuCtxPopCurrent_v2(void **context) {
    *context = the_context;
    return depth-- ? 0 : INVALID;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    int was = capture_mode;
    capture_mode = *mode;
    *mode = was;
    return 0;
}

/* ---- modules, launches, memory --------------------------------------------------------- */

int cuModuleLoadData(void **out, const void *image) {
    module *m = new module;
    snprintf(m->name, sizeof m->name, "%s", static_cast<const char *>(image));
    *out = m;
    return 0;
}

int cuModuleUnload(void *handle) {
    delete static_cast<module *>(handle);
    return 0;
}

int cuModuleGetFunction(void **function, void *handle, const char *name) {
    *function = emulated_kernel(static_cast<module *>(handle)->name, name);
    return *function ? 0 : NOT_FOUND;
}

int cuFuncSetAttribute(void *, int, int) {
    return 0;
}

int cuLaunchKernelEx(const oct_cu_launch *how, void *function, void **params, void **extra) {
    const unsigned *grid = how->grid;
    if (params || how->block[1] != 1 || how->block[2] != 1 || !depth || !grid[0] || !grid[1] ||
        !grid[2] || grid[1] > 65535 || grid[2] > 65535 || extra[0] != OCT_CU_PARAMS_AT ||
        extra[2] != OCT_CU_PARAMS_BYTES || extra[4]) {
        return INVALID;
    }
    emulated_launch launch = {function,
                              {grid[0], grid[1], grid[2]},
                              how->block[0],
                              how->shared_bytes,
                              extra[1],
                              *static_cast<const size_t *>(extra[3]),
                              how->attribute_count > 0};
    const char *bytes = static_cast<const char *>(launch.params);
    std::vector<char> copy(bytes, bytes + launch.params_bytes);
    emulated_do(how->stream, OCT_CU_KERNEL_NODE, [=]() mutable {
        launches++;
        launch.params = copy.data();
        emulated_run(&launch);
    });
    return 0;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream) {
    emulated_do(stream, 2, [=] {
        fills++;
        emulated_finish();
        memset(address(to), value, count);
    });
    return 0;
}

int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream) {
    if (to % 4) {
        return INVALID;
    }
    emulated_do(stream, 2, [=] {
        fills++;
        emulated_finish();
        for (size_t i = 0; i < count; i++) {
            static_cast<unsigned *>(address(to))[i] = value;
        }
    });
    return 0;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    emulated_do(stream, 1, [=] {
        emulated_finish();
        memmove(address(to), address(from), bytes);
    });
    return 0;
}

/* ---- streams and graphs ---------------------------------------------------------------- */

int cuStreamCreate(void **stream, unsigned) {
    std::lock_guard<std::mutex> guard(streams_lock);
    *stream = new graph;
    streams.insert(*stream);
    return 0;
}

int cuStreamDestroy_v2(void *stream) {
    std::lock_guard<std::mutex> guard(streams_lock);
    streams.erase(stream);
    delete static_cast<graph *>(stream);
    return 0;
}

int cuStreamIsCapturing(void *stream, int *capturing) {
    graph *g = stream_of(stream);
    *capturing = g && g->capturing;
    return 0;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    graph *g = stream_of(stream);
    if (!g || g->capturing || !depth || mode != OCT_CU_CAPTURE_RELAXED) {
        return INVALID;
    }
    *g = graph();
    g->capturing = true;
    return 0;
}

int cuStreamEndCapture(void *stream, void **out) {
    graph *g = stream_of(stream);
    if (!g || !g->capturing) {
        return INVALID;
    }
    g->capturing = false;
    *out = new graph(*g);
    return 0;
}

int cuGraphGetNodes(void *handle, void **nodes, size_t *count) {
    graph *g = static_cast<graph *>(handle);
    *count = g->types.size();
    for (size_t i = 0; nodes && i < *count; i++) {
        nodes[i] = &g->types[i];
    }
    return 0;
}

int cuGraphNodeGetType(void *node, int *type) {
    *type = *static_cast<int *>(node);
    return 0;
}

int cuGraphInstantiateWithFlags(void **exec, void *handle, unsigned long long flags) {
    *exec = new graph(*static_cast<graph *>(handle));
    return flags ? INVALID : 0;
}

int cuGraphLaunch(void *exec, void *) {
    for (auto &work : static_cast<graph *>(exec)->work) {
        work();
    }
    return depth ? 0 : INVALID;
}

int cuGraphExecDestroy(void *exec) {
    delete static_cast<graph *>(exec);
    return 0;
}

int cuGraphDestroy(void *handle) {
    delete static_cast<graph *>(handle);
    return 0;
}

/* ---- NVRTC ----------------------------------------------------------------------------- */

const char *nvrtcGetErrorString(int) {
    return "emulated";
}

int nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *count) {
    *count = GPUS;
    return 0;
}

int nvrtcGetSupportedArchs(int *archs) {
    memcpy(archs, ARCHS, sizeof ARCHS);
    return 0;
}

/* "cuda/kernels/moves.cu" is the module moves. */
int nvrtcCreateProgram(void **program, const char *, const char *name, int, const char *const *,
                       const char *const *) {
    const char *slash = strrchr(name, '/');
    module *m = new module;
    snprintf(m->name, sizeof m->name, "%s", slash ? slash + 1 : name);
    m->name[strcspn(m->name, ".")] = '\0';
    *program = m;
    return 0;
}

int nvrtcDestroyProgram(void **program) {
    delete static_cast<module *>(*program);
    *program = nullptr;
    return 0;
}

int nvrtcCompileProgram(void *, int, const char *const *) {
    return 0;
}

int nvrtcGetProgramLogSize(void *, size_t *bytes) {
    *bytes = 1;
    return 0;
}

int nvrtcGetProgramLog(void *, char *log) {
    *log = '\0';
    return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    *bytes = strlen(static_cast<module *>(program)->name) + 1;
    return 0;
}

int nvrtcGetCUBIN(void *program, char *cubin) {
    strcpy(cubin, static_cast<module *>(program)->name);
    return 0;
}
