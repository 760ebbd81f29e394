/* state.c - the ops that move a layer's state: delayed scaling's, and the random step. */
#include <string.h>

#include "torch/ops.h"
#include "torch/tensor.h"

/* A dense fp32 tensor that an op writes or reads. */
static octet_status floats(float **data, int64_t *rows, int64_t *cols, oct_torch_tensor *tensor,
                           octet_error *err) {
    int64_t dim = 0, *sizes = NULL, *strides = NULL;
    int32_t dtype = 0;
    void *found = NULL;
    if (oct_torch.aoti_torch_get_dim(tensor, &dim) ||
        oct_torch.aoti_torch_get_sizes(tensor, &sizes) ||
        oct_torch.aoti_torch_get_strides(tensor, &strides) ||
        oct_torch.aoti_torch_get_dtype(tensor, &dtype) ||
        oct_torch.aoti_torch_get_data_ptr(tensor, &found)) {
        return oct_torch_fail(err, OCTET_DEVICE, "torch cannot say what a tensor is");
    }
    bool dense = dim == 1   ? sizes[0] < 2 || strides[0] == 1
                 : dim == 2 ? (sizes[1] < 2 || strides[1] == 1) &&
                                  (sizes[0] < 2 || strides[0] == sizes[1])
                            : false;
    if (!dense || dtype != oct_torch.dtypes[OCTET_F32]) {
        return oct_torch_fail(
            err, OCTET_INVALID,
            "delayed scaling's state is dense float32: scale (slots), history "
            "(length, slots), amax (slots)");
    }
    *data = found;
    *rows = dim == 2 ? sizes[0] : 1;
    *cols = sizes[dim - 1];
    return OCTET_OK;
}

/* One amax for each slot of the state. */
static octet_status take_amax(float **amax, const octet_delayed *state,
                              oct_torch_tensor *tensor, octet_error *err) {
    int64_t rows = 0, slots = 0;
    octet_status status = floats(amax, &rows, &slots, tensor, err);
    if (!status && (rows != 1 || slots != state->slots)) {
        status = oct_torch_fail(err, OCTET_INVALID, "%lld amaxes for a history of %lld slots",
                                (long long)slots, (long long)state->slots);
    }
    return status;
}

/* history[0] = max(history[0], amax), slot by slot. */
static octet_status record(const octet_delayed *state, oct_torch_tensor *tensor,
                           const octet_exec *exec, octet_error *err) {
    float *amax = NULL;
    octet_status status = take_amax(&amax, state, tensor, err);
    return status ? status : octet_delayed_record(state, amax, exec, err);
}

/* Records every amax and moves the scales, the last of them in one go. */
static octet_status update(const octet_delayed *state, const oct_tensors *tensors, int first,
                           const octet_exec *exec, octet_error *err) {
    octet_status status = OCTET_OK;
    for (int i = first; i + 1 < tensors->count && !status; i++) {
        status = record(state, tensors->at[i], exec, err);
    }
    if (status || first == tensors->count) {
        return status ? status : octet_delayed_update(state, NULL, exec, err);
    }
    float *amax = NULL;
    status = take_amax(&amax, state, tensors->at[tensors->count - 1], err);
    return status ? status : octet_delayed_step(state, amax, exec, err);
}

octet_status oct_op_delayed_record(oct_torch_value *stack, octet_error *err) {
    oct_tensors tensors = {.count = 0};
    octet_delayed state = OCTET_DELAYED_INIT;
    int64_t length = 0;
    (void)oct_take_tensor(&tensors, stack[0], err);
    (void)oct_take_tensor(&tensors, stack[1], err);
    octet_exec exec;
    octet_status status = floats(&state.history, &length, &state.slots, tensors.at[0], err);
    status = status ? status : oct_tensor_exec(&exec, tensors.at[0], err);
    state.length = (uint32_t)length;
    state.format = OCTET_E4M3;
    state.scale = state.history;
    status = status ? status : record(&state, tensors.at[1], &exec, err);
    oct_free_tensors(&tensors);
    return status;
}

