/* call.c - plans, views the arguments, makes the outputs and the workspace, and runs. */
#include "torch/call.h"

#include <string.h>

#include "torch/check.h"
#include "torch/plan_cache.h"
#include "torch/replay.h"
#include "torch/state.h"
#include "torch/threads.h"

/* Tensors that a plan's arguments are. */
static int count_arguments(const octet_plan *plan) {
    int count = 0;
    for (int i = 0; i < plan->arg_count; i++) {
        count += !oct_is_in_state(plan, i);
    }
    return count;
}

/* Arguments by port: mutable ones from `mutated`, the others from `in`, in order. Scales that
 * lie in a state come with it. */
static octet_status view_arguments(octet_memory *memory, oct_call *call, const octet_plan *plan,
                                   octet_error *err) {
    int read = 0, written = 0;
    for (int i = 0; i < plan->arg_count; i++) {
        const octet_port *port = &plan->args[i];
        oct_tensors *from = port->is_mutable ? &call->mutated : &call->in;
        int *next = port->is_mutable ? &written : &read;
        if (oct_is_in_state(plan, i)) {
            continue;
        }
        if (*next == from->count) {
            return oct_torch_fail(err, OCTET_INVALID, "%d tensors; the plan has %d arguments",
                                  call->in.count + call->mutated.count, count_arguments(plan));
        }
        oct_view view;
        if (oct_view_port(&view, &from->at[(*next)++], plan, port, err)) {
            return oct_name_argument(err, i, port);
        }
        oct_put_argument(memory, plan, i, view.data);
        memory->arg_strides[i] = view.stride;
    }
    if (written < call->mutated.count) {
        return oct_torch_fail(err, OCTET_INVALID, "%d tensors to write; the plan writes %d",
                              call->mutated.count, written);
    }
    return OCTET_OK;
}

/* The arenas that earlier plans saved follow the arguments. */
static octet_status view_restored(octet_memory *memory, oct_call *call, const octet_plan *plan,
                                  octet_error *err) {
    octet_status status = OCTET_OK;
    int next = count_arguments(plan) - call->mutated.count;
    for (int i = 0; i < 2 && !status; i++) {
        if (!oct_plan_arenas_of(plan)->restores[i]) {
            continue;
        }
        if (next >= call->in.count) {
            return oct_torch_fail(err, OCTET_INVALID,
                                  "%d tensors: the arena saved by %s is missing",
                                  call->in.count, i ? "backward" : "forward");
        }
        oct_view view = {.data = NULL};
        status =
            oct_view_arena(&view, &memory->restored_bytes[i], &call->in.at[next++], plan, err);
        memory->restored[i] = view.data;
    }
    if (!status && next < call->in.count) {
        status = oct_torch_fail(err, OCTET_INVALID, "%d tensors; the plan takes %d",
                                call->in.count, next);
    }
    return status;
}

static octet_status make_outputs(octet_memory *memory, oct_call *call, const octet_plan *plan,
                                 octet_error *err) {
    octet_status status = OCTET_OK;
    for (int i = 0; i < plan->out_count && !status; i++) {
        oct_shape shape;
        const octet_port *port = &plan->outs[i];
        if (port->alias != OCTET_ABSENT) {
            continue;
        }
        status = oct_port_shape(&shape, plan, port, &call->request, err);
        status = status ? status
                        : oct_new_tensor(&call->out, (octet_dtype)port->dtype, &shape,
                                         &plan->device, err);
        if (!status && oct_torch.aoti_torch_get_data_ptr(call->out.at[call->out.count - 1],
                                                         &memory->outs[i])) {
            status = oct_torch_fail(err, OCTET_DEVICE, "aoti_torch_get_data_ptr failed");
        }
    }
    return status;
}

/* Uses the caller's memory for the outputs; all of them are written. */
static octet_status view_given(octet_memory *memory, oct_call *call, const octet_plan *plan,
                               octet_error *err) {
    octet_status status = OCTET_OK;
    if (call->given.count != plan->out_count) {
        return oct_torch_fail(err, OCTET_INVALID, "%d outputs were given; the plan has %d",
                              call->given.count, plan->out_count);
    }
    for (int i = 0; i < plan->out_count && !status; i++) {
        octet_port port = oct_written_output(&plan->outs[i]);
        oct_view view;
        status = oct_view_port(&view, &call->given.at[i], plan, &port, err);
        memory->outs[i] = status ? NULL : view.data;
    }
    return status;
}

