/* open.c - the GPUs of this machine, and one of them made ready. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "cuda/open.h"
#include "cuda/target.h"

#define LEAST_CHAINING 12030 /* graphs take kernels that overtake others from 12.3 on */
#define LEAST_DRIVER 12000   /* an older one loads nothing that NVRTC 12 or 13 compiled */

int octet_cuda_count(void) {
    const oct_driver *driver;
    int count = 0;
    if (oct_driver_get(&driver, NULL) || driver->cuDeviceGetCount(&count)) {
        return 0;
    }
    return count;
}

/* The CUdevice of an index, and the driver. */
static octet_status find(const oct_driver **driver, int *device, int64_t index,
                         octet_error *err) {
    octet_status status = oct_driver_get(driver, err);
    if (status) {
        return status;
    }
    int count = 0;
    int result = (*driver)->cuDeviceGetCount(&count);
    if (result) {
        return oct_cuda_failed(err, "cuDeviceGetCount", result);
    }
    if (index < 0 || index >= count || index > UINT8_MAX) {
        return oct_fail(err, OCTET_INVALID,
                        "GPU %lld was asked for; the driver shows %d, counted from 0",
                        (long long)index, count);
    }
    result = (*driver)->cuDeviceGet(device, (int)index);
    return result ? oct_cuda_failed(err, "cuDeviceGet", result) : OCTET_OK;
}

static octet_status ask(oct_cuda_facts *out, const oct_driver *driver, int device,
                        octet_error *err) {
    int major = 0, minor = 0, l2 = 0;
    const struct {
        int attribute;
        int *value;
    } questions[] = {
        {OCT_CU_MAJOR, &major},
        {OCT_CU_MINOR, &minor},
        {OCT_CU_L2_BYTES, &l2},
        {OCT_CU_PROCESSORS, &out->processors},
        {OCT_CU_SHARED_OPTIN, &out->shared_bytes},
    };
    int result = driver->cuDeviceGetName(out->name, sizeof out->name, device);
    const char *call = result ? "cuDeviceGetName" : "cuDeviceGetAttribute";
    for (size_t i = 0; i < sizeof questions / sizeof questions[0] && !result; i++) {
        result =
            driver->cuDeviceGetAttribute(questions[i].value, questions[i].attribute, device);
    }
    if (result) {
        return oct_cuda_failed(err, call, result);
    }
    size_t bytes = 0;
    result = driver->cuDeviceTotalMem_v2(&bytes, device);
    if (result) {
        return oct_cuda_failed(err, "cuDeviceTotalMem", result);
    }
    out->memory_bytes = (int64_t)bytes;
    out->arch = 10 * major + minor;
    out->l2_bytes = l2;
    return OCTET_OK;
}

octet_status octet_cuda_device(octet_device *out, int index, octet_error *err) {
    const oct_driver *driver;
    int device;
    oct_cuda_facts facts = {.index = index};
    octet_status status = oct_need(out, "out", err);
    status = status ? status : find(&driver, &device, index, err);
    status = status ? status : ask(&facts, driver, device, err);
    if (!status) {
        *out = (octet_device){OCTET_CUDA, (uint8_t)index, (uint16_t)facts.arch};
    }
    return status;
}

/* A copy that the device owns; NULL stays NULL. */
static bool copy_text(char **out, const char *text) {
    if (!text) {
        return true;
    }
    size_t bytes = strlen(text) + 1;
    *out = malloc(bytes);
    return *out && memcpy(*out, text, bytes);
}

static octet_status copy_options(octet_cuda *cuda, const octet_cuda_options *options,
                                 octet_error *err) {
    char cache[OCT_CACHE_PATH];
    octet_status status = oct_cache_check(options->cache, err);
    if (status) {
        return status;
    }
    bool caches = oct_cache_folder(cache, options->cache);
    if (!copy_text(&cuda->libraries, options->libraries) ||
        !copy_text(&cuda->cache, caches ? cache : NULL)) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for the options of a GPU");
    }
    return OCTET_OK;
}

