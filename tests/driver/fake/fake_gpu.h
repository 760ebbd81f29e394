/* fake_gpu.h - a GPU of the driver that only keeps account, and a launch for it. */
#ifndef OCTET_TEST_DRIVER_FAKE_GPU_H
#define OCTET_TEST_DRIVER_FAKE_GPU_H

#include <dlfcn.h>
#include <stdlib.h>

#include "cuda/device.h"
#include "fake_cuda.h"
#include "test.h"

static fake_cuda *fake;

/* The fake's account begins anew. */
static inline octet_cuda *begin(const char *cache) {
    if (!fake) {
        fake_cuda_get *get = NULL;
        void *found = dlsym(dlopen(TEST_FAKE_CUDA, RTLD_NOW), "fake_cuda_counts");
        memcpy(&get, &found, sizeof found);
        fake = get();
    }
    memset(fake, 0, sizeof *fake);
    fake->arch = 90;
    fake->driver_version = 13000;
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    octet_cuda *cuda = NULL;
    octet_error err = {OCTET_OK, 0, ""};
    options.cache = cache;
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_FAKE_CUDA, 1), 0);
    CHECK_OF(octet_cuda_open(&cuda, &options, &err) == OCTET_OK, err.text);
    return cuda;
}

/* No call was made without the GPU's context, and the thread's own one is back. */
static inline void end(octet_cuda *cuda) {
    octet_cuda_close(cuda);
    CHECK_EQ_INT(fake->homeless, 0);
    CHECK_EQ_INT(fake->pushes, fake->pops);
    CHECK_EQ_INT(fake->strict_loads, 0);
}

static const int parameters[3] = {1, 2, 3};

static inline oct_cuda_launch launch_of(const char *kernel) {
    oct_cuda_launch launch = {.module = OCT_MODULE_per_tensor,
                              .kernel = kernel,
                              .grid = {5, 6, 7},
                              .threads = 256,
                              .params = parameters,
                              .params_bytes = sizeof parameters};
    return launch;
}

#endif
