/* device.h - what an operation needs of its GPU: its kernels by name, launched on a stream. */
#ifndef OCT_CUDA_DEVICE_H
#define OCT_CUDA_DEVICE_H

#include "cuda/api.h"
#include "cuda/cuda.h"

/* Modules: one .cu file each, compiled when one of its kernels is first used: those for one
 * type of input together, or all where one kernel serves every type. */
#define OCT_CUDA_MODULES(X)                                                                    \
    X(amax)                                                                                    \
    X(per_tensor)                                                                              \
    X(per_tensor_applied)                                                                      \
    X(block)                                                                                   \
    X(block_applied)                                                                           \
    X(mxfp8)                                                                                   \
    X(mxfp8_applied)                                                                           \
    X(mxfp8_folded)                                                                            \
    X(mxfp8_folded_applied)                                                                    \
    X(nvfp4)                                                                                   \
    X(mxfp4)                                                                                   \
    X(four_over_six)                                                                           \
    X(dequantize)                                                                              \
    X(fold)                                                                                    \
    X(moves)                                                                                   \
    X(bias)                                                                                    \
    X(delayed)                                                                                 \
    X(zero)                                                                                    \
    X(sums)                                                                                    \
    X(gemm)                                                                                    \
    X(thin)                                                                                    \
    X(prologue)

typedef enum oct_cuda_module {
#define X(name) OCT_MODULE_##name,
    OCT_CUDA_MODULES(X)
#undef X
        OCT_MODULES
} oct_cuda_module;

/* Parts of modules: one for kernels of any input, one for each of F32, BF16 and F16. */
enum { OCT_MODULE_PARTS = OCT_MODULES * (OCTET_F16 + 1) };

/* One launch. A kernel takes one parameter, a struct of at most 4 KB that the host and the
 * kernel declare in a common header, kernels/<module>.h. */
typedef struct oct_cuda_launch {
    oct_cuda_module module;
    uint8_t input;         /* the type of input that it is for; OCTET_NONE: any */
    const char *kernel;    /* the extern "C" name; a string literal, found by its address */
    uint32_t grid[3];      /* blocks; a grid of 0 blocks launches nothing and succeeds */
    uint32_t threads;      /* of a block, in x */
    uint32_t shared_bytes; /* dynamic; more than 48 KB is asked for on first use */
    const void *params;
    size_t params_bytes;
} oct_cuda_launch;

octet_status oct_cuda_launch_kernel(const oct_cuda_on *on, const oct_cuda_launch *launch,
                                    octet_error *err);
/* `count` 32-bit words set to `value`, on the stream. */
octet_status oct_cuda_fill(const oct_cuda_on *on, void *to, uint32_t value, int64_t count,
                           octet_error *err);
/* A copy within the device, on the stream. */
octet_status oct_cuda_copy(const oct_cuda_on *on, void *to, const void *from, int64_t bytes,
                           octet_error *err);

/* Facts about the GPU, constant from octet_cuda_open on. */
typedef struct oct_cuda_facts {
    int index, arch;  /* 10 * major + minor */
    int processors;   /* multiprocessors */
    int shared_bytes; /* dynamic shared memory a block may ask for */
    int64_t l2_bytes, memory_bytes;
    char name[96];
} oct_cuda_facts;

const oct_cuda_facts *oct_cuda_facts_of(const octet_cuda *cuda);

/* A message for a failed driver call: "cuLaunchKernelEx: CUDA_ERROR_... (description)". The
 * error of a kernel that ran earlier is reported as that. */
octet_status oct_cuda_failed(octet_error *err, const char *call, int result);

/* The same for an operation: it enters where its caller has not. Libraries that launch need it;
 * launches here do it themselves. */
static inline octet_status oct_cuda_enter_on(const oct_cuda_on *on, bool *pushed,
                                             octet_error *err) {
    *pushed = false;
    return on->entered ? OCTET_OK : oct_cuda_enter(on->cuda, pushed, err);
}

/* While a stream is being captured, what is made once (a module, a library's handle) may still
 * be made by this thread between these two. Gives what the leaving call takes. */
int oct_cuda_relax(const octet_cuda *cuda);
void oct_cuda_unrelax(const octet_cuda *cuda, int mode);

/* cuBLASLt's functions, loaded on first use. Borrowed. OCTET_UNSUPPORTED where it is missing.
 */
octet_status oct_cuda_cublaslt(const oct_cublaslt **out, octet_cuda *cuda, octet_error *err);

/* What the products hold on a GPU between calls: made on first use by whichever thread comes
 * first, freed by octet_cuda_close. Both run with the context current and captures relaxed. */
typedef struct oct_cuda_holder {
    octet_status (*make)(void **out, octet_cuda *cuda, octet_error *err);
    void (*free)(void *held, octet_cuda *cuda);
} oct_cuda_holder;

/* Every call on a GPU names the same holder. Without a lock once it is made. */
octet_status oct_cuda_held(void **out, octet_cuda *cuda, const oct_cuda_holder *holder,
                           octet_error *err);
/* The same where it is made already; else NULL. */
void *oct_cuda_held_now(octet_cuda *cuda);

#endif
