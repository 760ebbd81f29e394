/* check.c - checks that a tensor fits a port; also for the fake tensors of a compiler. */
#include "torch/check.h"

#include <stdio.h>

#include "torch/state.h"

/* A size that a compiler does not know fits any size. */
static bool fits(int64_t size, int64_t wanted) {
    return size == wanted || size < 0 || wanted < 0;
}

static int64_t times(int64_t a, int64_t b) {
    return a < 0 || b < 0 ? OCT_UNKNOWN_SIZE : a * b;
}

/* "96, 60", or "?" for what is not known. */
static void print_sizes(char *text, size_t size, const int64_t *sizes, int64_t count) {
    size_t at = 0;
    text[0] = 0;
    for (int64_t i = 0; i < count && at < size; i++) {
        const char *comma = i ? ", " : "";
        int length = sizes[i] < 0
                         ? snprintf(text + at, size - at, "%s?", comma)
                         : snprintf(text + at, size - at, "%s%lld", comma, (long long)sizes[i]);
        at += length > 0 ? (size_t)length : 0;
    }
}

/* Whether a tensor is a state of so many slots. That of a layer has several; a single scale is
 * a quantizer's, and has no state. */
static bool has_rows(const oct_tensor_facts *f, int64_t slots) {
    bool enough = f->dim == 2 && (f->sizes[0] < 0 || f->sizes[0] >= OCT_STATE_ROWS);
    return enough && slots > 1 && fits(f->sizes[1], slots);
}

static octet_status no_state(const oct_tensor_facts *f, int64_t slots, octet_error *err) {
    char has[160];
    print_sizes(has, sizeof has, f->sizes, f->dim);
    return oct_torch_fail(err, OCTET_INVALID,
                          "its shape is (%s); it is raised in a state (1 + rows, %lld), of the "
                          "scales and at least one row of amaxes",
                          has, (long long)slots);
}

/* Whether a plain tensor has the port's shape; OCTET_AXIS_LEADING stands for any number of
 * axes. Counting elements is not enough: a transposed weight has the right number. */
static bool has_shape(const oct_tensor_facts *f, const octet_port *port) {
    if (port->part != OCTET_PART_VALUES || port->is_mutable || f->dim == 0) {
        return true; /* a scalar counts as a row with one column */
    }
    int64_t at = 0;
    for (int i = 0; i < port->ndim; i++) {
        bool many = port->dims[i].axis == OCTET_AXIS_LEADING;
        int64_t axes = many ? f->dim - (port->ndim - 1) : 1, product = 1;
        for (int64_t j = 0; j < axes && at < f->dim; j++) {
            product = times(product, f->sizes[at++]);
        }
        if (axes < 0 || !fits(product, port->shape[i])) {
            return false;
        }
    }
    return at == f->dim;
}

static octet_status wrong_shape(const oct_tensor_facts *f, const octet_port *port,
                                octet_error *err) {
    char has[160], wants[160];
    print_sizes(has, sizeof has, f->sizes, f->dim);
    print_sizes(wants, sizeof wants, port->shape, port->ndim);
    return oct_torch_fail(err, OCTET_INVALID, "its shape is (%s); the plan has (%s)", has,
                          wants);
}

static int64_t elements_of(const octet_port *port) {
    int64_t elements = 1;
    for (int i = 0; i < port->ndim; i++) {
        elements = times(elements, port->shape[i]);
    }
    return elements;
}

octet_status oct_check_values(const oct_tensor_facts *f, const octet_port *port,
                              octet_error *err) {
    int64_t elements = elements_of(port);
    if (f->dtype != oct_torch.dtypes[port->dtype]) {
        return oct_torch_fail(err, OCTET_INVALID, "its dtype is not %s, as the text says",
                              octet_dtype_name((octet_dtype)port->dtype));
    }
    bool is_state = has_rows(f, elements);
    if (oct_is_state(port)) {
        return is_state ? OCTET_OK : no_state(f, elements, err);
    }
    if (port->name == OCTET_NAME_SCALE && is_state) {
        return OCTET_OK;
    }
    if (!fits(f->elements, elements) || f->dim > OCTET_MAX_RANK) {
        return oct_torch_fail(err, OCTET_INVALID, "it has %lld elements; the plan has %lld",
                              (long long)f->elements, (long long)elements);
    }
    return has_shape(f, port) ? OCTET_OK : wrong_shape(f, port, err);
}

octet_status oct_check_port(const oct_tensor_facts *f, const octet_plan *plan,
                            const octet_port *port, octet_error *err) {
    octet_status status = oct_check_values(f, port, err);
    if (!status && !oct_device_is(&plan->device, f->device, f->index)) {
        status = oct_torch_fail(err, OCTET_INVALID,
                                "it is on another device than the text says: move it there");
    }
    return status;
}

octet_status oct_name_argument(octet_error *err, int index, const octet_port *port) {
    char name[160];
    octet_error cause = *err;
    (void)octet_port_print(name, sizeof name, port);
    return oct_torch_fail(err, cause.status, "argument %d, %s: %.300s", index,
                          oct_is_state(port) ? "state" : name, cause.text);
}
