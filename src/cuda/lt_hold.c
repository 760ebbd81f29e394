/* lt_hold.c - the library's handle and the algorithms found, made once for a GPU. */
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/fail.h"
#include "cuda/lt.h"
#include "cuda/target.h"

octet_status oct_lt_failed(octet_error *err, const oct_cublaslt *api, const char *call,
                           int result) {
    bool launches = result == OCT_LT_EXECUTION_FAILED || result == OCT_LT_INTERNAL_ERROR;
    octet_status status = result == OCT_LT_ALLOC_FAILED ? OCTET_NO_MEMORY : OCTET_DEVICE;
    return oct_fail(err, status, "%s: %s%s", call, api->cublasLtGetStatusString(result),
                    launches ? ": its own launch failed, or a kernel that was launched earlier "
                               "in this process, by whomever; CUDA_LAUNCH_BLOCKING=1 or "
                               "compute-sanitizer finds that one"
                             : "");
}

/* Only who asks for the own kernels does without the library: they are slower. */
static octet_status open_library(oct_lt *lt, octet_cuda *cuda, octet_error *err) {
    const char *forced = oct_environment("OCTET_CUDA_GEMM");
    const oct_cublaslt *api;
    lt->library = forced && strcmp(forced, "cublaslt") == 0;
    if (forced && strcmp(forced, "own") == 0) {
        return OCTET_OK;
    }
    octet_status status = oct_cuda_cublaslt(&api, cuda, err);
    if (status) {
        return status;
    }
    int result = api->cublasLtCreate(&lt->handle);
    if (result) {
        return oct_lt_failed(err, api, "cublasLtCreate", result);
    }
    lt->api = api;
    lt->target.version = (int64_t)api->cublasLtGetVersion();
    return OCTET_OK;
}

static octet_status make(void **out, octet_cuda *cuda, octet_error *err) {
    const char *pick = oct_environment("OCTET_CUDA_ALGO");
    oct_lt *lt = calloc(1, sizeof *lt);
    if (!lt) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for %zu bytes of what a GPU holds",
                        sizeof *lt);
    }
    lt->cuda = cuda;
    lt->target.arch = oct_cuda_facts_of(cuda)->arch;
    lt->pick = pick ? atoi(pick) : 0;
    lt->pick = lt->pick < 0 ? 0 : lt->pick;
    oct_lt_cache_start(&lt->algorithms);
    octet_status status = open_library(lt, cuda, err);
    if (status) {
        free(lt);
        return status;
    }
    *out = lt;
    return OCTET_OK;
}

static void give_up(void *held, octet_cuda *cuda) {
    oct_lt *lt = held;
    (void)cuda;
    if (lt->api) {
        (void)lt->api->cublasLtDestroy(lt->handle);
    }
    oct_lt_cache_end(&lt->algorithms);
    free(lt);
}

octet_status octet_cuda_target(octet_device *out, octet_cuda *cuda, octet_error *err) {
    const oct_cublaslt *api;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need(cuda, "cuda", err);
    status = status ? status : oct_cuda_cublaslt(&api, cuda, err);
    if (!status) {
        *out = oct_cuda_device_of(cuda);
        bool lacks_blocks = api->cublasLtGetVersion() < OCT_LT_BLOCKS;
        out->arch = lacks_blocks ? (uint16_t)oct_arch_without_blocks(out->arch) : out->arch;
    }
    return status;
}

int octet_cuda_algorithms(int *most, octet_cuda *cuda) {
    oct_table empty = {.most = OCT_LT_SETS}; /* of a GPU that has not multiplied yet */
    oct_lt *lt = cuda ? oct_cuda_held_now(cuda) : NULL;
    *most = oct_table_capacity(lt ? &lt->algorithms.table : &empty);
    return lt ? oct_table_count(&lt->algorithms.table) : 0;
}

octet_status oct_lt_get(oct_lt **out, octet_cuda *cuda, octet_error *err) {
    static const oct_cuda_holder holder = {make, give_up};
    void *held = NULL;
    octet_status status = oct_cuda_held(&held, cuda, &holder, err);
    *out = held;
    return status;
}