/* Whether kernels can be made for this GPU and loaded by its driver. */
static octet_status check_age(const octet_cuda *cuda, octet_error *err) {
    int arch = cuda->facts.arch, version = cuda->driver_version;
    if (arch < OCT_ARCH_LEAST) {
        return oct_fail(err, OCTET_UNSUPPORTED,
                        "%s has compute capability %d.%d; Octet's kernels need %d.%d or more",
                        cuda->facts.name, arch / 10, arch % 10, OCT_ARCH_LEAST / 10,
                        OCT_ARCH_LEAST % 10);
    }
    if (version > 0 && version < LEAST_DRIVER) {
        return oct_fail(err, OCTET_UNSUPPORTED,
                        "the driver serves CUDA %d.%d; Octet's kernels need %d.0 or more: "
                        "install a newer driver",
                        version / 1000, version / 10 % 100, LEAST_DRIVER / 1000);
    }
    return OCTET_OK;
}

static octet_status start(octet_cuda *cuda, const octet_cuda_options *options,
                          octet_error *err) {
    octet_status status = find(&cuda->driver, &cuda->device, options->index, err);
    status = status ? status : ask(&cuda->facts, cuda->driver, cuda->device, err);
    if (status) {
        return status;
    }
    cuda->facts.index = (int)options->index;
    cuda->driver_version = oct_driver_version(cuda->driver);
    cuda->overtakes =
        oct_arch_overtakes(cuda->facts.arch) && cuda->driver_version >= LEAST_CHAINING;
    status = check_age(cuda, err);
    status = status ? status : copy_options(cuda, options, err);
    if (status) {
        return status;
    }
    int result = cuda->driver->cuDevicePrimaryCtxRetain(&cuda->context, cuda->device);
    return result ? oct_cuda_failed(err, "cuDevicePrimaryCtxRetain", result) : OCTET_OK;
}

static void free_all(octet_cuda *cuda) {
    free(cuda->libraries);
    free(cuda->cache);
    free(cuda);
}

octet_status octet_cuda_open(octet_cuda **out, const octet_cuda_options *options,
                             octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need(options, "options", err);
    status = status ? status
                    : oct_need_size(options->size, sizeof *options, "octet_cuda_options", err);
    if (status) {
        return status;
    }
    octet_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for a GPU");
    }
    status = start(cuda, options, err);
    if (status) {
        free_all(cuda);
        return status;
    }
    (void)pthread_mutex_init(&cuda->lock, NULL);
    (void)pthread_mutex_init(&cuda->hold_lock, NULL);
    (void)pthread_mutex_init(&cuda->capture_lock, NULL);
    for (int i = 0; i < OCT_MODULE_PARTS; i++) {
        (void)pthread_mutex_init(&cuda->modules[i].lock, NULL);
    }
    *out = cuda;
    return OCTET_OK;
}

/* A context that an earlier kernel broke, or a driver on its way out, refuses these calls; the
 * memory is freed all the same. */
void octet_cuda_close(octet_cuda *cuda) {
    if (!cuda) {
        return;
    }
    bool pushed;
    (void)oct_cuda_enter(cuda, &pushed, NULL);
    void *held = atomic_load(&cuda->held);
    if (held) {
        cuda->holder->free(held, cuda);
    }
    if (cuda->capture_stream) {
        (void)cuda->driver->cuStreamDestroy_v2(cuda->capture_stream);
    }
    oct_cuda_unload(cuda);
    oct_cuda_leave(cuda, pushed);
    (void)cuda->driver->cuDevicePrimaryCtxRelease_v2(cuda->device);
    (void)pthread_mutex_destroy(&cuda->capture_lock);
    (void)pthread_mutex_destroy(&cuda->hold_lock);
    (void)pthread_mutex_destroy(&cuda->lock);
    free_all(cuda);
}

const oct_cuda_facts *oct_cuda_facts_of(const octet_cuda *cuda) {
    return &cuda->facts;
}

octet_device oct_cuda_device_of(const octet_cuda *cuda) {
    return (octet_device){OCTET_CUDA, (uint8_t)cuda->facts.index, (uint16_t)cuda->facts.arch};
}

octet_status oct_cuda_serves(const octet_cuda *cuda, const octet_device *planned,
                             octet_error *err) {
    if (!cuda) {
        return oct_fail(err, OCTET_INVALID,
                        "the plan is for cuda:%u, and exec has no GPU: give it one from "
                        "octet_cuda_open",
                        planned->index);
    }
    octet_device device = oct_cuda_device_of(cuda);
    if (device.index != planned->index || device.arch < planned->arch) {
        return oct_fail(err, OCTET_INVALID,
                        "the plan is for cuda:%u/%u; exec's GPU is cuda:%u/%u", planned->index,
                        planned->arch, device.index, device.arch);
    }
    return OCTET_OK;
}
