/* state.c - the ops that move a layer's state: delayed scaling's. */
#include <string.h>

#include "torch/ops.h"
#include "torch/rule.h"
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

/* What an op reads or writes beside a tensor must be where that is. */
static octet_status check_beside(oct_torch_tensor *tensor, oct_torch_tensor *peer,
                                 octet_error *err) {
    int32_t kinds[2] = {0, 0}, indices[2] = {0, 0};
    octet_status status = oct_tensor_where(&kinds[0], &indices[0], tensor, err);
    status = status ? status : oct_tensor_where(&kinds[1], &indices[1], peer, err);
    if (status) {
        return status;
    }
    if (kinds[0] != kinds[1] || indices[0] != indices[1]) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "a history is on another device than its scales or amaxes: move "
                              "them together");
    }
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

octet_status oct_op_delayed_record(oct_torch_value *stack, octet_error *err) {
    oct_tensors tensors = {.count = 0};
    octet_delayed state = OCTET_DELAYED_INIT;
    int64_t length = 0;
    (void)oct_take_tensor(&tensors, stack[0], err);
    (void)oct_take_tensor(&tensors, stack[1], err);
    octet_exec exec;
    octet_status status = floats(&state.history, &length, &state.slots, tensors.at[0], err);
    status = status ? status : check_beside(tensors.at[0], tensors.at[1], err);
    status = status ? status : oct_tensor_exec(&exec, tensors.at[0], err);
    state.length = (uint32_t)length;
    state.format = OCTET_E4M3;
    state.scale = state.history;
    status = status ? status : record(&state, tensors.at[1], &exec, err);
    oct_free_tensors(&tensors);
    return status;
}

/* A state's memory, where its tensors fit each other and the recipe. */
static octet_status read_state(octet_delayed *state, oct_torch_tensor *scale,
                               oct_torch_tensor *history, octet_error *err) {
    int64_t one = 0, slots = 0, length = 0;
    octet_status status = floats(&state->scale, &one, &slots, scale, err);
    status = status ? status : floats(&state->history, &length, &state->slots, history, err);
    status = status ? status : check_beside(scale, history, err);
    if (!status && (one != 1 || slots != state->slots)) {
        status = oct_torch_fail(err, OCTET_INVALID, "%lld scales for a history of %lld slots",
                                (long long)slots, (long long)state->slots);
    }
    if (!status && length < state->length) {
        status =
            oct_torch_fail(err, OCTET_INVALID, "a history of %lld rows; the recipe uses %lu",
                           (long long)length, (unsigned long)state->length);
    }
    return status;
}

octet_status oct_take_moves(octet_delayed *out, oct_torch_tensor *scale,
                            oct_torch_tensor *history, const char *rule, octet_error *err) {
    octet_status status = oct_rule_get(out, rule, OCTET_GRAD_OUTPUT, err);
    return status ? status : read_state(out, scale, history, err);
}

/* ---- many states ------------------------------------------------------------------------- */

/* "input delayed:history=16": the role and the recipe. */
static octet_status read_rule(octet_delayed *out, const char *text, octet_error *err) {
    size_t length = strcspn(text, " ");
    for (int role = 0; role < OCTET_ROLES; role++) {
        const char *name = octet_role_name((octet_role)role);
        if (strlen(name) == length && !strncmp(name, text, length)) {
            const char *recipe = text + length + (text[length] != 0);
            return oct_rule_get(out, recipe, (octet_role)role, err);
        }
    }
    return oct_torch_fail(err, OCTET_INVALID, "'%.*s' is not a role", (int)length, text);
}

enum { SOME = OCTET_DELAYED_BATCH }; /* states that are moved in one go */

/* Scales and history, and those of the next state, still in their list, which keeps them alive.
 */
typedef struct states {
    oct_torch_list *list;
    octet_delayed rule; /* of all of them */
    size_t count;
    octet_exec exec; /* where the first one is */
    int32_t device, index;
} states;

static octet_status take_list(states *all, oct_torch_value value, octet_error *err) {
    size_t tensors = 0;
    all->list = (oct_torch_list *)(uintptr_t)value;
    if (oct_torch.torch_list_size(all->list, &tensors)) {
        return oct_torch_fail(err, OCTET_DEVICE, "torch_list_size failed");
    }
    all->count = tensors / 2;
    if (tensors % 2) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "%zu tensors; they are scales and history by turns", tensors);
    }
    return OCTET_OK;
}

/* All are where the first one is. */
static octet_status check_where(states *all, size_t at, oct_torch_tensor *scale,
                                octet_error *err) {
    int32_t device = 0, index = 0;
    if (oct_tensor_where(&device, &index, scale, NULL)) {
        return oct_torch_fail(err, OCTET_DEVICE, "torch cannot say where a tensor is");
    }
    if (at == 0) {
        all->device = device;
        all->index = index;
        return oct_tensor_exec(&all->exec, scale, err);
    }
    if (device != all->device || index != all->index) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "scale %zu is on another device than scale 0: update the states "
                              "of each device by themselves",
                              at);
    }
    return OCTET_OK;
}

static octet_status take_state(octet_delayed *out, states *all, size_t at, octet_error *err) {
    oct_tensors pair = {.count = 0};
    oct_torch_value value;
    octet_status status = OCTET_OK;
    for (size_t i = 0; i < 2 && !status; i++) {
        status = oct_torch.torch_list_get_item(all->list, 2 * at + i, &value)
                     ? oct_torch_fail(err, OCTET_DEVICE, "torch_list_get_item failed")
                     : oct_take_tensor(&pair, value, err);
    }
    *out = all->rule;
    status = status ? status : check_where(all, at, pair.at[0], err);
    status = status ? status : read_state(out, pair.at[0], pair.at[1], err);
    oct_free_tensors(&pair);
    return status;
}

static octet_status update_all(states *all, octet_error *err) {
    octet_delayed some[SOME];
    octet_status status = OCTET_OK;
    for (size_t from = 0; from < all->count && !status; from += SOME) {
        int count = 0;
        while (count < SOME && from + (size_t)count < all->count && !status) {
            status = take_state(&some[count], all, from + (size_t)count, err);
            count++;
        }
        status = status ? status : octet_delayed_update_all(some, count, &all->exec, err);
    }
    return status;
}

octet_status oct_op_delayed_update(oct_torch_value *stack, octet_error *err) {
    states all = {.rule = OCTET_DELAYED_INIT};
    oct_text rule = {NULL, NULL};
    octet_status list = take_list(&all, stack[0], err);
    octet_status text = oct_take_text(&rule, stack[1], err);
    octet_status status = list ? list : text;
    status = status ? status : read_rule(&all.rule, rule.at, err);
    status = status ? status : update_all(&all, err);
    oct_free_text(&rule);
    (void)oct_torch.torch_delete_list(all.list);
    return status;
}
