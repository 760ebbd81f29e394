/* module.c - a kernel by its name: its part of a module compiled, or read from the cache, when
 * first used.
 *
 * Kernels are found without a lock in a table that only grows, by the address of their name; a
 * miss takes the module's lock, so that a module is compiled once however many threads wait for
 * it. The same name at a second address always takes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "cuda/open.h"

static const char *const names[OCT_MODULES] = {
#define X(name) #name,
    OCT_CUDA_MODULES(X)
#undef X
};

static oct_module *module_of(octet_cuda *cuda, const oct_cuda_launch *launch) {
    return &cuda->modules[launch->module * (OCTET_F16 + 1) + launch->input];
}

static unsigned list_of(const char *name) {
    uint64_t hash = (uint64_t)(uintptr_t)name * 0x9e3779b97f4a7c15u;
    return (unsigned)(hash >> 32) % OCT_KERNEL_LISTS;
}

static oct_kernel *find(oct_module *module, const char *name) {
    oct_kernel *kernel =
        atomic_load_explicit(&module->kernels[list_of(name)], memory_order_acquire);
    while (kernel && kernel->name != name) {
        kernel = kernel->next;
    }
    return kernel;
}

/* Under the module's lock. */
static oct_kernel *find_text(oct_module *module, const char *name) {
    for (int list = 0; list < OCT_KERNEL_LISTS; list++) {
        oct_kernel *kernel = atomic_load_explicit(&module->kernels[list], memory_order_relaxed);
        while (kernel && strcmp(kernel->name, name) != 0) {
            kernel = kernel->next;
        }
        if (kernel) {
            return kernel;
        }
    }
    return NULL;
}

/* The code of a launch's part: from the cache, where *cached allows it, else compiled and put
 * there. *cached: it was there. */
static octet_status code_of(oct_cubin *out, bool *cached, octet_cuda *cuda,
                            const oct_cuda_launch *launch, octet_error *err) {
    const oct_compiler *compiler;
    const char *name = names[launch->module];
    char arch[OCT_ARCH_TEXT];
    oct_compile what = {
        .source = oct_module_source(name), .arch = arch, .input = launch->input};
    if (!what.source) {
        return oct_fail(err, OCTET_UNSUPPORTED, "this build has no kernels '%s'", name);
    }
    octet_status status = oct_cuda_compiler(&compiler, cuda, err);
    status = status ? status : oct_compiler_arch(arch, compiler, cuda->facts.arch, err);
    if (status) {
        return status;
    }
    oct_cache_key key = {.module = name};
    oct_compiler_key(&key, compiler, &what, cuda->driver_version);
    *cached = *cached && oct_cache_read(out, cuda->cache, &key);
    if (*cached) {
        return OCTET_OK;
    }
    status = oct_compiler_run(out, compiler, &what, err);
    if (!status && cuda->cache) {
        oct_cache_write(cuda->cache, &key, out);
    }
    return status;
}

/* Takes the code away. */
static int load_code(oct_module *module, octet_cuda *cuda, oct_cubin *cubin) {
    void *handle = NULL;
    int result = cuda->driver->cuModuleLoadData(&handle, cubin->data);
    oct_cubin_free(cubin);
    module->handle = result ? NULL : handle;
    return result;
}

/* Code that the driver does not take is no error while it is only the cache's. */
static octet_status load(oct_module *module, octet_cuda *cuda, const oct_cuda_launch *launch,
                         octet_error *err) {
    oct_cubin cubin;
    bool cached = cuda->cache != NULL;
    octet_status status = code_of(&cubin, &cached, cuda, launch, err);
    int result = status ? 0 : load_code(module, cuda, &cubin);
    if (cached && (result == OCT_CU_INVALID_IMAGE || result == OCT_CU_NO_BINARY ||
                   result == OCT_CU_INVALID_SOURCE)) {
        cached = false;
        status = code_of(&cubin, &cached, cuda, launch, err);
        result = status ? 0 : load_code(module, cuda, &cubin);
    }
    return result ? oct_cuda_failed(err, "cuModuleLoadData", result) : status;
}

