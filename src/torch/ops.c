/* ops.c - the ops on plans: take the arguments, run, give the outputs. */
#include "torch/ops.h"

#include <string.h>

#include "torch/call.h"

static octet_status first(octet_status a, octet_status b) {
    return a ? a : b;
}

/* The sizes are the input's axes, and the device is the input's. */
static octet_status read_input(oct_request *request, oct_torch_tensor *tensor,
                               octet_error *err) {
    oct_tensor_facts f;
    octet_status status = oct_look(&f, tensor, err);
    if (!status && f.dim > OCTET_MAX_RANK) {
        status = oct_torch_fail(err, OCTET_INVALID, "a tensor of %lld axes; at most %d",
                                (long long)f.dim, OCTET_MAX_RANK);
    }
    if (status) {
        return status;
    }
    request->rank = (int)f.dim;
    memcpy(request->sizes, f.sizes, (size_t)f.dim * sizeof *f.sizes);
    return oct_tensor_device(&request->device, &f, err);
}

/* input, live, text: from stack[at] on. */
static octet_status take_quantize(oct_call *call, const oct_torch_value *stack,
                                  octet_error *err) {
    call->request.kind = OCTET_PLAN_QUANTIZE;
    octet_status status = oct_take_tensor(&call->in, stack[0], err);
    status = status ? status : read_input(&call->request, call->in.at[0], err);
    octet_status live = oct_take_tensors(&call->in, stack[1], err);
    octet_status text = oct_take_text(&call->text, stack[2], err);
    return first(status, first(live, text));
}

octet_status oct_op_quantize(oct_torch_value *stack, octet_error *err) {
    oct_call call = {.in = {.count = 0}};
    octet_status status = take_quantize(&call, stack, err);
    status = status ? status : oct_call_run(&call, err);
    status = status ? status : oct_give_tensors(stack, &call.out, err);
    oct_call_free(&call);
    return status;
}

octet_status oct_op_quantize_into(oct_torch_value *stack, octet_error *err) {
    oct_call call = {.in = {.count = 0}};
    octet_status given = oct_take_tensors(&call.given, stack[0], err);
    octet_status status = first(given, take_quantize(&call, stack + 1, err));
    status = status ? status : oct_call_run(&call, err);
    oct_call_free(&call);
    return status;
}

/* args, sizes, text. */
static octet_status take_planned(oct_call *call, octet_plan_kind kind,
                                 const oct_torch_value *stack, octet_error *err) {
    call->request.kind = kind;
    octet_status tensors = oct_take_tensors(&call->in, stack[0], err);
    octet_status sizes = oct_take_sizes(&call->request, stack[1], err);
    octet_status text = oct_take_text(&call->text, stack[2], err);
    return first(tensors, first(sizes, text));
}

octet_status oct_op_dequantize(oct_torch_value *stack, octet_error *err) {
    oct_call call = {.in = {.count = 0}};
    octet_status status = take_planned(&call, OCTET_PLAN_DEQUANTIZE, stack, err);
    if (!status && call.in.count) {
        oct_tensor_facts f;
        status = oct_look(&f, call.in.at[0], err);
        status = status ? status : oct_tensor_device(&call.request.device, &f, err);
    }
    status = status ? status : oct_call_run(&call, err);
    if (!status) {
        stack[0] = (uintptr_t)call.out.at[0];
        call.out.count = 0;
    }
    oct_call_free(&call);
    return status;
}

static octet_status run_listed(octet_plan_kind kind, oct_torch_value *stack, octet_error *err) {
    oct_call call = {.in = {.count = 0}};
    octet_status status = take_planned(&call, kind, stack, err);
    status = status ? status : oct_call_run(&call, err);
    status = status ? status : oct_give_tensors(stack, &call.out, err);
    oct_call_free(&call);
    return status;
}

octet_status oct_op_linear(oct_torch_value *stack, octet_error *err) {
    return run_listed(OCTET_PLAN_LINEAR, stack, err);
}

octet_status oct_op_linear_seeded(oct_torch_value *stack, octet_error *err) {
    oct_tensors seed = {.count = 0};
    octet_status taken = oct_take_tensor(&seed, stack[1], err);
    oct_torch_value rest[3] = {stack[0], stack[2], stack[3]};
    octet_status status = first(taken, run_listed(OCTET_PLAN_LINEAR, rest, err));
    stack[0] = rest[0];
    oct_free_tensors(&seed);
    return status;
}

octet_status oct_op_linear_backward(oct_torch_value *stack, octet_error *err) {
    return run_listed(OCTET_PLAN_LINEAR_BACKWARD, stack, err);
}

octet_status oct_op_linear_wgrad(oct_torch_value *stack, octet_error *err) {
    return run_listed(OCTET_PLAN_LINEAR_WGRAD, stack, err);
}

/* Puts as many tensors on the stack as the overload returns. */
static octet_status give_fixed(oct_torch_value *stack, oct_tensors *out, uint64_t outputs,
                               octet_error *err) {
    if ((uint64_t)out->count != outputs) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "the plan has %d outputs; this overload returns %d", out->count,
                              (int)outputs);
    }
    for (int i = 0; i < out->count; i++) {
        stack[i] = (uintptr_t)out->at[i];
    }
    out->count = 0;
    return OCTET_OK;
}

octet_status oct_op_linear_into(oct_torch_value *stack, uint64_t outputs, octet_error *err) {
    oct_call call = {.in = {.count = 0}};
    octet_status written = oct_take_tensors(&call.mutated, stack[0], err);
    octet_status status =
        first(written, take_planned(&call, OCTET_PLAN_LINEAR, stack + 1, err));
    status = status ? status : oct_call_run(&call, err);
    status = status ? status : give_fixed(stack, &call.out, outputs, err);
    oct_call_free(&call);
    return status;
}

octet_status oct_op_linear_backward_into(oct_torch_value *stack, uint64_t outputs,
                                         octet_error *err) {
    oct_call call = {.in = {.count = 0}};
    oct_text rule = {NULL, NULL};
    octet_status written = oct_take_tensors(&call.mutated, stack[0], err);
    octet_status plan = take_planned(&call, OCTET_PLAN_LINEAR_BACKWARD, stack + 1, err);
    octet_status text = oct_take_text(&rule, stack[4], err);
    octet_status status = first(written, first(plan, text));
    octet_delayed updates = OCTET_DELAYED_INIT;
    if (!status && rule.at[0]) {
        call.updates = &updates;
        status = call.mutated.count
                     ? oct_take_update(&updates, call.mutated.at[0], rule.at, err)
                     : oct_torch_fail(err, OCTET_INVALID,
                                      "nothing is written; a rule updates a state");
    }
    status = status ? status : oct_call_run(&call, err);
    status = status ? status : give_fixed(stack, &call.out, outputs, err);
    oct_free_text(&rule);
    oct_call_free(&call);
    return status;
}

octet_status oct_op_linear_wgrad_into(oct_torch_value *stack, octet_error *err) {
    oct_call call = {.in = {.count = 0}};
    octet_status grad = oct_take_tensor(&call.mutated, stack[0], err);
    octet_status status =
        first(grad, take_planned(&call, OCTET_PLAN_LINEAR_WGRAD, stack + 1, err));
    status = status ? status : oct_call_run(&call, err);
    oct_call_free(&call);
    return status;
}
