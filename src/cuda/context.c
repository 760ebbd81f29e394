/* context.c - the thread's context, and what a GPU makes once: its libraries and what is held.
 */
#include "cuda/library.h"
#include "cuda/open.h"

octet_status oct_cuda_enter(const octet_cuda *cuda, bool *pushed, octet_error *err) {
    void *current = NULL;
    int result = cuda->driver->cuCtxGetCurrent(&current);
    bool away = !result && current != cuda->context;
    if (away) {
        result = cuda->driver->cuCtxPushCurrent_v2(cuda->context);
    }
    *pushed = away && !result;
    const char *call = away ? "cuCtxPushCurrent" : "cuCtxGetCurrent";
    return result ? oct_cuda_failed(err, call, result) : OCTET_OK;
}

void oct_cuda_leave(const octet_cuda *cuda, bool pushed) {
    void *ours;
    if (pushed) {
        (void)cuda->driver->cuCtxPopCurrent_v2(&ours);
    }
}

int oct_cuda_relax(const octet_cuda *cuda) {
    int mode = OCT_CU_CAPTURE_RELAXED;
    (void)cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void oct_cuda_unrelax(const octet_cuda *cuda, int mode) {
    (void)cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
}

octet_status oct_cuda_compiler(const oct_compiler **out, octet_cuda *cuda, octet_error *err) {
    octet_status status = OCTET_OK;
    if (!atomic_load_explicit(&cuda->has_compiler, memory_order_acquire)) {
        (void)pthread_mutex_lock(&cuda->lock);
        if (!atomic_load_explicit(&cuda->has_compiler, memory_order_relaxed)) {
            status =
                oct_compiler_open(&cuda->compiler, cuda->libraries, cuda->driver_version, err);
            atomic_store_explicit(&cuda->has_compiler, !status, memory_order_release);
        }
        (void)pthread_mutex_unlock(&cuda->lock);
    }
    *out = &cuda->compiler;
    return status;
}

static octet_status load_cublaslt(octet_cuda *cuda, octet_error *err) {
    static const oct_symbol symbols[] = {
#define X(result, name, parameters) {#name, offsetof(oct_cublaslt, name)},
        OCT_CUBLASLT_CALLS(X)
#undef X
            {NULL, 0},
    };
    static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    bool older = cuda->driver_version > 0 && cuda->driver_version < 13000;
    const oct_library library = {
        .title = "cuBLASLt",
        .sonames = older ? sonames + 1 : sonames,
        .folders = cuda->libraries,
        .fix = older ? "pip install nvidia-cublas-cu12 (the driver is older than CUDA 13)"
                     : "pip install nvidia-cublas, or name its folder in the options",
    };
    return oct_library_load(&cuda->cublaslt, &library, symbols, err);
}

octet_status oct_cuda_cublaslt(const oct_cublaslt **out, octet_cuda *cuda, octet_error *err) {
    octet_status status = OCTET_OK;
    if (!atomic_load_explicit(&cuda->has_cublaslt, memory_order_acquire)) {
        (void)pthread_mutex_lock(&cuda->lock);
        if (!atomic_load_explicit(&cuda->has_cublaslt, memory_order_relaxed)) {
            status = load_cublaslt(cuda, err);
            atomic_store_explicit(&cuda->has_cublaslt, !status, memory_order_release);
        }
        (void)pthread_mutex_unlock(&cuda->lock);
    }
    *out = &cuda->cublaslt;
    return status;
}

static octet_status make_held(octet_cuda *cuda, const oct_cuda_holder *holder,
                              octet_error *err) {
    bool pushed;
    octet_status status = oct_cuda_enter(cuda, &pushed, err);
    if (status) {
        return status;
    }
    void *made = NULL;
    int mode = oct_cuda_relax(cuda);
    status = holder->make(&made, cuda, err);
    oct_cuda_unrelax(cuda, mode);
    oct_cuda_leave(cuda, pushed);
    if (!status) {
        cuda->holder = holder;
        atomic_store_explicit(&cuda->held, made, memory_order_release);
    }
    return status;
}

octet_status oct_cuda_held(void **out, octet_cuda *cuda, const oct_cuda_holder *holder,
                           octet_error *err) {
    octet_status status = OCTET_OK;
    if (!atomic_load_explicit(&cuda->held, memory_order_acquire)) {
        (void)pthread_mutex_lock(&cuda->hold_lock);
        if (!atomic_load_explicit(&cuda->held, memory_order_relaxed)) {
            status = make_held(cuda, holder, err);
        }
        (void)pthread_mutex_unlock(&cuda->hold_lock);
    }
    *out = atomic_load_explicit(&cuda->held, memory_order_acquire);
    return status;
}

void *oct_cuda_held_now(octet_cuda *cuda) {
    return atomic_load_explicit(&cuda->held, memory_order_acquire);
}
