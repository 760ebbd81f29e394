/* register.c - registers the ops with torch: one definition each, the same kernels for CPU and
 * CUDA. */
#include <stdio.h>

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

/* The ops that write arguments: one overload for every number of outputs. */
static const struct {
    const char *name, *arguments;
} into[] = {
#define X(name, arguments) {#name, arguments},
    OCT_TORCH_INTO_OPS(X)
#undef X
};

enum { INTO = sizeof into / sizeof *into, SCHEMA = 256 };

const char *const oct_torch_overloads[] = {
    "none", "one", "two", "three", "four", "five", "six", "seven", "eight",
};

_Static_assert(sizeof oct_torch_overloads / sizeof *oct_torch_overloads ==
                   OCT_TORCH_INTO_OUTPUTS + 1,
               "each has a name");

static octet_status refused(octet_error *err, const char *what, const char *name) {
    return oct_torch_fail(err, OCTET_DEVICE, "torch refused the %s of octet::%s", what, name);
}

/* Adds the tag pt2_compliant if this torch has a function for it. */
static int32_t define(oct_torch_library *library, const char *schema) {
    if (oct_torch.torch_library_def_with_tags && oct_torch.torch_tag_pt2_compliant_tag) {
        int32_t tag = oct_torch.torch_tag_pt2_compliant_tag();
        return oct_torch.torch_library_def_with_tags(library, schema, &tag, 1);
    }
    return oct_torch.aoti_torch_library_def(library, schema);
}

/* "linear_into.two(Tensor(a!)[] written, ...) -> (Tensor, Tensor)" */
static octet_status define_into(oct_torch_library *library, int op, int outputs,
                                octet_error *err) {
    char schema[SCHEMA], tensors[SCHEMA / 2] = "";
    for (int i = 0, length = 0; i < outputs; i++) {
        length += snprintf(tensors + length, sizeof tensors - (size_t)length, "%sTensor",
                           i ? ", " : "");
    }
    (void)snprintf(schema, sizeof schema, "%s.%s(%s) -> (%s)", into[op].name,
                   oct_torch_overloads[outputs], into[op].arguments, tensors);
    return define(library, schema) ? refused(err, "schema", into[op].name) : OCTET_OK;
}

static octet_status implement_into(oct_torch_library *library, int op, int outputs,
                                   octet_error *err) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s.%s", into[op].name, oct_torch_overloads[outputs]);
    return oct_torch.torch_library_impl(library, name, oct_torch_into_kernels[op],
                                        OCT_TORCH_ABI)
               ? refused(err, "kernel", name)
               : OCTET_OK;
}

/* Every overload of every op that writes. */
static octet_status each_into(oct_torch_library *library,
                              octet_status (*act)(oct_torch_library *, int, int, octet_error *),
                              octet_error *err) {
    octet_status status = OCTET_OK;
    for (int i = 0; i < INTO * (OCT_TORCH_INTO_OUTPUTS + 1) && !status; i++) {
        status = act(library, i % INTO, i / INTO, err);
    }
    return status;
}

/* One kernel serves all devices: it takes the device from its tensors and its text. */
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
    return each_into(kernels, implement_into, err);
}

/* The library objects hold torch's registrations, so they are never freed. */
octet_status oct_torch_register(const char *path, oct_torch_set_error set_error,
                                octet_error *err) {
    oct_torch_library *definitions;
    octet_status status = oct_torch_load(path, err);
    if (status) {
        return status;
    }
    oct_torch.set_python_error = set_error;
    if (oct_torch.aoti_torch_library_init_def("octet", "octet", 0, &definitions)) {
        return refused(err, "library", "*");
    }
    for (int i = 0; i < OPS; i++) {
        if (define(definitions, schemas[i])) {
            return refused(err, "schema", names[i]);
        }
    }
    status = each_into(definitions, define_into, err);
    status = status ? status : implement("CPU", err);
    return status ? status : implement("CUDA", err);
}
