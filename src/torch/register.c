/* register.c - the ops become torch's: definitions once, the same kernels for CPU and CUDA. */
#include "torch/ops.h"

static const char *const names[] = {
#define X(name, schema) #name,
    OCT_TORCH_OPS(X)
#undef X
};

static const char *const schemas[] = {
#define X(name, schema) schema,
    OCT_TORCH_OPS(X)
#undef X
};

enum { OPS = sizeof names / sizeof *names };

static octet_status refused(octet_error *err, const char *what, const char *name) {
    return oct_torch_fail(err, OCTET_DEVICE, "torch refused the %s of octet::%s", what, name);
}

/* With the tag that says fakes and kernels agree, where torch can be told from here. */
static int32_t define(oct_torch_library *library, const char *schema) {
    if (oct_torch.torch_library_def_with_tags && oct_torch.torch_tag_pt2_compliant_tag) {
        int32_t tag = oct_torch.torch_tag_pt2_compliant_tag();
        return oct_torch.torch_library_def_with_tags(library, schema, &tag, 1);
    }
    return oct_torch.aoti_torch_library_def(library, schema);
}

/* A kernel looks at its tensors and its text to know where it runs. */
static octet_status implement(const char *device, octet_error *err) {
    oct_torch_library *kernels;
    if (oct_torch.aoti_torch_library_init_impl("octet", device, "octet", 0, &kernels)) {
        return refused(err, "library", device);
    }
    for (int i = 0; i < OPS; i++) {
        if (oct_torch.torch_library_impl(kernels, names[i], oct_torch_kernels[i],
                                         OCT_TORCH_ABI)) {
            return refused(err, "kernel", names[i]);
        }
    }
    return OCTET_OK;
}

/* The library objects are torch's registrations themselves: they live as long as it does. */
octet_status oct_torch_register(const char *path, octet_error *err) {
    oct_torch_library *definitions;
    octet_status status = oct_torch_load(path, err);
    if (status) {
        return status;
    }
    if (oct_torch.aoti_torch_library_init_def("octet", "octet", 0, &definitions)) {
        return refused(err, "library", "*");
    }
    for (int i = 0; i < OPS; i++) {
        if (define(definitions, schemas[i])) {
            return refused(err, "schema", names[i]);
        }
    }
    status = implement("CPU", err);
    return status ? status : implement("CUDA", err);
}
