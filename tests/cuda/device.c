/* device.c - the emulated GPU, and tensors for it. */
#define _GNU_SOURCE /* dladdr */
#include "device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulate_launch.h"

static void *here(void) {
    void *at;
    void (*run)(const emulated_launch *) = emulated_run;
    memcpy(&at, &run, sizeof at);
    return at;
}

static octet_status open_gpu(octet_cuda **out, int arch, octet_error *err) {
    octet_device device = {0};
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    options.cache = "";
    octet_status status = octet_cuda_device(&device, 0, err);
    while (!status && device.arch != arch) {
        status = octet_cuda_device(&device, (int)++options.index, err);
    }
    return status ? status : octet_cuda_open(out, &options, err);
}

octet_cuda *cuda_open(int arch) {
    octet_cuda *cuda = NULL;
    Dl_info about;
    octet_error err = {OCTET_OK, 0, "dladdr"};
    if (!dladdr(here(), &about) || setenv("OCTET_CUDA_DRIVER", about.dli_fname, 1) ||
        open_gpu(&cuda, arch, &err)) {
        fprintf(stderr, "no emulated GPU: %s\n", err.text);
        abort();
    }
    return cuda;
}

const oct_cuda_on *cuda_on(void) {
    static oct_cuda_on on;
    on.cuda = on.cuda ? on.cuda : cuda_open(90);
    return &on;
}

static size_t shift_bytes(const cpu_tensor *t, int64_t shift) {
    bool plain = t->m.quantizer.scheme == OCTET_SCHEME_NONE;
    return plain ? (size_t)(shift * octet_dtype_bits((octet_dtype)t->m.dtype) / 8) : 0;
}

cpu_tensor cuda_exact(const cpu_tensor *from, int64_t shift) {
    cpu_tensor t = *from;
    size_t before = shift_bytes(from, shift);
    for (int part = 0; part < OCTET_PARTS; part++) {
        size_t bytes = from->bytes[part];
        void *memory = NULL;
        if (!from->m.parts[part]) {
            continue;
        }
        if (part == 0 && from->m.rows) { /* the gap behind the last row is nobody's */
            int64_t gap = from->m.stride - from->m.cols;
            bytes -= (size_t)(gap * octet_dtype_bits((octet_dtype)from->m.dtype) / 8);
        }
        if (posix_memalign(&memory, 64, before + bytes + (before + bytes == 0))) {
            abort();
        }
        t.m.parts[part] = (char *)memory + before;
        memcpy(t.m.parts[part], from->m.parts[part], bytes);
    }
    return t;
}

void cuda_exact_free(cpu_tensor *tensor, int64_t shift) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        if (tensor->m.parts[part]) {
            free((char *)tensor->m.parts[part] - shift_bytes(tensor, shift));
        }
    }
    memset(tensor, 0, sizeof *tensor);
}

bool cuda_same(const cpu_tensor *a, const cpu_tensor *b, int64_t *row, int64_t *col) {
    for (*row = 0; *row < a->m.rows; ++*row) {
        for (*col = 0; *col < a->m.cols; ++*col) {
            float x = cpu_tensor_get(a, *row, *col), y = cpu_tensor_get(b, *row, *col);
            if ((x == x || y == y) && memcmp(&x, &y, sizeof x) != 0) {
                return false;
            }
        }
    }
    return true;
}