static octet_status new_arena(void **data, oct_tensors *owner, int64_t bytes,
                              const octet_plan *plan, octet_error *err) {
    oct_shape shape = {.sizes = {bytes}, .rank = 1};
    octet_status status = oct_new_tensor(owner, OCTET_U8, &shape, &plan->device, err);
    if (!status && oct_torch.aoti_torch_get_data_ptr(owner->at[owner->count - 1], data)) {
        status = oct_torch_fail(err, OCTET_DEVICE, "aoti_torch_get_data_ptr failed");
    }
    return status;
}

/* Sets the gaps between the buffers of an arena to zero, so that equal calls save equal bytes.
 * Not on a GPU, where each gap would be a launch. */
static void zero_gaps(void *saved, const octet_plan *plan) {
    for (int i = 0; i < plan->buffer_count && oct_device_is_host(&plan->device); i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        int64_t gap = (OCTET_ALIGN - b->bytes % OCTET_ALIGN) % OCTET_ALIGN;
        if (b->place == OCTET_PLACE_SAVED && gap) {
            memset((char *)saved + b->offset + b->bytes, 0, (size_t)gap);
        }
    }
}

static octet_status make_memory(octet_memory *memory, oct_call *call, const octet_plan *plan,
                                octet_error *err) {
    octet_status status = view_arguments(memory, call, plan, err);
    status = status ? status : view_restored(memory, call, plan, err);
    status = status              ? status
             : call->given.count ? view_given(memory, call, plan, err)
                                 : make_outputs(memory, call, plan, err);
    if (!status && oct_plan_arenas_of(plan)->saves) {
        memory->saved_bytes = plan->saved_bytes;
        status = new_arena(&memory->saved, &call->out, plan->saved_bytes, plan, err);
        if (!status) {
            zero_gaps(memory->saved, plan);
        }
    }
    return status;
}

/* The workspace of one run: a tensor, or plain memory. */
typedef struct workspace {
    oct_tensors tensor;
    void *memory;
} workspace;

static octet_status make_workspace(octet_memory *memory, workspace *own, const octet_plan *plan,
                                   octet_error *err) {
    memory->workspace_bytes = plan->workspace_bytes;
    if (oct_device_take(&own->memory, &plan->device, plan->workspace_bytes)) {
        memory->workspace = own->memory;
        return OCTET_OK;
    }
    return new_arena(&memory->workspace, &own->tensor, plan->workspace_bytes, plan, err);
}

static void free_workspace(workspace *own, const octet_plan *plan) {
    oct_device_give_back(&plan->device, own->memory);
    oct_free_tensors(&own->tensor);
}

static octet_status run_plan(oct_call *call, const octet_plan *plan, octet_error *err) {
    octet_exec exec = oct_exec_make(call->request.threads);
    octet_memory memory = OCTET_MEMORY_INIT;
    workspace own = {.memory = NULL};
    octet_status status = make_memory(&memory, call, plan, err);
    status = status ? status : oct_device_exec(&exec, &plan->device, err);
    if (!status && plan->workspace_bytes) {
        status = make_workspace(&memory, &own, plan, err);
    }
    const oct_run run = {plan, &memory, call->updates};
    status = status ? status : oct_replay_run(&run, &exec, err);
    free_workspace(&own, plan);
    return status;
}

octet_status oct_call_run(oct_call *call, octet_error *err) {
    const octet_plan *plan = NULL;
    call->request.text = call->text.at;
    call->request.threads = oct_request_threads(&call->request);
    octet_status status = oct_plan_get(&plan, &call->request, err);
    status = status ? status : run_plan(call, plan, err);
    oct_plan_release(plan);
    return status;
}

void oct_call_free(oct_call *call) {
    oct_free_text(&call->text);
    oct_free_tensors(&call->in);
    oct_free_tensors(&call->mutated);
    oct_free_tensors(&call->given);
    oct_free_tensors(&call->out);
}
