/* check_form.h - a plan is well formed: afterwards every index of it may be followed. */
#ifndef OCTET_CHECK_FORM_H
#define OCTET_CHECK_FORM_H

#include "check_view.h"

static inline bool check_index(int index, int count) {
    return index == OCTET_ABSENT || index < count;
}

static inline bool check_counts(const octet_plan *plan) {
    return plan->size == sizeof *plan && plan->kind <= OCTET_PLAN_LINEAR_WGRAD &&
           plan->arg_count <= OCTET_PLAN_ARGS && plan->out_count <= OCTET_PLAN_OUTS &&
           plan->exchange_count <= OCTET_PLAN_EXCHANGES &&
           plan->saved_count <= OCTET_PLAN_SAVED && plan->restored_count <= OCTET_PLAN_SAVED &&
           plan->tensor_count <= OCTET_PLAN_TENSORS &&
           plan->buffer_count <= OCTET_PLAN_BUFFERS && plan->step_count <= OCTET_PLAN_STEPS;
}

/* What is not used is zero: plans are compared as bytes. */
static inline bool check_blank(const octet_dim *dims, const int64_t *shape, int ndim) {
    static const octet_dim none;
    bool blank = ndim <= 3;
    for (int i = 0; blank && i < 3; i++) {
        blank = i < ndim || (memcmp(&dims[i], &none, sizeof none) == 0 && shape[i] == 0);
    }
    return blank;
}

static inline bool check_port_form(const octet_port *port, int arg_count) {
    return port->name < OCTET_NAMES && port->form < OCTET_FORMS && port->part < OCTET_PARTS &&
           octet_dtype_bits((octet_dtype)port->dtype) > 0 &&
           check_blank(port->dims, port->shape, port->ndim) && !port->reserved &&
           port->is_mutable <= 1 && check_index(port->alias, arg_count);
}

static inline bool check_buffer_form(const octet_plan *plan, const octet_plan_buffer *buffer) {
    int ports[OCTET_PLACES] = {
        [OCTET_PLACE_ARG] = plan->arg_count,
        [OCTET_PLACE_OUT] = plan->out_count,
        [OCTET_PLACE_SAVED] = 1,
        [OCTET_PLACE_RESTORED] = plan->kind,
        [OCTET_PLACE_WORK] = 1,
        [OCTET_PLACE_EXCHANGE] = plan->exchange_count,
    };
    bool work = buffer->place == OCTET_PLACE_WORK;
    return buffer->tensor < plan->tensor_count && buffer->part < OCTET_PARTS &&
           buffer->ragged <= 1 && buffer->sized <= 1 &&
           (work || !(buffer->ragged | buffer->sized)) && buffer->place < OCTET_PLACES &&
           buffer->port < ports[buffer->place] &&
           octet_dtype_bits((octet_dtype)buffer->dtype) > 0 &&
           check_blank(buffer->dims, buffer->shape, buffer->ndim);
}

static inline bool check_tensor_form(const octet_plan *plan, const octet_plan_tensor *tensor) {
    const octet_quantizer *q = &tensor->quantizer;
    bool good = tensor->name < OCTET_NAMES && tensor->form < OCTET_FORMS &&
                octet_dtype_bits((octet_dtype)tensor->dtype) > 0 && !tensor->reserved &&
                !(q->reserved0 | q->reserved[0] | q->reserved[1]);
    for (int part = 0; part < OCTET_PARTS; part++) {
        good = good && check_index(tensor->buffers[part], plan->buffer_count);
    }
    return good && octet_quantizer_check(q, NULL) == OCTET_OK;
}

/* Which operands an operation cannot do without. */
typedef struct check_operands {
    uint8_t a, b, dst, from, to, bias;
} check_operands;

