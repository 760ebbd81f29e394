/* idle_gpu.c - stands in for the CUDA driver, NVRTC and cuBLASLt: takes every call, does
 * nothing. What a run costs the host is then the library's own. */
#include <string.h>

#include "cuda/api.h"

/* The exported names; the lists in api.h are all that is asked for. */
#define X(name, parameters) __attribute__((visibility("default"))) int name parameters;
OCT_DRIVER_CALLS(X)
#undef X
#define X(result, name, parameters)                                                            \
    __attribute__((visibility("default"))) result name parameters;
OCT_NVRTC_CALLS(X)
OCT_CUBLASLT_CALLS(X)
#undef X

static const char thing = 0; /* what every handle points to */

static void *handle(void) {
    return (void *)(uintptr_t)&thing;
}

/* ---- the driver ------------------------------------------------------------------------ */

int cuInit(unsigned flags) {
    return (int)(flags & 0);
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

int cuGetErrorName(int result, const char **name) {
    *name = "idle";
    return result & 0;
}

int cuGetErrorString(int result, const char **text) {
    *text = "idle";
    return result & 0;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int index) {
    *device = index;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    memset(name, 0, (size_t)size);
    return 0;
}

/* An H200's. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == OCT_CU_MAJOR          ? 9
             : attribute == OCT_CU_MINOR        ? device & 0
             : attribute == OCT_CU_PROCESSORS   ? 132
             : attribute == OCT_CU_SHARED_OPTIN ? 227 << 10
                                                : 50 << 20;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)139 << 30;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = handle();
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    return device & 0;
}

int cuCtxGetCurrent(void **context) {
    *context = handle();
    return 0;
}

int cuCtxPushCurrent_v2(void *context) {
    (void)context;
    return 0;
}

int cuCtxPopCurrent_v2(void **context) {
    *context = handle();
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    (void)mode;
    return 0;
}

int cuModuleLoadData(void **module, const void *image) {
    (void)image;
    *module = handle();
    return 0;
}

int cuModuleUnload(void *module) {
    (void)module;
    return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    (void)name;
    *function = handle();
    return 0;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)function;
    return (attribute | value) & 0;
}

int cuLaunchKernelEx(const oct_cu_launch *launch, void *function, void **params, void **extra) {
    (void)launch;
    (void)function;
    (void)params;
    (void)extra;
    return 0;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream) {
    (void)stream;
    return (int)((to | value | count) & 0);
}

int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream) {
    (void)stream;
    return (int)((to | value | count) & 0);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    (void)stream;
    return (int)((to | from | bytes) & 0);
}

int cuStreamCreate(void **stream, unsigned flags) {
    *stream = handle();
    return (int)(flags & 0);
}

int cuStreamDestroy_v2(void *stream) {
    (void)stream;
    return 0;
}

int cuStreamIsCapturing(void *stream, int *state) {
    (void)stream;
    *state = 0;
    return 0;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    (void)stream;
    return mode & 0;
}

int cuStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    *graph = handle();
    return 0;
}

int cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    (void)graph;
    *count = 1;
    if (nodes) {
        nodes[0] = handle();
    }
    return 0;
}

int cuGraphNodeGetType(void *node, int *type) {
    (void)node;
    *type = OCT_CU_KERNEL_NODE;
    return 0;
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    (void)graph;
    *exec = handle();
    return (int)(flags & 0);
}

int cuGraphLaunch(void *exec, void *stream) {
    (void)exec;
    (void)stream;
    return 0;
}

int cuGraphExecDestroy(void *exec) {
    (void)exec;
    return 0;
}

int cuGraphDestroy(void *graph) {
    (void)graph;
    return 0;
}

/* ---- NVRTC ----------------------------------------------------------------------------- */

const char *nvrtcGetErrorString(int result) {
    (void)result;
    return "idle";
}

int nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *count) {
    *count = 1;
    return 0;
}

int nvrtcGetSupportedArchs(int *archs) {
    *archs = 90;
    return 0;
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int header_count,
                       const char *const *headers, const char *const *header_names) {
    (void)source;
    (void)name;
    (void)headers;
    (void)header_names;
    *program = handle();
    return header_count & 0;
}

int nvrtcDestroyProgram(void **program) {
    *program = NULL;
    return 0;
}

int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    (void)program;
    (void)options;
    return count & 0;
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    (void)program;
    *bytes = 1;
    return 0;
}

int nvrtcGetProgramLog(void *program, char *log) {
    (void)program;
    *log = '\0';
    return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    (void)program;
    *bytes = 1;
    return 0;
}

int nvrtcGetCUBIN(void *program, char *cubin) {
    (void)program;
    *cubin = '\0';
    return 0;
}

/* ---- cuBLASLt -------------------------------------------------------------------------- */

size_t cublasLtGetVersion(void) {
    return 130000;
}

const char *cublasLtGetStatusString(int status) {
    (void)status;
    return "idle";
}

int cublasLtCreate(void **out) {
    *out = handle();
    return 0;
}

int cublasLtDestroy(void *out) {
    (void)out;
    return 0;
}

int cublasLtMatmulDescInit_internal(void *operation, size_t bytes, int compute,
                                    int scale_type) {
    memset(operation, 0, bytes);
    return (compute | scale_type) & 0;
}

int cublasLtMatmulDescSetAttribute(void *operation, int attribute, const void *value,
                                   size_t bytes) {
    (void)operation;
    (void)value;
    return (int)(bytes & 0) | (attribute & 0);
}

int cublasLtMatrixLayoutInit_internal(void *layout, size_t bytes, int type, uint64_t rows,
                                      uint64_t cols, int64_t ld) {
    memset(layout, 0, bytes);
    return (type & 0) | (int)((rows | cols | (uint64_t)ld) & 0);
}

int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value,
                                     size_t bytes) {
    (void)layout;
    (void)value;
    return (int)(bytes & 0) | (attribute & 0);
}

int cublasLtMatmulPreferenceInit_internal(void *preference, size_t bytes) {
    memset(preference, 0, bytes);
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                         size_t bytes) {
    (void)preference;
    (void)value;
    return (int)(bytes & 0) | (attribute & 0);
}

/* A cublasLtMatmulHeuristicResult_t of zeros is an algorithm that wants no memory. */
int cublasLtMatmulAlgoGetHeuristic(void *lt, void *operation, void *a, void *b, void *c,
                                   void *d, void *preference, int wanted, void *results,
                                   int *count) {
    (void)lt;
    (void)operation;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)preference;
    memset(results, 0, 96);
    *count = wanted > 0;
    return 0;
}

int cublasLtMatmul(void *lt, void *operation, const void *alpha, const void *a, void *a_layout,
                   const void *b, void *b_layout, const void *beta, const void *c,
                   void *c_layout, void *d, void *d_layout, const void *algo, void *workspace,
                   size_t workspace_bytes, void *stream) {
    (void)lt;
    (void)operation;
    (void)alpha;
    (void)a;
    (void)a_layout;
    (void)b;
    (void)b_layout;
    (void)beta;
    (void)c;
    (void)c_layout;
    (void)d;
    (void)d_layout;
    (void)algo;
    (void)workspace;
    (void)stream;
    return (int)(workspace_bytes & 0);
}
