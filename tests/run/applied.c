/* applied.c - f(x) of a step that computes it and writes it nowhere, by a plan that does. */
#include "check.h"
#include "fill.h"

/* A Linear without a recipe: its product reads f(x), so a step writes it. */
static octet_linear_args plain_args(const run_group *group, const run_view *x) {
    const octet_linear_args *from = &group->args.forward;
    octet_linear_args args = OCTET_LINEAR_ARGS_INIT;
    int gated = octet_prologue_is_gated((octet_prologue)from->prologue) ? 2 : 1;
    int64_t shape[] = {x->rows, x->cols}, one[] = {1, x->cols / gated};
    args.input = octet_proto_make(x->dtype, 2, shape);
    args.weight = octet_proto_make(x->dtype, 2, one);
    args.prologue = from->prologue;
    args.zero_centered = from->zero_centered;
    args.eps = from->eps;
    if (from->gamma.dtype) {
        args.gamma = octet_proto_make((octet_dtype)from->gamma.dtype, 1, one + 1);
    }
    if (from->beta.dtype) {
        args.beta = octet_proto_make((octet_dtype)from->beta.dtype, 1, one + 1);
    }
    return args;
}

static const octet_step *writer_of(const octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].op == OCTET_OP_PROLOGUE) {
            return &plan->steps[i];
        }
    }
    return NULL;
}

static const void *argument_of(run_group *group, const octet_plan *plan, int index,
                               const run_applied *of) {
    switch (plan->args[index].name) {
    case OCTET_NAME_INPUT:
        return of->x.parts[0];
    case OCTET_NAME_GAMMA:
        return of->gamma;
    case OCTET_NAME_BETA:
        return of->beta;
    default:
        return run_allocate(group, plan->args[index].bytes, 0);
    }
}

octet_status run_apply(run_view *out, run_group *group, const run_applied *of) {
    octet_plan plan = OCTET_PLAN_INIT;
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_linear_args args = plain_args(group, &of->x);
    octet_status status = octet_plan_linear(&plan, &args, &group->err);
    const octet_step *writer = status ? NULL : writer_of(&plan);
    if (!writer) {
        return status ? status : OCTET_INVALID;
    }
    for (int i = 0; i < plan.arg_count; i++) {
        memory.args[i] = argument_of(group, &plan, i, of);
        if (plan.args[i].name == OCTET_NAME_INPUT && plan.args[i].bytes) {
            memory.arg_strides[i] = of->x.stride;
        }
    }
    memory.outs[0] = run_allocate(group, plan.outs[0].bytes, 0x5A);
    memory.workspace = run_allocate(group, plan.workspace_bytes, 0xFF);
    memory.workspace_bytes = plan.workspace_bytes;
    const octet_plan_buffer *made =
        &plan.buffers[plan.tensors[writer->dst].buffers[OCTET_PART_VALUES]];
    *out = of->x;
    out->cols = out->stride = args.weight.shape[1];
    out->parts[0] = (char *)memory.workspace + made->offset;
    return octet_run(&plan, &memory, &exec, &group->err);
}
