/* open.h - what an open GPU is made of. Only the runtime's own files look inside. */
#ifndef OCT_CUDA_OPEN_H
#define OCT_CUDA_OPEN_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"

/* A kernel that has been used. Made under its module's lock, then found by anyone without it.
 */
typedef struct oct_kernel {
    struct oct_kernel *next;
    const char *name;
    void *function;
    atomic_uint shared_bytes; /* dynamic shared memory that has been asked for */
} oct_kernel;

#define OCT_KERNEL_LISTS 32 /* a power of two; a module has some tens of kernels */

/* A module's kernels for one type of input. */
typedef struct oct_module {
    pthread_mutex_t lock;
    void *handle; /* CUmodule; NULL until first used */
    _Atomic(oct_kernel *) kernels[OCT_KERNEL_LISTS];
} oct_module;

struct octet_cuda {
    const oct_driver *driver;
    int driver_version;
    bool overtakes; /* a kernel may begin before its predecessor has ended: kernels/chain.h */
    int device;
    void *context;
    oct_cuda_facts facts;
    char *libraries; /* NULL: none */
    char *cache;     /* NULL: none */
    oct_module modules[OCT_MODULE_PARTS];
    /* Each of the rest is made once, under a lock, and then read without it. */
    pthread_mutex_t lock;
    atomic_bool has_compiler, has_cublaslt;
    oct_compiler compiler;
    oct_cublaslt cublaslt;
    pthread_mutex_t hold_lock; /* of what is held, whose making loads libraries */
    _Atomic(void *) held;
    const oct_cuda_holder *holder;
    pthread_mutex_t capture_lock; /* one capture at a time; of the stream that it needs */
    void *capture_stream;         /* CUstream; NULL until first used */
};

/* NVRTC, loaded on first use. */
octet_status oct_cuda_compiler(const oct_compiler **out, octet_cuda *cuda, octet_error *err);

/* The kernel of a launch with the shared memory it asks for, its module compiled and loaded
 * where it is not. The context is current. */
octet_status oct_cuda_kernel(const oct_kernel **out, octet_cuda *cuda,
                             const oct_cuda_launch *launch, octet_error *err);

/* What differs from one launch of a kernel to the next. */
typedef struct oct_cuda_params {
    const void
        *at; /* launch->params_bytes of them; those of the launch itself are not looked at */
    void *stream;
} oct_cuda_params;

/* Puts a kernel of oct_cuda_kernel on a stream. The context is current. */
octet_status oct_cuda_launch_ready(octet_cuda *cuda, const oct_kernel *kernel,
                                   const oct_cuda_launch *launch, const oct_cuda_params *with,
                                   octet_error *err);

/* Unloads every module; the context is current. */
void oct_cuda_unload(octet_cuda *cuda);

#endif
