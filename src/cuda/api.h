/* api.h - functions of the CUDA driver, NVRTC and cuBLASLt: declared by hand, found at run
 * time.
 *
 * The lists are all that is used of each library, so a stand-in provides exactly these. Every
 * function without a note is in every CUDA from 11.8 on. Handles are pointers to the library's
 * own objects, enumerations are int, a CUdevice is an int, a CUdeviceptr 64 bits. */
#ifndef OCT_CUDA_API_H
#define OCT_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

/* A CUlaunchAttribute whose value is an int, and a CUlaunchConfig. */
typedef struct oct_cu_launch_attribute {
    int id, reserved;
    int value, rest[15];
} oct_cu_launch_attribute;

typedef struct oct_cu_launch {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void *stream;
    const oct_cu_launch_attribute *attributes;
    unsigned attribute_count;
} oct_cu_launch;

/* X(name, parameters) of the driver: each returns a CUresult. The name is the exported one:
 * what cuda.h calls cuCtxPushCurrent is cuCtxPushCurrent_v2. */
#define OCT_DRIVER_CALLS(X)                                                                    \
    X(cuInit, (unsigned flags))                                                                \
    X(cuDriverGetVersion, (int *version))                                                      \
    X(cuGetErrorName, (int result, const char **name))                                         \
    X(cuGetErrorString, (int result, const char **text))                                       \
    X(cuDeviceGetCount, (int *count))                                                          \
    X(cuDeviceGet, (int *device, int index))                                                   \
    X(cuDeviceGetName, (char *name, int size, int device))                                     \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device))                           \
    X(cuDeviceTotalMem_v2, (size_t *bytes, int device))                                        \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                  \
    X(cuDevicePrimaryCtxRelease_v2, (int device))                                              \
    X(cuCtxGetCurrent, (void **context))                                                       \
    X(cuCtxPushCurrent_v2, (void *context))                                                    \
    X(cuCtxPopCurrent_v2, (void **context))                                                    \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                                          \
    X(cuModuleLoadData, (void **module, const void *image))                                    \
    X(cuModuleUnload, (void *module))                                                          \
    X(cuModuleGetFunction, (void **function, void *module, const char *name))                  \
    X(cuFuncSetAttribute, (void *function, int attribute, int value))                          \
    X(cuLaunchKernelEx, (const oct_cu_launch *launch, void *function, void **params,           \
                         void **extra)) /* CUDA 11.8 */                                        \
    X(cuMemsetD8Async, (uint64_t to, unsigned char value, size_t count, void *stream))         \
    X(cuMemsetD32Async, (uint64_t to, unsigned value, size_t count, void *stream))             \
    X(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *stream))          \
    X(cuStreamCreate, (void **stream, unsigned flags))                                         \
    X(cuStreamDestroy_v2, (void *stream))                                                      \
    X(cuStreamIsCapturing, (void *stream, int *state))                                         \
    X(cuStreamBeginCapture_v2, (void *stream, int mode))                                       \
    X(cuStreamEndCapture, (void *stream, void **graph))                                        \
    X(cuGraphGetNodes, (void *graph, void **nodes, size_t *count))                             \
    X(cuGraphNodeGetType, (void *node, int *type))                                             \
    X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags))       \
    X(cuGraphLaunch, (void *exec, void *stream))                                               \
    X(cuGraphExecDestroy, (void *exec))                                                        \
    X(cuGraphDestroy, (void *graph))

/* X(result, name, parameters) of NVRTC. */
#define OCT_NVRTC_CALLS(X)                                                                     \
    X(const char *, nvrtcGetErrorString, (int result))                                         \
    X(int, nvrtcVersion, (int *major, int *minor))                                             \
    X(int, nvrtcGetNumSupportedArchs, (int *count))                                            \
    X(int, nvrtcGetSupportedArchs, (int *archs))                                               \
    X(int, nvrtcCreateProgram,                                                                 \
      (void **program, const char *source, const char *name, int header_count,                 \
       const char *const *headers, const char *const *header_names))                           \
    X(int, nvrtcDestroyProgram, (void **program))                                              \
    X(int, nvrtcCompileProgram, (void *program, int count, const char *const *options))        \
    X(int, nvrtcGetProgramLogSize, (void *program, size_t *bytes))                             \
    X(int, nvrtcGetProgramLog, (void *program, char *log))                                     \
    X(int, nvrtcGetCUBINSize, (void *program, size_t *bytes))                                  \
    X(int, nvrtcGetCUBIN, (void *program, char *cubin))