static const check_operands check_needs[OCTET_OPS] = {
    [OCTET_OP_ZERO] = {.to = 1},
    [OCTET_OP_CAST] = {.a = 1, .dst = 1},
    [OCTET_OP_AMAX] = {.a = 1},
    [OCTET_OP_QUANTIZE] = {.a = 1, .dst = 1},
    [OCTET_OP_DEQUANTIZE] = {.a = 1, .dst = 1},
    [OCTET_OP_TRANSPOSE] = {.a = 1, .dst = 1},
    [OCTET_OP_SWIZZLE] = {.a = 1, .dst = 1},
    [OCTET_OP_ASSEMBLE] = {.a = 1, .dst = 1},
    [OCTET_OP_JOIN] = {.a = 1, .dst = 1},
    [OCTET_OP_GEMM] = {.a = 1, .b = 1, .dst = 1},
    [OCTET_OP_ADD_BIAS] = {.a = 1, .dst = 1, .bias = 1},
    [OCTET_OP_BIAS_GRAD] = {.a = 1, .dst = 1},
    [OCTET_OP_STATISTICS] = {.a = 1, .dst = 1},
    [OCTET_OP_PROLOGUE] = {.a = 1, .dst = 1},
    [OCTET_OP_PROLOGUE_GRAD] = {.a = 1, .b = 1, .dst = 1},
    [OCTET_OP_GAMMA_GRAD] = {.a = 1, .b = 1, .dst = 1},
    [OCTET_OP_COLLECTIVE] = {.from = 1, .to = 1},
};

static inline bool check_operands_present(const octet_step *step) {
    const check_operands *needs = &check_needs[step->op];
    return !(needs->a && step->a == OCTET_ABSENT) && !(needs->b && step->b == OCTET_ABSENT) &&
           !(needs->dst && step->dst == OCTET_ABSENT) &&
           !(needs->bias && step->bias == OCTET_ABSENT) &&
           !(needs->from && step->from == OCTET_ABSENT) &&
           !(needs->to && step->to == OCTET_ABSENT) &&
           (step->op == OCTET_OP_COLLECTIVE) == (step->collective != OCTET_COLLECTIVE_NONE);
}

/* Steps of a prologue's backward. */
static inline bool check_is_grad(const octet_step *step) {
    return step->op == OCTET_OP_PROLOGUE_GRAD || step->op == OCTET_OP_GAMMA_GRAD;
}

static inline bool check_prologue_blank(const octet_step *step) {
    bool applies = step->op == OCTET_OP_PROLOGUE || step->apply;
    bool casts = step->op == OCTET_OP_QUANTIZE || step->op == OCTET_OP_AMAX;
    return step->apply <= casts &&
           (step->stats == OCTET_ABSENT || applies || check_is_grad(step)) &&
           (step->gamma == OCTET_ABSENT || applies || step->op == OCTET_OP_PROLOGUE_GRAD);
}

/* Fields that an operation has no use for are absent. */
static inline bool check_step_blank(const octet_step *step) {
    bool gemm = step->op == OCTET_OP_GEMM, quantize = step->op == OCTET_OP_QUANTIZE;
    bool flags = step->accumulate <= 1 && step->split <= 1 && step->native <= 1 &&
                 step->invariant <= 1 && step->row_unread <= 1 && step->col_unread <= 1;
    bool cut = gemm || step->op == OCTET_OP_CAST || step->op == OCTET_OP_ADD_BIAS ||
               step->op == OCTET_OP_ASSEMBLE || step->op == OCTET_OP_JOIN ||
               step->op == OCTET_OP_COLLECTIVE;
    for (size_t i = 0; i < sizeof step->reserved; i++) {
        flags = flags && !step->reserved[i];
    }
    flags = flags && check_prologue_blank(step) && (cut || step->chunk == OCTET_ABSENT) &&
            (step->seed != OCTET_ABSENT || !step->stream);
    bool adds = quantize || step->op == OCTET_OP_AMAX || step->op == OCTET_OP_BIAS_GRAD;
    bool product = (!step->accumulate || adds) &&
                   !(step->gemm | step->split | step->native | step->b_use | step->invariant) &&
                   (step->b == OCTET_ABSENT || check_is_grad(step)) &&
                   (quantize || step->scratch == OCTET_ABSENT) &&
                   (quantize || (step->a_copy & step->b_copy) == OCTET_ABSENT);
    bool passing = quantize ? step->row_unread <= (step->a_copy != OCTET_ABSENT) &&
                                  step->col_unread <= (step->b_copy != OCTET_ABSENT)
                            : !(step->row_unread | step->col_unread);
    bool scaling = (step->scale & step->seed) == OCTET_ABSENT &&
                   (step->amax == OCTET_ABSENT || step->op == OCTET_OP_AMAX ||
                    step->op == OCTET_OP_PROLOGUE);
    bool directed = gemm || step->op == OCTET_OP_DEQUANTIZE || step->op == OCTET_OP_TRANSPOSE ||
                    step->op == OCTET_OP_SWIZZLE;
    bool sums = quantize || step->op == OCTET_OP_BIAS_GRAD || step->op == OCTET_OP_GAMMA_GRAD ||
                step->sums == OCTET_ABSENT ||
                (step->op == OCTET_OP_AMAX && step->dst != OCTET_ABSENT);
    bool moving = step->from == OCTET_ABSENT || step->op == OCTET_OP_COLLECTIVE;
    return flags && passing && (gemm || product) && (quantize || scaling) && moving && sums &&
           (directed || step->a_use == OCTET_USE_VALUES);
}

