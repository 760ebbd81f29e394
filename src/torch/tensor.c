/* tensor.c - takes values off an op's stack, makes tensors, and views them as ports. */
#include "torch/tensor.h"

#include <stdio.h>
#include <string.h>

#include "torch/check.h"

static octet_status failed(octet_error *err, const char *call) {
    return oct_torch_fail(err, OCTET_DEVICE, "%s failed", call);
}

/* ---- off the stack ----------------------------------------------------------------------- */

octet_status oct_take_tensor(oct_tensors *out, oct_torch_value value, octet_error *err) {
    oct_torch_tensor *tensor = (oct_torch_tensor *)(uintptr_t)value;
    if (out->count == OCT_TENSORS) {
        (void)oct_torch.aoti_torch_delete_tensor_object(tensor);
        return oct_torch_fail(err, OCTET_INVALID, "more than %d tensors", OCT_TENSORS);
    }
    out->at[out->count++] = tensor;
    return OCTET_OK;
}

octet_status oct_take_tensors(oct_tensors *out, oct_torch_value value, octet_error *err) {
    oct_torch_list *list = (oct_torch_list *)(uintptr_t)value;
    octet_status status = OCTET_OK;
    size_t size = 0;
    if (oct_torch.torch_list_size(list, &size)) {
        status = failed(err, "torch_list_size");
    }
    for (size_t i = 0; i < size; i++) {
        oct_torch_value element;
        if (oct_torch.torch_list_get_item(list, i, &element)) {
            status = failed(err, "torch_list_get_item");
        } else {
            octet_status taken = oct_take_tensor(out, element, err);
            status = status ? status : taken;
        }
    }
    (void)oct_torch.torch_delete_list(list);
    return status;
}

octet_status oct_take_sizes(oct_request *out, oct_torch_value value, octet_error *err) {
    oct_torch_list *list = (oct_torch_list *)(uintptr_t)value;
    octet_status status = OCTET_OK;
    size_t size = 0;
    if (oct_torch.torch_list_size(list, &size)) {
        status = failed(err, "torch_list_size");
    } else if (size > sizeof out->sizes / sizeof *out->sizes) {
        status = oct_torch_fail(err, OCTET_INVALID, "%zu sizes; at most %d axes", size,
                                OCTET_MAX_RANK);
    }
    for (size_t i = 0; i < size && !status; i++) {
        oct_torch_value element;
        if (oct_torch.torch_list_get_item(list, i, &element)) {
            status = failed(err, "torch_list_get_item");
        } else {
            out->sizes[i] = (int64_t)element;
        }
    }
    out->rank = status ? 0 : (int)size;
    (void)oct_torch.torch_delete_list(list);
    return status;
}

octet_status oct_take_text(oct_text *out, oct_torch_value value, octet_error *err) {
    size_t length = 0;
    out->owner = (oct_torch_string *)(uintptr_t)value;
    if (oct_torch.torch_string_length(out->owner, &length) ||
        oct_torch.torch_string_c_str(out->owner, &out->at)) {
        return failed(err, "torch_string_c_str");
    }
    if (length >= OCTET_LINEAR_TEXT || strlen(out->at) != length) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "a text of %zu characters; at most %d, none of them 0", length,
                              OCTET_LINEAR_TEXT - 1);
    }
    return OCTET_OK;
}

void oct_free_text(oct_text *text) {
    if (text->owner) {
        (void)oct_torch.torch_delete_string(text->owner);
    }
    text->owner = NULL;
}

void oct_free_tensors(oct_tensors *tensors) {
    for (int i = 0; i < tensors->count; i++) {
        (void)oct_torch.aoti_torch_delete_tensor_object(tensors->at[i]);
    }
    tensors->count = 0;
}

/* ---- onto the stack ---------------------------------------------------------------------- */

/* The error of a failed allocation, with torch's own text if this torch gives it; older ones
 * print it. An allocation also fails because of an earlier kernel's error; that is not out of
 * memory. */
static octet_status no_tensor(octet_error *err, const char *dtype, int64_t elements) {
    const char *why = oct_torch.torch_exception_get_what_without_backtrace
                          ? oct_torch.torch_exception_get_what_without_backtrace()
                          : NULL;
    bool is_earlier = why && !strncmp(why, "CUDA error", strlen("CUDA error")) &&
                      !strstr(why, "out of memory");
    return oct_torch_fail(err, is_earlier ? OCTET_DEVICE : OCTET_NO_MEMORY,
                          "torch cannot allocate a %s tensor of %lld elements%s%.300s", dtype,
                          (long long)elements, why ? ": " : "", why ? why : "");
}

octet_status oct_new_tensor(oct_tensors *out, octet_dtype dtype, const oct_shape *shape,
                            const octet_device *device, octet_error *err) {
    int64_t strides[OCTET_MAX_RANK];
    int64_t stride = 1;
    int32_t type = 0, index = 0;
    for (int i = shape->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape->sizes[i] > 1 ? shape->sizes[i] : 1;
    }
    if (out->count == OCT_TENSORS) {
        return oct_torch_fail(err, OCTET_INVALID, "more than %d tensors", OCT_TENSORS);
    }
    oct_device_where(&type, &index, device);
    if (oct_torch.aoti_torch_empty_strided(shape->rank, shape->sizes, strides,
                                           oct_torch.dtypes[dtype], type, index,
                                           &out->at[out->count])) {
        return no_tensor(err, octet_dtype_name(dtype), stride);
    }
    out->count++;
    return OCTET_OK;
}

