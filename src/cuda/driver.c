/* driver.c - the CUDA driver, found once for the process, and its errors in words. */
#include "cuda/driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/fail.h"
#include "cuda/device.h"
#include "cuda/library.h"

static const oct_symbol symbols[] = {
#define X(name, parameters) {#name, offsetof(oct_driver, name)},
    OCT_DRIVER_CALLS(X)
#undef X
        {NULL, 0},
};

static const char *const sonames[] = {"libcuda.so.1", NULL};
static const oct_library library = {
    .title = "CUDA driver",
    .sonames = sonames,
    .fix = "install NVIDIA's driver, and in a container run it with the GPUs shown",
};

/* The process has one driver. `found` is written under the lock, once, before `ready` is set;
 * whoever sees `ready` may read it without the lock. A failure is not cached: the next call
 * looks again. */
static oct_driver found;
static atomic_bool ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static octet_status load(octet_error *err) {
    oct_driver table;
    octet_status status = oct_library_load(&table, &library, symbols, err);
    if (!status) {
        found = table;
        atomic_store_explicit(&ready, true, memory_order_release);
    }
    return status;
}

octet_status oct_driver_get(const oct_driver **out, octet_error *err) {
    octet_status status = OCTET_OK;
    if (!atomic_load_explicit(&ready, memory_order_acquire)) {
        (void)pthread_mutex_lock(&lock);
        if (!atomic_load_explicit(&ready, memory_order_relaxed)) {
            status = load(err);
        }
        (void)pthread_mutex_unlock(&lock);
    }
    if (status) {
        return status;
    }
    int result = found.cuInit(0);
    if (result) {
        return oct_cuda_failed(err, "cuInit", result);
    }
    *out = &found;
    return OCTET_OK;
}

int oct_driver_version(const oct_driver *driver) {
    int version = 0;
    return driver->cuDriverGetVersion(&version) ? 0 : version;
}

/* What a kernel that ran before did to the context: every later call reports it again. */
static bool is_of_an_earlier_kernel(int result) {
    static const int errors[] = {
        214, /* ECC_UNCORRECTABLE */
        220, /* NVLINK_UNCORRECTABLE */
        226, /* CONTAINED */
        700, /* ILLEGAL_ADDRESS */
        702, /* LAUNCH_TIMEOUT */
        710, /* ASSERT */
        714, /* HARDWARE_STACK_ERROR */
        715, /* ILLEGAL_INSTRUCTION */
        716, /* MISALIGNED_ADDRESS */
        717, /* INVALID_ADDRESS_SPACE */
        718, /* INVALID_PC */
        719, /* LAUNCH_FAILED */
        721, /* TENSOR_MEMORY_LEAK */
    };
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i] == result) {
            return true;
        }
    }
    return false;
}

octet_status oct_cuda_failed(octet_error *err, const char *call, int result) {
    const char *name = NULL, *text = NULL;
    if (atomic_load_explicit(&ready, memory_order_acquire)) {
        (void)found.cuGetErrorName(result, &name);
        (void)found.cuGetErrorString(result, &text);
    }
    char number[32];
    (void)snprintf(number, sizeof number, "CUDA error %d", result);
    name = name ? name : number;
    text = text ? text : "no description";
    if (is_of_an_earlier_kernel(result)) {
        return oct_fail(
            err, OCTET_DEVICE,
            "%s: %s (%s): a kernel that was launched earlier in this process, by "
            "whomever, failed while it ran, and CUDA reports it here; this call did "
            "nothing. CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer finds it",
            call, name, text);
    }
    octet_status status = result == OCT_CU_OUT_OF_MEMORY ? OCTET_NO_MEMORY : OCTET_DEVICE;
    return oct_fail(err, status, "%s: %s (%s)", call, name, text);
}
