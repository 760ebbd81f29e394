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

/* ISO C has no conversion from an object pointer to a function pointer; POSIX promises that the
 * bytes are the same. */
static bool find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static const char *find_all(void *library, oct_torch_functions *f) {
#define X(name, parameters)                                                                    \
    if (!find(library, #name, &f->name)) {                                                     \
        return #name;                                                                          \
    }
    OCT_TORCH_CALLS(X)
#undef X
#define X(name)                                                                                \
    if (!find(library, #name, &f->name)) {                                                     \
        return #name;                                                                          \
    }
    OCT_TORCH_CODES(X)
#undef X
    (void)find(library, "torch_library_def_with_tags", &f->torch_library_def_with_tags);
    (void)find(library, "torch_tag_pt2_compliant_tag", &f->torch_tag_pt2_compliant_tag);
    (void)find(library, "torch_exception_get_what_without_backtrace",
               &f->torch_exception_get_what_without_backtrace);
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