static octet_status add(oct_kernel **out, oct_module *module, octet_cuda *cuda,
                        const char *name, octet_error *err) {
    void *function = NULL;
    int result = cuda->driver->cuModuleGetFunction(&function, module->handle, name);
    if (result) {
        char call[128];
        (void)snprintf(call, sizeof call, "cuModuleGetFunction of %s", name);
        return oct_cuda_failed(err, call, result);
    }
    oct_kernel *kernel = malloc(sizeof *kernel);
    if (!kernel) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for the kernel %s", name);
    }
    _Atomic(oct_kernel *) *head = &module->kernels[list_of(name)];
    kernel->next = atomic_load_explicit(head, memory_order_relaxed);
    kernel->name = name;
    kernel->function = function;
    atomic_init(&kernel->shared_bytes, 0);
    atomic_store_explicit(head, kernel, memory_order_release);
    *out = kernel;
    return OCTET_OK;
}

/* 48 KB, static memory included, need no asking; beyond it the driver must be asked. */
static octet_status ask_shared(oct_kernel *kernel, octet_cuda *cuda,
                               const oct_cuda_launch *launch, octet_error *err) {
    if (launch->shared_bytes <=
        atomic_load_explicit(&kernel->shared_bytes, memory_order_relaxed)) {
        return OCTET_OK;
    }
    if (launch->shared_bytes > (unsigned)cuda->facts.shared_bytes) {
        return oct_fail(err, OCTET_UNSUPPORTED,
                        "%s needs %u bytes of shared memory; a block on %s has %d at most",
                        launch->kernel, launch->shared_bytes, cuda->facts.name,
                        cuda->facts.shared_bytes);
    }
    int result = cuda->driver->cuFuncSetAttribute(kernel->function, OCT_CU_FUNC_SHARED,
                                                  (int)launch->shared_bytes);
    if (result) {
        return oct_cuda_failed(err, "cuFuncSetAttribute", result);
    }
    atomic_store_explicit(&kernel->shared_bytes, launch->shared_bytes, memory_order_release);
    return OCTET_OK;
}

static octet_status make_ready(oct_kernel **out, octet_cuda *cuda,
                               const oct_cuda_launch *launch, octet_error *err) {
    oct_module *module = module_of(cuda, launch);
    octet_status status = module->handle ? OCTET_OK : load(module, cuda, launch, err);
    if (status) {
        return status;
    }
    *out = find_text(module, launch->kernel);
    status = *out ? OCTET_OK : add(out, module, cuda, launch->kernel, err);
    return status ? status : ask_shared(*out, cuda, launch, err);
}

octet_status oct_cuda_kernel(const oct_kernel **out, octet_cuda *cuda,
                             const oct_cuda_launch *launch, octet_error *err) {
    oct_module *module = module_of(cuda, launch);
    oct_kernel *kernel = find(module, launch->kernel);
    octet_status status = OCTET_OK;
    if (!kernel || launch->shared_bytes >
                       atomic_load_explicit(&kernel->shared_bytes, memory_order_acquire)) {
        (void)pthread_mutex_lock(&module->lock);
        int mode = oct_cuda_relax(cuda);
        status = make_ready(&kernel, cuda, launch, err);
        oct_cuda_unrelax(cuda, mode);
        (void)pthread_mutex_unlock(&module->lock);
    }
    *out = kernel;
    return status;
}

void oct_cuda_unload(octet_cuda *cuda) {
    for (int i = 0; i < OCT_MODULE_PARTS; i++) {
        oct_module *module = &cuda->modules[i];
        for (int list = 0; list < OCT_KERNEL_LISTS; list++) {
            oct_kernel *kernel = atomic_load(&module->kernels[list]);
            while (kernel) {
                oct_kernel *next = kernel->next;
                free(kernel);
                kernel = next;
            }
        }
        if (module->handle) {
            (void)cuda->driver->cuModuleUnload(module->handle);
        }
        (void)pthread_mutex_destroy(&module->lock);
    }
}
