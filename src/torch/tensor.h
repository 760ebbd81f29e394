/* tensor.h - torch's tensors, lists and strings as C sees them. */
#ifndef OCT_TORCH_TENSOR_H
#define OCT_TORCH_TENSOR_H

#include "torch/device.h"
#include "torch/request.h"

#define OCT_TENSORS (OCTET_PLAN_ARGS + 3)

/* Owned tensors: whoever fills one frees it. */
typedef struct oct_tensors {
    oct_torch_tensor *at[OCT_TENSORS];
    int count;
} oct_tensors;

/* Takes the tensors of a list off the stack, and frees the list. */
octet_status oct_take_tensors(oct_tensors *out, oct_torch_value value, octet_error *err);
/* Takes one tensor off the stack and appends it. */
octet_status oct_take_tensor(oct_tensors *out, oct_torch_value value, octet_error *err);
octet_status oct_take_sizes(oct_request *out, oct_torch_value value, octet_error *err);
/* A string off the stack: `at` is its text, at most OCTET_LINEAR_TEXT - 1 characters. Whoever
 * takes one frees it, also when it was refused. */
typedef struct oct_text {
    oct_torch_string *owner;
    const char *at;
} oct_text;
octet_status oct_take_text(oct_text *out, oct_torch_value value, octet_error *err);
void oct_free_text(oct_text *text);
void oct_free_tensors(oct_tensors *tensors);

/* Appends a new dense tensor, uninitialized, on the device. */
octet_status oct_new_tensor(oct_tensors *out, octet_dtype dtype, const oct_shape *shape,
                            const octet_device *device, octet_error *err);
/* Makes a list of owned tensors into a value, and takes them over. */
octet_status oct_give_tensors(oct_torch_value *out, oct_tensors *tensors, octet_error *err);

/* A tensor's address, and its row stride as a matrix in elements (0: dense). If its rows are
 * not evenly spaced, it is replaced by a dense copy, unless it will be written. */
typedef struct oct_view {
    void *data;
    int64_t stride;
} oct_view;

octet_status oct_view_port(oct_view *out, oct_torch_tensor **tensor, const octet_plan *plan,
                           const octet_port *port, octet_error *err);
/* The same of an arena, as long as it is. */
octet_status oct_view_arena(oct_view *out, int64_t *bytes, oct_torch_tensor **tensor,
                            const octet_plan *plan, octet_error *err);

#endif
