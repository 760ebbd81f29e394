/* cuda.c - torch's GPUs: Octet's handle on each, torch's current stream and memory there. */
#include "torch/cuda.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#define GPUS 64
#define FOLDERS 32768 /* enough for some twenty folders of torch's wheels */

/* Set once, before the first op: torch's function for its streams (since 2.6, in
 * libtorch_cuda), its functions for memory (since 2.10; NULL if one is missing), and the
 * folders of its libraries. */
static struct {
    int32_t (*current_stream)(int32_t index, void **stream);
    int32_t (*current_device)(int32_t *index);
    int32_t (*allocate)(uint64_t bytes, void **memory);
    int32_t (*release)(void *memory);
} found;
static char folders[FOLDERS];

/* Octet's handle on each GPU, made at its first use and never closed: ops may run until the
 * process ends. */
static _Atomic(octet_cuda *) opened[GPUS];
/* Each GPU's octet_device packed into one word; 0: not asked yet. */
static _Atomic(uint32_t) known[GPUS];
_Static_assert(sizeof(octet_device) == sizeof(uint32_t), "a device is a word");

static void find_memory(void *library) {
    void *device = dlsym(library, "aoti_torch_get_current_device_index");
    void *take = dlsym(library, "aoti_torch_cuda_caching_allocator_raw_alloc");
    void *give = dlsym(library, "aoti_torch_cuda_caching_allocator_raw_delete");
    if (device && take && give) {
        memcpy(&found.current_device, &device, sizeof device);
        memcpy(&found.release, &give, sizeof give);
        memcpy(&found.allocate, &take, sizeof take);
    }
}

octet_status oct_torch_cuda_load(const char *path, const char *libraries, octet_error *err) {
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void *stream = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : NULL;
    if (!stream) {
        return oct_torch_fail(err, OCTET_UNSUPPORTED,
                              "%s has no aoti_torch_get_current_cuda_stream: Octet needs torch "
                              "2.10 or newer",
                              path ? path : "the program");
    }
    if (strlen(libraries) >= sizeof folders) {
        return oct_torch_fail(err, OCTET_INVALID, "more than %d characters of library folders",
                              FOLDERS - 1);
    }
    memcpy(&found.current_stream, &stream, sizeof stream);
    memcpy(folders, libraries, strlen(libraries) + 1);
    find_memory(library);
    return OCTET_OK;
}

/* Two threads may open it at the same time; the first one to store its handle wins. */
static octet_status open_gpu(octet_cuda **out, int index, octet_error *err) {
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    octet_cuda *made = NULL, *other = NULL;
    options.index = (uint32_t)index;
    options.libraries = folders;
    octet_status status = octet_cuda_open(&made, &options, err);
    if (!status && !atomic_compare_exchange_strong(&opened[index], &other, made)) {
        octet_cuda_close(made);
        made = other;
    }
    *out = made;
    return status;
}

static octet_status gpu_of(octet_cuda **out, int index, octet_error *err) {
    *out = atomic_load_explicit(&opened[index], memory_order_acquire);
    return *out ? OCTET_OK : open_gpu(out, index, err);
}

/* Without cuBLASLt, plans are made all the same: running one then reports it. */
static octet_status ask(octet_device *out, int index, octet_error *err) {
    octet_cuda *cuda;
    octet_status status = octet_cuda_device(out, index, err);
    status = status ? status : gpu_of(&cuda, index, err);
    if (!status && octet_cuda_target(out, cuda, NULL)) {
        return octet_cuda_device(out, index, err);
    }
    return status;
}

octet_status oct_torch_cuda_device(octet_device *out, int index, octet_error *err) {
    if (index < 0 || index >= GPUS) {
        return octet_cuda_device(out, index, err);
    }
    uint32_t word = atomic_load_explicit(&known[index], memory_order_relaxed);
    if (word) {
        memcpy(out, &word, sizeof word);
        return OCTET_OK;
    }
    octet_status status = ask(out, index, err);
    if (!status) {
        memcpy(&word, out, sizeof word);
        atomic_store_explicit(&known[index], word, memory_order_relaxed);
    }
    return status;
}

octet_status oct_torch_cuda_exec(octet_exec *exec, int index, octet_error *err) {
    octet_status status;
    if (!found.current_stream || index < 0 || index >= GPUS) {
        return oct_torch_fail(err, OCTET_UNSUPPORTED,
                              "a tensor is on cuda:%d, but this torch has no CUDA", index);
    }
    status = gpu_of(&exec->cuda, index, err);
    if (!status && found.current_stream(index, &exec->stream)) {
        status =
            oct_torch_fail(err, OCTET_DEVICE, "torch has no current stream on cuda:%d", index);
    }
    return status;
}

bool oct_torch_cuda_take(void **out, int index, int64_t bytes) {
    int32_t current = -1;
    *out = NULL;
    return found.allocate && !found.current_device(&current) && current == index &&
           !found.allocate((uint64_t)bytes, out) && *out;
}

void oct_torch_cuda_give_back(void *memory) {
    if (memory) {
        (void)found.release(memory);
    }
}

int oct_torch_cuda_algorithms(int *most) {
    int cached = 0, each = octet_cuda_algorithms(most, NULL);
    bool first = true;
    for (int i = 0; i < GPUS; i++) {
        octet_cuda *cuda = atomic_load_explicit(&opened[i], memory_order_acquire);
        if (cuda) {
            cached += octet_cuda_algorithms(&each, cuda);
            *most += first ? 0 : each;
            first = false;
        }
    }
    return cached;
}