/* The recipe says algorithm and margin, the role which format the scales aim at. */
static octet_status read_recipe(octet_delayed *state, const char *text, const char *role,
                                octet_error *err) {
    octet_recipe recipe;
    octet_quantizer quantizer;
    octet_status status = octet_recipe_parse(&recipe, text, err);
    int which = 0;
    while (which < OCTET_ROLES && strcmp(role, octet_role_name((octet_role)which)) != 0) {
        which++;
    }
    if (!status && (which == OCTET_ROLES || recipe.kind != OCTET_RECIPE_DELAYED)) {
        status =
            oct_torch_fail(err, OCTET_INVALID, "'%s' of '%s' has no delayed state", role, text);
    }
    status =
        status ? status : octet_recipe_quantizer(&quantizer, &recipe, (octet_role)which, err);
    if (!status) {
        state->format = quantizer.format;
        state->algo = recipe.algo;
        state->margin = recipe.margin;
        state->length = recipe.history;
    }
    return status;
}

octet_status oct_op_delayed_update(oct_torch_value *stack, octet_error *err) {
    oct_tensors tensors = {.count = 0};
    octet_delayed state = OCTET_DELAYED_INIT;
    oct_text text = {NULL, NULL}, role = {NULL, NULL};
    int64_t one = 0, slots = 0, length = 0;
    (void)oct_take_tensor(&tensors, stack[0], err);
    (void)oct_take_tensor(&tensors, stack[1], err);
    octet_status amaxes = oct_take_tensors(&tensors, stack[2], err);
    octet_status recipe = oct_take_text(&text, stack[3], err);
    octet_status name = oct_take_text(&role, stack[4], err);
    octet_status status = amaxes ? amaxes : recipe ? recipe : name;
    octet_exec exec;
    status = status ? status : read_recipe(&state, text.at, role.at, err);
    status = status ? status : oct_tensor_exec(&exec, tensors.at[0], err);
    status = status ? status : floats(&state.scale, &one, &slots, tensors.at[0], err);
    status =
        status ? status : floats(&state.history, &length, &state.slots, tensors.at[1], err);
    if (!status && (one != 1 || slots != state.slots)) {
        status = oct_torch_fail(err, OCTET_INVALID, "%lld scales for a history of %lld slots",
                                (long long)slots, (long long)state.slots);
    }
    if (!status && length < state.length) {
        status =
            oct_torch_fail(err, OCTET_INVALID, "a history of %lld rows; the recipe uses %lu",
                           (long long)length, (unsigned long)state.length);
    }
    status = status ? status : update(&state, &tensors, 2, &exec, err);
    oct_free_text(&text);
    oct_free_text(&role);
    oct_free_tensors(&tensors);
    return status;
}

/* The step after this one draws other bits: random is (base, step). */
octet_status oct_op_advance(oct_torch_value *stack, octet_error *err) {
    oct_tensors tensors = {.count = 0};
    (void)oct_take_tensor(&tensors, stack[0], err);
    int64_t dim = 0, *sizes = NULL, *strides = NULL;
    int32_t dtype = 0;
    void *data = NULL;
    octet_status status = OCTET_OK;
    bool known = !oct_torch.aoti_torch_get_dim(tensors.at[0], &dim) &&
                 !oct_torch.aoti_torch_get_sizes(tensors.at[0], &sizes) &&
                 !oct_torch.aoti_torch_get_strides(tensors.at[0], &strides) &&
                 !oct_torch.aoti_torch_get_dtype(tensors.at[0], &dtype) &&
                 !oct_torch.aoti_torch_get_data_ptr(tensors.at[0], &data);
    if (!known || dim != 1 || sizes[0] != 2 || strides[0] != 1 ||
        dtype != oct_torch.dtypes[OCTET_I64]) {
        status = oct_torch_fail(err, OCTET_INVALID,
                                "the random state is two dense int64: base and step");
    }
    octet_exec exec;
    status = status ? status : oct_tensor_exec(&exec, tensors.at[0], err);
    status = status ? status : octet_random_advance(data, &exec, err);
    oct_free_tensors(&tensors);
    return status;
}
