/* prologue.c - f(x) before the product, and its backward behind dgrad. */
#include "format/prologue.h"

#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

octet_dim oct_input_columns(const oct_planner *p) {
    return oct_axis_times(OCTET_AXIS_K, oct_prologue_is_gated(p->args->prologue) ? 2 : 1);
}

static uint8_t buffer_or_none(const oct_planner *p, uint8_t tensor) {
    return tensor == OCTET_ABSENT ? OCTET_ABSENT : oct_buffer_of(p->b, tensor);
}

void oct_plan_statistics(oct_planner *p, octet_place place) {
    int count = oct_prologue_statistics(p->args->prologue);
    if (count == 0) {
        return;
    }
    p->stats = oct_tensor(p->b, OCTET_NAME_STATISTICS, OCTET_FORM_GIVEN, OCTET_F32, NULL);
    oct_tensor_shape(p->b, p->stats, oct_tensor_at(p->b, p->x)->rows,
                     oct_axis_times(OCTET_AXIS_ONE, (uint32_t)count));
    oct_place(p->b, p->stats, OCT_ALL_PARTS, place);
    octet_step *step = oct_step(p->b, OCTET_OP_STATISTICS);
    step->a = p->x;
    step->dst = p->stats;
    oct_step_done(p->b, step);
}

uint8_t oct_plan_prologue(oct_planner *p, octet_place place) {
    uint8_t made =
        oct_tensor(p->b, OCTET_NAME_INPUT, OCTET_FORM_PROLOGUE, p->facts.dtype, NULL);
    oct_tensor_shape(p->b, made, oct_tensor_at(p->b, p->x)->rows,
                     oct_dim_of(OCTET_AXIS_K, 1, 1));
    oct_place(p->b, made, OCT_ALL_PARTS, place);
    octet_step *step = oct_step(p->b, OCTET_OP_PROLOGUE);
    step->a = p->x;
    step->dst = made;
    step->stats = p->stats;
    step->gamma = buffer_or_none(p, p->gamma);
    step->bias = buffer_or_none(p, p->beta);
    oct_step_done(p->b, step);
    return made;
}

/* ---- backward ---------------------------------------------------------------------------- */

void oct_prologue_restore(oct_planner *p) {
    if (p->args->prologue) {
        p->x = oct_restored_as(p->b, OCTET_NAME_INPUT, OCTET_FORM_GIVEN);
        p->stats = oct_restored(p->b, OCTET_NAME_STATISTICS);
        p->gamma = oct_restored(p->b, OCTET_NAME_GAMMA);
        p->beta = oct_restored(p->b, OCTET_NAME_BETA);
    }
}

bool oct_prologue_again(const oct_planner *p) {
    return p->args->prologue &&
           oct_restored_as(p->b, OCTET_NAME_INPUT, OCTET_FORM_QUANTIZED) == OCTET_ABSENT;
}

uint8_t oct_prologue_input(oct_planner *p) {
    if (!p->args->prologue) {
        return oct_restored(p->b, OCTET_NAME_INPUT);
    }
    if (!oct_prologue_again(p)) {
        return oct_restored_as(p->b, OCTET_NAME_INPUT, OCTET_FORM_QUANTIZED);
    }
    /* x itself was saved. Ranks that gather values gather those of f(x). */
    bool values = !p->facts.quantized_back || p->args->gather == OCTET_GATHER_HIGH_PRECISION ||
                  !oct_quantizer_is(&p->facts.role[OCTET_INPUT]);
    return oct_plan_prologue(p, oct_gathers_input(p) && values ? OCTET_PLACE_EXCHANGE
                                                               : OCTET_PLACE_WORK);
}

/* A step of the backward: the gradient of f(x), x, and what a norm reads besides. */
static octet_step *grad_step(oct_planner *p, octet_op op, uint8_t grad, uint8_t dst) {
    octet_step *step = oct_step(p->b, op);
    step->a = grad;
    step->b = p->x;
    step->dst = dst;
    step->stats = p->stats;
    return step;
}

static void plan_dx(oct_planner *p, uint8_t grad, const oct_result *dx) {
    octet_plan_form form = dx->quantizer ? OCTET_FORM_HIGH_PRECISION : OCTET_FORM_GIVEN;
    uint8_t made = oct_tensor(p->b, OCTET_NAME_GRAD_INPUT, form, p->facts.dtype, NULL);
    oct_tensor_shape(p->b, made, oct_tensor_at(p->b, grad)->rows, oct_input_columns(p));
    oct_place(p->b, made, OCT_ALL_PARTS, dx->quantizer ? OCTET_PLACE_WORK : OCTET_PLACE_OUT);
    octet_step *step = grad_step(p, OCTET_OP_PROLOGUE_GRAD, grad, made);
    step->gamma = buffer_or_none(p, p->gamma);
    oct_step_done(p->b, step);
    if (dx->quantizer) {
        oct_produce_quantized(p->b, made, dx);
    }
}

/* An output of K columns: a parameter's gradient. */
static uint8_t parameter_grad(oct_planner *p, octet_plan_name name, const octet_proto *of) {
    uint8_t made = oct_tensor(p->b, name, OCTET_FORM_GIVEN, of->dtype, NULL);
    oct_tensor_shape(p->b, made, oct_dim_of(OCTET_AXIS_ONE, 1, 1),
                     oct_dim_of(OCTET_AXIS_K, 1, 1));
    oct_place(p->b, made, OCT_ALL_PARTS, OCTET_PLACE_OUT);
    return made;
}

void oct_plan_prologue_grad(oct_planner *p, uint8_t grad, const oct_result *dx) {
    if (p->facts.xgrad) {
        plan_dx(p, grad, dx);
    }
    if (p->facts.gamma_grad) {
        uint8_t made = parameter_grad(p, OCTET_NAME_GRAD_GAMMA, &p->args->gamma);
        uint8_t sums = oct_column_sums(p, grad, OCTET_NAME_GRAD_GAMMA);
        octet_step *step = grad_step(p, OCTET_OP_GAMMA_GRAD, grad, made);
        step->sums = sums;
        oct_step_done(p->b, step);
    }
    /* What beta adds to every row: as a bias's gradient. */
    if (p->facts.beta_grad) {
        uint8_t made = parameter_grad(p, OCTET_NAME_GRAD_BETA, &p->args->beta);
        uint8_t sums = oct_column_sums(p, grad, OCTET_NAME_GRAD_BETA);
        octet_step *step = oct_step(p->b, OCTET_OP_BIAS_GRAD);
        step->a = grad;
        step->dst = made;
        step->sums = sums;
        oct_step_done(p->b, step);
    }
}
