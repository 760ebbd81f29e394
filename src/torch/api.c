/* api.c - finds torch's functions once; a missing one is an error that names it. */
#include "torch/api.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

oct_torch_functions oct_torch;

octet_status oct_torch_fail(octet_error *err, octet_status status, const char *format, ...) {
    if (err) {
        va_list arguments;
        memset(err, 0, sizeof *err);
        err->status = status;
        va_start(arguments, format);
        (void)vsnprintf(err->text, sizeof err->text, format, arguments);
        va_end(arguments);
    }
    return status;
}

/* A function's name, and where it lies in oct_torch_functions. */
typedef struct place {
    const char *name;
    size_t at;
} place;

#define PLACE(name) {#name, offsetof(oct_torch_functions, name)}

static const place needed[] = {
#define X(name, parameters) PLACE(name),
    OCT_TORCH_CALLS(X)
#undef X
#define X(name) PLACE(name),
        OCT_TORCH_CODES(X)
#undef X
};

static const place newer[] = {
    PLACE(torch_library_def_with_tags),
    PLACE(torch_tag_pt2_compliant_tag),
    PLACE(torch_exception_get_what_without_backtrace),
};

/* ISO C has no conversion from an object pointer to a function pointer; POSIX promises that the
 * bytes are the same. */
static bool find(void *library, const place *place, oct_torch_functions *f) {
    void *found = dlsym(library, place->name);
    memcpy((char *)f + place->at, &found, sizeof found);
    return found != NULL;
}

/* The name of the first that is missing, or NULL. */
static const char *find_all(void *library, oct_torch_functions *f) {
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++) {
        (void)find(library, &newer[i], f);
    }
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (!find(library, &needed[i], f)) {
            return needed[i].name;
        }
    }
    return NULL;
}

static void fill_codes(oct_torch_functions *f) {
    for (int i = 0; i < OCTET_DTYPES; i++) {
        f->dtypes[i] = -1;
    }
    f->dtypes[OCTET_F32] = f->aoti_torch_dtype_float32();
    f->dtypes[OCTET_BF16] = f->aoti_torch_dtype_bfloat16();
    f->dtypes[OCTET_F16] = f->aoti_torch_dtype_float16();
    f->dtypes[OCTET_U8] = f->aoti_torch_dtype_uint8();
    f->dtypes[OCTET_I64] = f->aoti_torch_dtype_int64();
    f->devices[OCTET_CPU] = f->aoti_torch_device_type_cpu();
    f->devices[OCTET_CUDA] = f->aoti_torch_device_type_cuda();
}

octet_status oct_torch_load(const char *path, octet_error *err) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return oct_torch_fail(err, OCTET_DEVICE, "cannot open %s: %s", path, dlerror());
    }
    oct_torch_functions found;
    memset(&found, 0, sizeof found);
    const char *missing = find_all(library, &found);
    if (missing) {
        (void)dlclose(library);
        return oct_torch_fail(err, OCTET_UNSUPPORTED,
                              "this torch has no %s: Octet needs torch 2.10 or newer", missing);
    }
    fill_codes(&found);
    oct_torch = found;
    return OCTET_OK;
}
