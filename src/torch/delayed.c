/* delayed.c - the ops that update a layer's state: delayed scaling's. */
#include <string.h>

#include "torch/ops.h"
#include "torch/rule.h"
#include "torch/tensor.h"

/* A dense fp32 tensor that an op writes or reads: a vector, or rows of a history. */
typedef struct floats {
    float *data;
    int64_t rows, cols;
    oct_tensor_facts facts;
} floats;

static octet_status take_floats(floats *out, oct_torch_tensor *tensor, octet_error *err) {
    oct_tensor_facts *f = &out->facts;
    void *found = NULL;
    octet_status status = oct_look(f, tensor, err);
    if (!status && oct_torch.aoti_torch_get_data_ptr(tensor, &found)) {
        status = oct_torch_fail(err, OCTET_DEVICE, "aoti_torch_get_data_ptr failed");
    }
    if (status) {
        return status;
    }
    bool dense = f->dim == 1   ? f->sizes[0] < 2 || f->strides[0] == 1
                 : f->dim == 2 ? (f->sizes[1] < 2 || f->strides[1] == 1) &&
                                     (f->sizes[0] < 2 || f->strides[0] == f->sizes[1])
                               : false;
    if (!dense || f->dtype != oct_torch.dtypes[OCTET_F32]) {
        return oct_torch_fail(
            err, OCTET_INVALID,
            "delayed scaling's state is dense float32: scale (slots), history "
            "(length, slots), amax (slots)");
    }
    out->data = found;
    out->rows = f->dim == 2 ? f->sizes[0] : 1;
    out->cols = f->sizes[f->dim - 1];
    return OCTET_OK;
}

/* What an op reads or writes beside a tensor must be where that is. */
static octet_status check_beside(const floats *a, const floats *b, octet_error *err) {
    bool same = a->facts.device == b->facts.device && a->facts.index == b->facts.index;
    return same ? OCTET_OK
                : oct_torch_fail(err, OCTET_INVALID,
                                 "a history is on another device than its scales or amaxes: "
                                 "move them together");
}

/* One amax for each slot of the history. */
static octet_status check_amaxes(const floats *amax, const octet_delayed *state,
                                 octet_error *err) {
    if (amax->rows != 1 || amax->cols != state->slots) {
        return oct_torch_fail(err, OCTET_INVALID, "%lld amaxes for a history of %lld slots",
                              (long long)amax->cols, (long long)state->slots);
    }
    return OCTET_OK;
}

/* history[0] = max(history[0], amax), slot by slot. */
octet_status oct_op_delayed_record(oct_torch_value *stack, octet_error *err) {
    oct_tensors tensors = {.count = 0};
    octet_delayed state = OCTET_DELAYED_INIT;
    octet_exec exec;
    floats history = {.data = NULL}, amax = {.data = NULL};
    (void)oct_take_tensor(&tensors, stack[0], err);
    (void)oct_take_tensor(&tensors, stack[1], err);
    octet_status status = take_floats(&history, tensors.at[0], err);
    status = status ? status : take_floats(&amax, tensors.at[1], err);
    status = status ? status : check_beside(&history, &amax, err);
    status = status ? status : oct_tensor_exec(&exec, &history.facts, err);
    state.history = state.scale = history.data;
    state.slots = history.cols;
    state.length = (uint32_t)history.rows;
    state.format = OCTET_E4M3;
    status = status ? status : check_amaxes(&amax, &state, err);
    status = status ? status : octet_delayed_record(&state, amax.data, &exec, err);
    oct_free_tensors(&tensors);
    return status;
}

/* A state's memory, where its tensors fit each other and the recipe. */
static octet_status read_state(octet_delayed *state, const floats *scale, const floats *history,
                               octet_error *err) {
    octet_status status = check_beside(scale, history, err);
    if (!status && (scale->rows != 1 || scale->cols != history->cols)) {
        status = oct_torch_fail(err, OCTET_INVALID, "%lld scales for a history of %lld slots",
                                (long long)scale->cols, (long long)history->cols);
    }
    if (!status && history->rows < state->length) {
        status =
            oct_torch_fail(err, OCTET_INVALID, "a history of %lld rows; the recipe uses %lu",
                           (long long)history->rows, (unsigned long)state->length);
    }
    state->scale = scale->data;
    state->history = history->data;
    state->slots = history->cols;
    return status;
}

octet_status oct_take_update(octet_delayed *out, oct_torch_tensor *scale,
                             oct_torch_tensor *history, const char *rule, octet_error *err) {
    floats scales, rows;
    octet_status status = oct_rule_get(out, rule, OCTET_GRAD_OUTPUT, err);
    status = status ? status : take_floats(&scales, scale, err);
    status = status ? status : take_floats(&rows, history, err);
    return status ? status : read_state(out, &scales, &rows, err);
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

enum { SOME = OCTET_DELAYED_BATCH }; /* states that are updated in one go */

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
static octet_status check_where(states *all, size_t at, const oct_tensor_facts *scale,
                                octet_error *err) {
    if (at == 0) {
        all->device = scale->device;
        all->index = scale->index;
        return oct_tensor_exec(&all->exec, scale, err);
    }
    if (scale->device != all->device || scale->index != all->index) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "scale %zu is on another device than scale 0: update the states "
                              "of each device by themselves",
                              at);
    }
    return OCTET_OK;
}

static octet_status take_state(octet_delayed *out, states *all, size_t at, octet_error *err) {
    oct_tensors pair = {.count = 0};
    floats found[2];
    octet_status status = OCTET_OK;
    for (size_t i = 0; i < 2 && !status; i++) {
        oct_torch_value value;
        status = oct_torch.torch_list_get_item(all->list, 2 * at + i, &value)
                     ? oct_torch_fail(err, OCTET_DEVICE, "torch_list_get_item failed")
                     : oct_take_tensor(&pair, value, err);
        status = status ? status : take_floats(&found[i], pair.at[i], err);
    }
    *out = all->rule;
    status = status ? status : check_where(all, at, &found[0].facts, err);
    status = status ? status : read_state(out, &found[0], &found[1], err);
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