/* X(result, name, parameters) of cuBLASLt. A matmul descriptor is 32 words of 64 bits, a
 * layout, a preference and an algorithm 8 each: cublasLt.h publishes these sizes so that
 * descriptors may live on the stack, made by the _internal functions behind its inline ones. */
#define OCT_CUBLASLT_CALLS(X)                                                                  \
    X(size_t, cublasLtGetVersion, (void))                                                      \
    X(const char *, cublasLtGetStatusString, (int status))                                     \
    X(int, cublasLtCreate, (void **handle))                                                    \
    X(int, cublasLtDestroy, (void *handle))                                                    \
    X(int, cublasLtMatmulDescInit_internal,                                                    \
      (void *operation, size_t bytes, int compute, int scale_type))                            \
    X(int, cublasLtMatmulDescSetAttribute,                                                     \
      (void *operation, int attribute, const void *value, size_t bytes))                       \
    X(int, cublasLtMatrixLayoutInit_internal,                                                  \
      (void *layout, size_t bytes, int type, uint64_t rows, uint64_t cols, int64_t ld))        \
    X(int, cublasLtMatrixLayoutSetAttribute,                                                   \
      (void *layout, int attribute, const void *value, size_t bytes))                          \
    X(int, cublasLtMatmulPreferenceInit_internal, (void *preference, size_t bytes))            \
    X(int, cublasLtMatmulPreferenceSetAttribute,                                               \
      (void *preference, int attribute, const void *value, size_t bytes))                      \
    X(int, cublasLtMatmulAlgoGetHeuristic,                                                     \
      (void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,    \
       int wanted, void *results, int *count))                                                 \
    X(int, cublasLtMatmul,                                                                     \
      (void *handle, void *operation, const void *alpha, const void *a, void *a_layout,        \
       const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,         \
       void *d, void *d_layout, const void *algo, void *workspace, size_t workspace_bytes,     \
       void *stream))

typedef struct oct_driver {
#define X(name, parameters) int(*name) parameters;
    OCT_DRIVER_CALLS(X)
#undef X
} oct_driver;

typedef struct oct_nvrtc {
#define X(result, name, parameters) result(*name) parameters;
    OCT_NVRTC_CALLS(X)
#undef X
} oct_nvrtc;

typedef struct oct_cublaslt {
#define X(result, name, parameters) result(*name) parameters;
    OCT_CUBLASLT_CALLS(X)
#undef X
} oct_cublaslt;

/* The CUresult that has a status of its own, and those of code that is none. */
#define OCT_CU_OUT_OF_MEMORY 2
#define OCT_CU_INVALID_IMAGE 200
#define OCT_CU_NO_BINARY 209
#define OCT_CU_INVALID_SOURCE 300

/* CUdevice_attributes, CUfunction_attributes, capture modes and launch parameters in use. */
#define OCT_CU_PROCESSORS 16
#define OCT_CU_L2_BYTES 38
#define OCT_CU_MAJOR 75
#define OCT_CU_MINOR 76
#define OCT_CU_SHARED_OPTIN 97
#define OCT_CU_FUNC_SHARED 8
#define OCT_CU_CAPTURE_RELAXED 2
#define OCT_CU_STREAM_UNTIED 1 /* it does not wait for the default stream */
#define OCT_CU_KERNEL_NODE 0
/* A launch with it may begin before its predecessor in the stream has ended. */
#define OCT_CU_LAUNCH_OVERTAKES 6
#define OCT_CU_PARAMS_AT ((void *)1)
#define OCT_CU_PARAMS_BYTES ((void *)2)

#endif
