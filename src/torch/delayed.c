/* delayed.c - the ops that update a layer's state: delayed scaling's. */
#include <string.h>

#include "torch/ops.h"
#include "torch/rule.h"
#include "torch/state.h"
#include "torch/tensor.h"

/* A dense fp32 tensor that an op writes or reads: a state, or amaxes. */
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
        return oct_torch_fail(err, OCTET_INVALID,
                              "delayed scaling's tensors are dense float32: a state (1 + rows, "
                              "slots), amaxes (slots)");
    }
    out->data = found;
    out->rows = f->dim == 2 ? f->sizes[0] : 1;
    out->cols = f->sizes[f->dim - 1];
    return OCTET_OK;
}

/* A state's memory: the scales, and the history in the rows after them. */
static octet_status read_state(octet_delayed *state, const floats *found, octet_error *err) {
    int64_t rows = found->rows - OCT_STATE_AMAXES;
    if (rows < 1 || rows < state->length) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "a history of %lld rows; the recipe uses %lu, and row 0 of a "
                              "state is its scales",
                              (long long)rows, (unsigned long)state->length);
    }
    state->scale = found->data;
    state->history = found->data + OCT_STATE_AMAXES * found->cols;
    state->slots = found->cols;
    return OCTET_OK;
}

/* One amax for each slot, where the state is. */
static octet_status check_amaxes(const floats *amax, const floats *state, octet_error *err) {
    if (amax->facts.device != state->facts.device || amax->facts.index != state->facts.index) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "amaxes are on another device than their state: move them");
    }
    if (amax->rows != 1 || amax->cols != state->cols) {
        return oct_torch_fail(err, OCTET_INVALID, "%lld amaxes for a history of %lld slots",
                              (long long)amax->cols, (long long)state->cols);
    }
    return OCTET_OK;
}

/* Raises the amaxes of the current step, slot by slot. */
octet_status oct_op_delayed_record(oct_torch_value *stack, octet_error *err) {
    oct_tensors tensors = {.count = 0};
    octet_delayed state = OCTET_DELAYED_INIT;
    octet_exec exec;
    floats found = {.data = NULL}, amax = {.data = NULL};
    (void)oct_take_tensor(&tensors, stack[0], err);
    (void)oct_take_tensor(&tensors, stack[1], err);
    octet_status status = take_floats(&found, tensors.at[0], err);
    status = status ? status : take_floats(&amax, tensors.at[1], err);
    status = status ? status : check_amaxes(&amax, &found, err);
    status = status ? status : oct_tensor_exec(&exec, &found.facts, err);
    state.length = 1;
    state.format = OCTET_E4M3;
    status = status ? status : read_state(&state, &found, err);
    status = status ? status : octet_delayed_record(&state, amax.data, &exec, err);
    oct_free_tensors(&tensors);
    return status;
}

octet_status oct_take_update(octet_delayed *out, oct_torch_tensor *state, const char *rule,
                             octet_error *err) {
    floats found;
    octet_status status = oct_rule_get(out, rule, OCTET_GRAD_OUTPUT, err);
    status = status ? status : take_floats(&found, state, err);
    if (!status && found.cols != OCTET_BACKWARD_SLOTS) {
        status = oct_torch_fail(err, OCTET_INVALID,
                                "the first tensor that is written has %lld columns; a rule "
                                "updates a state, which has %d in a backward",
                                (long long)found.cols, OCTET_BACKWARD_SLOTS);
    }
    return status ? status : read_state(out, &found, err);
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

enum { SOME = OCTET_DELAYED_BATCH }; /* states that are updated together */

/* States in their list. It owns none of them, so their handles are ours, and are deleted when
 * all is done. */
typedef struct states {
    oct_torch_list *list;
    octet_delayed rule; /* the rule of all states */
    size_t count;
    octet_exec exec; /* the first state's device */
    int32_t device, index;
} states;

static octet_status take_list(states *all, oct_torch_value value, octet_error *err) {
    all->list = (oct_torch_list *)(uintptr_t)value;
    return oct_torch.torch_list_size(all->list, &all->count)
               ? oct_torch_fail(err, OCTET_DEVICE, "torch_list_size failed")
               : OCTET_OK;
}

/* Checks that all states are on the first one's device. */
static octet_status check_where(states *all, size_t at, const oct_tensor_facts *state,
                                octet_error *err) {
    if (at == 0) {
        all->device = state->device;
        all->index = state->index;
        return oct_tensor_exec(&all->exec, state, err);
    }
    if (state->device != all->device || state->index != all->index) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "state %zu is on another device than state 0: update the states "
                              "of each device by themselves",
                              at);
    }
    return OCTET_OK;
}

static octet_status take_state(octet_delayed *out, states *all, size_t at, octet_error *err) {
    oct_torch_value value;
    floats found;
    octet_status status = oct_torch.torch_list_get_item(all->list, at, &value)
                              ? oct_torch_fail(err, OCTET_DEVICE, "torch_list_get_item failed")
                              : take_floats(&found, (oct_torch_tensor *)(uintptr_t)value, err);
    *out = all->rule;
    status = status ? status : check_where(all, at, &found.facts, err);
    return status ? status : read_state(out, &found, err);
}

static void free_states(states *all) {
    for (size_t i = 0; i < all->count; i++) {
        oct_torch_value value;
        if (!oct_torch.torch_list_get_item(all->list, i, &value)) {
            (void)oct_torch.aoti_torch_delete_tensor_object(
                (oct_torch_tensor *)(uintptr_t)value);
        }
    }
    (void)oct_torch.torch_delete_list(all->list);
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
    free_states(&all);
    return status;
}