static inline bool check_step_form(const octet_plan *plan, const octet_step *step) {
    uint64_t beyond = plan->buffer_count < 64 ? ~(uint64_t)0 << plan->buffer_count : 0;
    int tensors = plan->tensor_count, buffers = plan->buffer_count;
    return step->op < OCTET_OPS && step->a_use <= OCTET_USE_COL &&
           step->b_use <= OCTET_USE_COL && step->gemm < OCTET_GEMMS &&
           step->collective <= OCTET_ALL_REDUCE_MAX && step->phase < plan->phases &&
           check_index(step->dst, tensors) && check_index(step->a, tensors) &&
           check_index(step->b, tensors) && check_index(step->a_copy, tensors) &&
           check_index(step->b_copy, tensors) && check_index(step->sums, tensors) &&
           check_index(step->stats, tensors) && check_index(step->gamma, buffers) &&
           check_index(step->from, buffers) && check_index(step->to, buffers) &&
           check_index(step->bias, buffers) && check_index(step->scale, buffers) &&
           check_index(step->amax, buffers) && check_index(step->seed, buffers) &&
           check_index(step->scratch, buffers) &&
           ((step->reads | step->writes) & beyond) == 0 && check_operands_present(step) &&
           check_step_blank(step);
}

static inline bool check_ports_form(check_report *report, const octet_plan *plan) {
    bool good = true;
    for (int i = 0; i < plan->arg_count; i++) {
        good &= CHECK_LAW(report, LAW_FORM, check_port_form(&plan->args[i], 0),
                          "argument %d has a field out of range", i);
    }
    for (int i = 0; i < plan->out_count; i++) {
        good &= CHECK_LAW(report, LAW_FORM, check_port_form(&plan->outs[i], plan->arg_count),
                          "output %d has a field out of range", i);
    }
    for (int i = 0; i < plan->exchange_count; i++) {
        good &=
            CHECK_LAW(report, LAW_FORM,
                      check_port_form(&plan->exchanges[i], 0) && !plan->exchanges[i].is_mutable,
                      "exchange %d has a field out of range", i);
    }
    return good;
}

static inline bool check_slots_form(check_report *report, const octet_plan *plan) {
    bool good = true;
    for (int i = 0; i < plan->saved_count; i++) {
        good &= CHECK_LAW(report, LAW_FORM, plan->saved[i] < plan->buffer_count,
                          "saved slot %d is no buffer", i);
    }
    for (int i = 0; i < plan->restored_count; i++) {
        good &= CHECK_LAW(report, LAW_FORM, plan->restored[i] < plan->buffer_count,
                          "restored slot %d is no buffer", i);
    }
    return good;
}

/* When it holds, the other laws may follow every index of the plan. */
static inline bool check_form(check_report *report, const octet_plan *plan) {
    if (!CHECK_LAW(report, LAW_FORM, check_counts(plan), "a count is out of range")) {
        return false;
    }
    bool ports = check_ports_form(report, plan), slots = check_slots_form(report, plan);
    bool good = ports && slots;
    for (int i = 0; i < plan->tensor_count; i++) {
        good &= CHECK_LAW(report, LAW_FORM, check_tensor_form(plan, &plan->tensors[i]),
                          "tensor %d has a field out of range", i);
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        good &= CHECK_LAW(report, LAW_FORM, check_buffer_form(plan, &plan->buffers[i]),
                          "buffer %d has a field out of range", i);
    }
    for (int i = 0; i < plan->step_count; i++) {
        good &= CHECK_LAW(report, LAW_FORM, check_step_form(plan, &plan->steps[i]),
                          "step %d has a field out of range", i);
    }
    return good;
}

#endif
