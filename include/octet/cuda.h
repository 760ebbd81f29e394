/* cuda.h - a GPU made ready to run plans. */
#ifndef OCTET_CUDA_H
#define OCTET_CUDA_H

#include "octet/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A GPU: its driver, the kernels compiled for it, and its GEMM library. Nothing of CUDA is
 * needed to build or load this library; the driver, NVRTC and cuBLASLt are found at run time.
 * Goes into octet_exec. Every call on it is safe from many threads and on many streams. */
typedef struct octet_cuda octet_cuda;

typedef struct octet_cuda_options {
    uint32_t size;
    uint32_t index;        /* of the GPU */
    const char *libraries; /* folders of NVRTC and cuBLASLt, joined by ':', looked in after what
                            * the process has loaded and before the system's; may be NULL */
    const char *cache;     /* folder of compiled kernels. NULL: $OCTET_CACHE, else octet in
                            * $XDG_CACHE_HOME or ~/.cache. "": none. A relative path is
                            * refused; a folder that cannot be used, or that others could have
                            * written, is ignored: docs/caches.md. */
} octet_cuda_options;

#define OCTET_CUDA_OPTIONS_INIT OCTET_SIZED(octet_cuda_options)

/* How many GPUs the driver shows; 0 without a driver. Never fails. Loads the driver, which
 * stays for the life of the process, as every call here does. */
OCTET_API int octet_cuda_count(void);
/* What plans for a GPU are made with: its kind, index and compute capability. OCTET_UNSUPPORTED
 * without a driver, OCTET_INVALID where there is no such GPU. */
OCTET_API OCTET_CHECKED octet_status octet_cuda_device(octet_device *out, int index,
                                                       octet_error *err);
/* Uses the GPU's primary context, as torch and the CUDA runtime do, and leaves the calling
 * thread's current context as it was. Kernels are compiled, or read from the cache, when they
 * are first used, also while a stream is being captured; so are NVRTC and cuBLASLt loaded, and
 * the call that needed a missing one says so. Allocates; what later calls allocate is for a
 * kernel's or a product's first use alone. */
OCTET_API OCTET_CHECKED octet_status octet_cuda_open(octet_cuda **out,
                                                     const octet_cuda_options *options,
                                                     octet_error *err);
/* What plans for this GPU are best made with, its libraries considered: octet_cuda_device's, or
 * a lower compute capability whose products all are the library's. With cuBLASLt before 12.9
 * that is 8.9 instead of 9.0: 128-blocks are then emulated. A plan for a lower compute
 * capability runs. */
OCTET_API OCTET_CHECKED octet_status octet_cuda_target(octet_device *out, octet_cuda *cuda,
                                                       octet_error *err);
/* One line about the GPU, its libraries and its cache, for people; as by snprintf. A library
 * that is missing is named in its place. */
OCTET_API size_t octet_cuda_print(char *text, size_t size, octet_cuda *cuda);
/* How many algorithms of cuBLASLt it remembers, one for each kind of product; in *most, how
 * many it may: 4096, or as $OCTET_CACHE_ENTRIES says. NULL has none, and the same bound. Any
 * number of threads may call. */
OCTET_API int octet_cuda_algorithms(int *most, octet_cuda *cuda);
/* Nothing that was launched through it may still be running. NULL is allowed. */
OCTET_API void octet_cuda_close(octet_cuda *cuda);

#ifdef __cplusplus
}
#endif

#endif
