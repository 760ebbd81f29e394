/* phase.c - one phase of a plan on torch's tensors; the caller runs the collectives between. */
#include "torch/call.h"
#include "torch/check.h"
#include "torch/ops.h"
#include "torch/plan_cache.h"
#include "torch/state.h"
#include "torch/threads.h"

/* The op's tensors: those that the phase writes, those that it only reads, and those that are
 * ignored. */
typedef struct phase_call {
    oct_request request;
    oct_text text;
    oct_tensors written, read, after, workspace;
    int phase;
} phase_call;

static octet_status take(phase_call *call, const oct_torch_value *stack, octet_error *err) {
    int64_t plan = (int64_t)stack[5], phase = (int64_t)stack[6];
    octet_status written = oct_take_tensors(&call->written, stack[0], err);
    octet_status read = oct_take_tensors(&call->read, stack[1], err);
    octet_status after = oct_take_tensors(&call->after, stack[2], err);
    octet_status sizes = oct_take_sizes(&call->request, stack[3], err);
    octet_status text = oct_take_text(&call->text, stack[4], err);
    octet_status status = written ? written : read ? read : after ? after : sizes;
    status = status ? status : text;
    if (!status && (plan < OCTET_PLAN_LINEAR || plan > OCTET_PLAN_LINEAR_WGRAD || phase < 0 ||
                    phase > OCTET_PLAN_STEPS)) {
        status = oct_torch_fail(err, OCTET_INVALID, "plan %lld, phase %lld: there is none",
                                (long long)plan, (long long)phase);
    }
    call->request.kind = (octet_plan_kind)plan;
    call->request.text = call->text.at;
    call->phase = (int)phase;
    return status;
}

/* Memory between phases, and outputs, must have the bytes of their port but may have any shape:
 * collectives stack ranks in their own way. */
static octet_status view_any_shape(void **data, oct_torch_tensor **tensor,
                                   const octet_plan *plan, const octet_port *port,
                                   octet_error *err) {
    octet_port any = oct_written_output(port);
    oct_view view = {.data = NULL};
    octet_status status = oct_view_port(&view, tensor, plan, &any, err);
    *data = view.data;
    return status;
}

static octet_status view_argument(octet_memory *memory, oct_torch_tensor **tensor,
                                  const octet_plan *plan, int index, octet_error *err) {
    oct_view view;
    if (oct_view_port(&view, tensor, plan, &plan->args[index], err)) {
        return oct_name_argument(err, index, &plan->args[index]);
    }
    oct_put_argument(memory, plan, index, view.data);
    memory->arg_strides[index] = view.stride;
    return OCTET_OK;
}

static octet_status view_region(octet_memory *memory, oct_torch_tensor **tensor,
                                const octet_plan *plan, const octet_region *region,
                                octet_error *err) {
    oct_view view = {.data = NULL};
    octet_status status;
    int port = region->port;
    switch ((octet_place)region->place) {
    case OCTET_PLACE_ARG:
        return view_argument(memory, tensor, plan, port, err);
    case OCTET_PLACE_OUT:
        return view_any_shape(&memory->outs[port], tensor, plan, &plan->outs[port], err);
    case OCTET_PLACE_EXCHANGE:
        return view_any_shape(&memory->exchanges[port], tensor, plan, &plan->exchanges[port],
                              err);
    case OCTET_PLACE_SAVED:
        status = oct_view_arena(&view, &memory->saved_bytes, tensor, plan, err);
        memory->saved = view.data;
        return status;
    default:
        status = oct_view_arena(&view, &memory->restored_bytes[port], tensor, plan, err);
        memory->restored[port] = view.data;
        return status;
    }
}

/* Each region takes the next tensor of its list. */
static octet_status view_regions(octet_memory *memory, phase_call *call, const octet_plan *plan,
                                 octet_error *err) {
    octet_regions regions;
    octet_status status = OCTET_OK;
    int read = 0, written = 0;
    oct_phase_tensors(&regions, plan, call->phase);
    for (int i = 0; i < regions.count && !status; i++) {
        const octet_region *region = &regions.at[i];
        oct_tensors *from = region->is_written ? &call->written : &call->read;
        int *next = region->is_written ? &written : &read;
        if (*next == from->count) {
            return oct_torch_fail(
                err, OCTET_INVALID, "%d tensors to write and %d to read; phase %d uses %d",
                call->written.count, call->read.count, call->phase, regions.count);
        }
        status = view_region(memory, &from->at[(*next)++], plan, region, err);
    }
    if (!status && (written < call->written.count || read < call->read.count)) {
        status = oct_torch_fail(
            err, OCTET_INVALID, "%d tensors to write and %d to read; phase %d uses %d and %d",
            call->written.count, call->read.count, call->phase, written, read);
    }
    return status;
}

static octet_status make_workspace(octet_memory *memory, phase_call *call,
                                   const octet_plan *plan, octet_error *err) {
    oct_shape shape = {.sizes = {plan->workspace_bytes}, .rank = 1};
    memory->workspace_bytes = plan->workspace_bytes;
    octet_status status =
        oct_new_tensor(&call->workspace, OCTET_U8, &shape, &plan->device, err);
    if (!status &&
        oct_torch.aoti_torch_get_data_ptr(call->workspace.at[0], &memory->workspace)) {
        status = oct_torch_fail(err, OCTET_DEVICE, "aoti_torch_get_data_ptr failed");
    }
    return status;
}

static octet_status run_phase(phase_call *call, const octet_plan *plan, octet_error *err) {
    octet_exec exec = oct_exec_make(call->request.threads);
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_status status = view_regions(&memory, call, plan, err);
    status = status ? status : oct_device_exec(&exec, &plan->device, err);
    if (!status && plan->workspace_bytes) {
        status = make_workspace(&memory, call, plan, err);
    }
    return status ? status : octet_run_phase(plan, call->phase, &memory, &exec, err);
}

octet_status oct_op_linear_phase(oct_torch_value *stack, octet_error *err) {
    phase_call call = {.phase = 0};
    const octet_plan *plan = NULL;
    octet_status status = take(&call, stack, err);
    if (!status) {
        call.request.threads = oct_request_threads(&call.request);
        status = oct_plan_get(&plan, &call.request, err);
    }
    status = status ? status : run_phase(&call, plan, err);
    oct_plan_release(plan);
    oct_free_text(&call.text);
    oct_free_tensors(&call.written);
    oct_free_tensors(&call.read);
    oct_free_tensors(&call.after);
    oct_free_tensors(&call.workspace);
    return status;
}