/* A list of torch's owns nothing: it is values, and who takes it takes what they mean. */
octet_status oct_give_tensors(oct_torch_value *out, oct_tensors *tensors, octet_error *err) {
    oct_torch_list *list;
    octet_status status = OCTET_OK;
    if (oct_torch.torch_new_list_reserve_size((size_t)tensors->count, &list)) {
        return failed(err, "torch_new_list_reserve_size");
    }
    for (int i = 0; i < tensors->count && !status; i++) {
        if (oct_torch.torch_list_push_back(list, (uintptr_t)tensors->at[i])) {
            status = failed(err, "torch_list_push_back");
        }
    }
    if (status) {
        (void)oct_torch.torch_delete_list(list);
        return status;
    }
    tensors->count = 0;
    *out = (uintptr_t)list;
    return OCTET_OK;
}

/* ---- tensors as ports -------------------------------------------------------------------- */

/* The row stride of a tensor seen as a matrix; -1 if rows are not evenly spaced. */
static int64_t row_stride(const oct_tensor_facts *f) {
    int64_t last = f->dim - 1;
    if (f->elements < 2) {
        return 0;
    }
    if (f->sizes[last] > 1 && f->strides[last] != 1) {
        return -1;
    }
    int64_t cols = f->sizes[last], step = 0, next = 0;
    for (int64_t i = last - 1; i >= 0; i--) {
        if (f->sizes[i] == 1) {
            continue;
        }
        step = step ? step : f->strides[i];
        if ((next && f->strides[i] != next) || f->strides[i] < cols) {
            return -1;
        }
        next = f->strides[i] * f->sizes[i];
    }
    return step == cols ? 0 : step;
}

static octet_status densify(oct_torch_tensor **tensor, const oct_tensor_facts *f,
                            const octet_plan *plan, const octet_port *port, octet_error *err) {
    oct_tensors copy = {.count = 0};
    oct_shape shape = {.rank = (int)f->dim};
    memcpy(shape.sizes, f->sizes, (size_t)f->dim * sizeof *shape.sizes);
    octet_status status =
        oct_new_tensor(&copy, (octet_dtype)port->dtype, &shape, &plan->device, err);
    if (status) {
        return status;
    }
    if (oct_torch.aoti_torch_copy_(copy.at[0], *tensor, 0)) {
        oct_free_tensors(&copy);
        return failed(err, "aoti_torch_copy_");
    }
    (void)oct_torch.aoti_torch_delete_tensor_object(*tensor);
    *tensor = copy.at[0];
    return OCTET_OK;
}

/* A tensor that is to be used as a port's memory. */
typedef struct viewing {
    oct_tensor_facts f;
    const octet_plan *plan;
    const octet_port *port;
} viewing;

static octet_status view(oct_view *out, oct_torch_tensor **tensor, const viewing *v,
                         octet_error *err) {
    const octet_port *port = v->port;
    octet_status status = oct_check_port(&v->f, v->plan, port, err);
    if (status) {
        return status;
    }
    int64_t stride = row_stride(&v->f);
    bool matrix = port->part == OCTET_PART_VALUES && port->ndim == 2 && !port->is_mutable;
    if (stride != 0 && port->is_mutable) {
        return oct_torch_fail(err, OCTET_INVALID, "it is written, so it must be contiguous");
    }
    if (stride < 0 || (stride && !matrix)) {
        status = densify(tensor, &v->f, v->plan, port, err);
        stride = 0;
    }
    if (!status && oct_torch.aoti_torch_get_data_ptr(*tensor, &out->data)) {
        status = failed(err, "aoti_torch_get_data_ptr");
    }
    out->stride = stride;
    return status;
}

octet_status oct_view_port(oct_view *out, oct_torch_tensor **tensor, const octet_plan *plan,
                           const octet_port *port, octet_error *err) {
    viewing v = {.plan = plan, .port = port};
    octet_status status = oct_look(&v.f, *tensor, err);
    return status ? status : view(out, tensor, &v, err);
}

octet_status oct_view_arena(oct_view *out, int64_t *bytes, oct_torch_tensor **tensor,
                            const octet_plan *plan, octet_error *err) {
    octet_port port = {
        .part = OCTET_PART_VALUES, .dtype = OCTET_U8, .ndim = 1, .is_mutable = 1};
    viewing v = {.plan = plan, .port = &port};
    octet_status status = oct_look(&v.f, *tensor, err);
    if (!status && v.f.dim != 1) {
        status =
            oct_torch_fail(err, OCTET_INVALID, "a restored arena has %lld axes instead of one",
                           (long long)v.f.dim);
    }
    if (status) {
        return status;
    }
    port.bytes = port.shape[0] = *bytes = v.f.sizes[0];
    return view(out, tensor, &v, err);
}
