/* launch.c - kernels, fills and copies put on a stream. */
#include <stdio.h>

#include "cuda/library.h"
#include "cuda/list_fill.h"
#include "cuda/open.h"

_Static_assert(!OCT_CUDA_HAS_BITS ||
                   (sizeof(oct_cu_launch_attribute) == 72 && sizeof(oct_cu_launch) == 56),
               "as cuda.h has them");

static octet_status launch_failed(const oct_cuda_launch *launch, int result, octet_error *err) {
    char call[128];
    (void)snprintf(call, sizeof call, "cuLaunchKernelEx of %s", launch->kernel);
    return oct_cuda_failed(err, call, result);
}

octet_status oct_cuda_launch_ready(octet_cuda *cuda, const oct_kernel *kernel,
                                   const oct_cuda_launch *launch, const oct_cuda_params *with,
                                   octet_error *err) {
    /* One buffer with its size, which the driver compares with the kernel's own. It only reads
     * what is declared without const. */
    size_t bytes = launch->params_bytes;
    void *params = (void *)(uintptr_t)with->at;
    void *extra[] = {OCT_CU_PARAMS_AT, params, OCT_CU_PARAMS_BYTES, &bytes, NULL};
    static const oct_cu_launch_attribute overtakes = {.id = OCT_CU_LAUNCH_OVERTAKES,
                                                      .value = 1};
    oct_cu_launch how = {.grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
                         .block = {launch->threads, 1, 1},
                         .shared_bytes = launch->shared_bytes,
                         .stream = with->stream,
                         .attributes = &overtakes,
                         .attribute_count = cuda->overtakes};
    int result = cuda->driver->cuLaunchKernelEx(&how, kernel->function, NULL, extra);
    return result ? launch_failed(launch, result, err) : OCTET_OK;
}

static octet_status launch_current(const oct_cuda_on *on, const oct_cuda_launch *launch,
                                   octet_error *err) {
    const oct_kernel *kernel;
    octet_status status = oct_cuda_kernel(&kernel, on->cuda, launch, err);
    const oct_cuda_params with = {launch->params, on->stream};
    return status ? status : oct_cuda_launch_ready(on->cuda, kernel, launch, &with, err);
}

octet_status oct_cuda_launch_kernel(const oct_cuda_on *on, const oct_cuda_launch *launch,
                                    octet_error *err) {
    if (launch->grid[0] == 0 || launch->grid[1] == 0 || launch->grid[2] == 0) {
        return OCTET_OK;
    }
    bool pushed;
    octet_status status = oct_cuda_enter_on(on, &pushed, err);
    if (!status) {
        status =
            on->list ? oct_list_kernel(on->list, launch, err) : launch_current(on, launch, err);
        oct_cuda_leave(on->cuda, pushed);
    }
    return status;
}

static uint64_t address(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

octet_status oct_cuda_fill(const oct_cuda_on *on, void *to, uint32_t value, int64_t count,
                           octet_error *err) {
    bool pushed;
    if (on->list && count > 0) {
        return oct_list_fill(on->list, to, value, count, false, err);
    }
    octet_status status = count > 0 ? oct_cuda_enter_on(on, &pushed, err) : OCTET_OK;
    if (status || count <= 0) {
        return status;
    }
    int result =
        on->cuda->driver->cuMemsetD32Async(address(to), value, (size_t)count, on->stream);
    oct_cuda_leave(on->cuda, pushed);
    return result ? oct_cuda_failed(err, "cuMemsetD32Async", result) : OCTET_OK;
}

octet_status oct_cuda_zero(const oct_cuda_on *on, void *to, int64_t bytes, octet_error *err) {
    if (bytes <= 0 || (address(to) | (uint64_t)bytes) % 4 == 0) {
        return oct_cuda_fill(on, to, 0, bytes / 4, err);
    }
    if (on->list) {
        return oct_list_fill(on->list, to, 0, bytes, true, err);
    }
    bool pushed;
    octet_status status = oct_cuda_enter_on(on, &pushed, err);
    if (status) {
        return status;
    }
    int result = on->cuda->driver->cuMemsetD8Async(address(to), 0, (size_t)bytes, on->stream);
    oct_cuda_leave(on->cuda, pushed);
    return result ? oct_cuda_failed(err, "cuMemsetD8Async", result) : OCTET_OK;
}

octet_status oct_cuda_copy(const oct_cuda_on *on, void *to, const void *from, int64_t bytes,
                           octet_error *err) {
    bool pushed;
    if (on->list && bytes > 0) {
        return oct_list_copy(on->list, to, from, bytes, err);
    }
    octet_status status = bytes > 0 ? oct_cuda_enter_on(on, &pushed, err) : OCTET_OK;
    if (status || bytes <= 0) {
        return status;
    }
    int result = on->cuda->driver->cuMemcpyDtoDAsync_v2(address(to), address(from),
                                                        (size_t)bytes, on->stream);
    oct_cuda_leave(on->cuda, pushed);
    return result ? oct_cuda_failed(err, "cuMemcpyDtoDAsync", result) : OCTET_OK;
}
