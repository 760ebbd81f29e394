/* backward.c - dx, dw and db from dy: what is quantized, gathered, multiplied and reduced. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

/* The weight that forward saved, as dgrad reads it: dx = dy w sums over the weight's rows. */
static oct_operand dgrad_weight(oct_planner *p) {
    uint8_t w = oct_restored(p->b, OCTET_NAME_WEIGHT);
    uint8_t scale = oct_restored(p->b, OCTET_NAME_WEIGHT_SCALE);
    bool plain = oct_tensor_is_plain(p->b, w);
    octet_quantizer q = p->facts.role[OCTET_WEIGHT];
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, false, true);
    /* Delayed scaling, and the weight is quantized again: by the scale that forward used.
     * e.g. `recipe=delayed fsdp`: "by weight_scale.cast" */
    if (scale != OCTET_ABSENT) {
        how.restored_scale = oct_buffer_of(p->b, scale);
    }
    /* By the recipe: columnwise bytes, saved, transposed, or made from the weight (FSDP).
     * e.g. `recipe=mxfp8`: "x weight.quantized columnwise"
     * e.g. `recipe=current qw=fp8-tensor:e4m3+row device=cuda:0/90`: "transpose weight rowwise
     * -> weight.requantized"
     * e.g. `recipe=mxfp8 fsdp`: "quantize weight -> weight.quantized mxfp8:e4m3/1x32+col" */
    if (p->facts.quantized_back && (!plain || oct_quantizer_is(&q))) {
        how.quantizer = oct_for_gemm(p->b, how.quantizer);
        return oct_direction(p->b, w, OCTET_USE_COL, &how, OCTET_HADAMARD_NONE);
    }
    /* Backward multiplies what forward multiplied, decoded. The weight itself was saved (FSDP),
     * so forward's rowwise cast is repeated.
     * e.g. `recipe=mxfp8:override=dequantized fsdp`: "1 quantize weight -> weight.quantized
     * mxfp8:e4m3/1x32+row 2 dequantize weight.quantized rowwise" */
    bool decoded = p->args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED;
    if (decoded && plain && oct_quantizer_is(&q)) {
        how.quantizer.rowwise = 1;
        how.quantizer.columnwise = 0;
        w = oct_quantize(p->b, w, &how);
    }
    /* High precision, or decoded: numbers in the dtype of the activations.
     * e.g. `recipe=mxfp8:override=dequantized`: "x weight.dequantized" */
    return (oct_operand){oct_values(p->b, w, p->facts.dtype, OCTET_PLACE_WORK),
                         OCTET_USE_VALUES};
}

/* A product that has begun, and what is to become of it. */
typedef struct dgrad {
    oct_result result;
    oct_tail tail;
} dgrad;

/* dx = dy w; with a prologue it is the gradient of f(x). */
static dgrad start_dgrad(oct_planner *p, oct_operand dy) {
    const oct_facts *f = &p->facts;
    bool column = f->parallel == OCTET_PARALLEL_COLUMN;
    oct_operand w = dgrad_weight(p);
    oct_result result = {OCTET_NAME_GRAD_INPUT,
                         f->dtype,
                         oct_tensor_at(p->b, dy.tensor)->rows,
                         oct_dim_of(OCTET_AXIS_K, 1, 1),
                         OCTET_COLLECTIVE_NONE,
                         OCTET_ABSENT,
                         NULL,
                         OCTET_SLOT_GRAD_INPUT};
    oct_product product = {OCTET_DGRAD,
                           dy,
                           w,
                           OCTET_ABSENT,
                           OCTET_ABSENT,
                           false,
                           f->quantized_back && p->args->recipe.split_dgrad};
    /* Column parallel: each rank has a part of the sum over n. With sequence each rank receives
     * its rows of dx. With 4096 outputs on 4 ranks each sums over 1024.
     * e.g. `parallel=column tp=2`: "all-reduce sum grad_input.partial -> grad_input"
     * e.g. `parallel=column sequence tp=2`: "reduce-scatter grad_input.partial -> grad_input"
     */
    if (column) {
        result.collective = f->sequence ? OCTET_REDUCE_SCATTER : OCTET_ALL_REDUCE_SUM;
    }
    result.quantizer = p->args->quantize_grad_input ? &f->role[OCTET_GRAD_INPUT] : NULL;
    octet_plan_form form = p->args->prologue ? OCTET_FORM_PROLOGUE : oct_form_of(&result);
    /* dy arrives in pieces: a product for each.
     * e.g. `parallel=row sequence tp=2 gather_chunks=2`: "dgrad grad_input.piece =
     * grad_output.piece x weight, chunk 1 of 2" */
    if (p->pieces.count) {
        result.rows = oct_all_rows(p->b, oct_tensor_at(p->b, p->pieces.local)->rows);
        return (dgrad){result, oct_produce_pieces(p->b, &product, &result, &p->pieces, form)};
    }
    oct_tail tail = oct_produce_start(p->b, &product, &result, form);
    return (dgrad){result, tail};
}

/* dx in chunks that are scattered is put together at the very end: the last of them travels
 * beside wgrad. Behind it comes the prologue's backward.
 * e.g. `parallel=column sequence tp=2 chunks=2`: "wgrad grad_weight = grad_output x
 * input.gathered 7 cast grad_input.reduced -> grad_input bf16, chunk 1 of 2" */
static void finish_dgrad(oct_planner *p, const dgrad *dx, bool at_end) {
    /* Called twice, before wgrad and at the end; one of the two calls is the right one. */
    if (at_end != (p->b->plan->chunks > 1 && !p->b->plan->by_rows)) {
        return;
    }
    /* The last chunk is waited for here, and not before wgrad.
     * e.g. `parallel=column sequence tp=2 chunks=2`: "8 cast grad_input.reduced -> grad_input
     * bf16, chunk 2 of 2" */
    if (at_end) {
        oct_next_phase(p->b);
    }
    /* dgrad made the gradient of f(x).
     * e.g. `prologue=gelu`: "backward of gelu: grad_input.prologue, input -> grad_input" */
    if (p->args->prologue) {
        oct_plan_prologue_grad(p, oct_produce_join(p->b, &dx->tail, &dx->result), &dx->result);
    } else {
        oct_produce_finish(p->b, &dx->tail, &dx->result);
    }
}

/* Where the gradient of the bias goes: the caller's main_grad, or an output.
 * e.g. `bias bias_main_grad=add`: "column sums of grad_output added to bias_main_grad"
 * e.g. `bias`: "column sums of grad_output -> grad_bias" */
static uint8_t bias_grad_result(oct_planner *p) {
    if (p->args->bias_main_grad) {
        return oct_written_argument(p, OCTET_NAME_BIAS_MAIN_GRAD, &p->args->bias,
                                    p->args->bias_main_grad_dtype);
    }
    uint8_t sum =
        oct_tensor(p->b, OCTET_NAME_GRAD_BIAS, OCTET_FORM_GIVEN, p->args->bias.dtype, NULL);
    oct_tensor_shape(p->b, sum, oct_dim_of(OCTET_AXIS_ONE, 1, 1),
                     oct_dim_of(OCTET_AXIS_N, 1, 1));
    oct_place(p->b, sum, OCT_ALL_PARTS, OCTET_PLACE_OUT);
    return sum;
}

/* Column sums of dy as it arrived: under row-parallel sequence shards, of this rank's rows. */
static void plan_bias_grad(oct_planner *p, uint8_t dy) {
    uint8_t values = oct_values(p->b, dy, oct_tensor_at(p->b, dy)->dtype, OCTET_PLACE_WORK);
    uint8_t sum = bias_grad_result(p);
    octet_step *step = oct_step(p->b, OCTET_OP_BIAS_GRAD);
    step->a = values;
    step->dst = sum;
    step->sums = oct_grad_sums(p, dy);
    step->accumulate = p->args->bias_main_grad == OCTET_MAIN_GRAD_ADD;
    oct_step_done(p->b, step);
}

/* Whether wgrad reads a tensor that forward saved. Of a prologue it reads the cast of f(x), or
 * all that it takes to apply it again; what only dx needs is used up here. */
static bool wgrad_reads(const oct_planner *p, uint8_t tensor) {
    const octet_plan_tensor *t = oct_tensor_at(p->b, tensor);
    bool parameter = t->name == OCTET_NAME_STATISTICS || t->name == OCTET_NAME_GAMMA ||
                     t->name == OCTET_NAME_BETA;
    bool input = t->name == OCTET_NAME_INPUT || t->name == OCTET_NAME_INPUT_SCALE;
    /* Where forward saved a cast of f(x), wgrad reads that, and x is for dx alone.
     * e.g. `recipe=mxfp8 prologue=rmsnorm eps=1e-05 delay_wgrad`: "saved for the next plan 0
     * input.quantized columnwise data u8 (256, 256) 64.0 KiB, stored by forward" */
    if (p->args->prologue && (tensor == p->x || tensor == p->packed || parameter)) {
        return oct_prologue_again(p);
    }
    return input;
}

/* Wgrad runs later: passes on what forward saved of the input, and saves dy as wgrad will read
 * it.
 * e.g. `delay_wgrad`: "grad_output bf16 (256, 256) 128.0 KiB, is argument 0" */
static void save_for_wgrad(oct_planner *p, oct_operand dy) {
    for (int i = 0; i < p->b->plan->restored_count; i++) {
        uint8_t tensor = p->b->plan->buffers[p->b->plan->restored[i]].tensor;
        if (wgrad_reads(p, tensor)) {
            p->b->plan->saved[p->b->plan->saved_count++] = p->b->plan->restored[i];
        }
    }
    oct_save(p->b, dy.tensor,
             oct_wanted_parts(p->b, dy.tensor, (octet_use)dy.use, oct_wgrad_hadamard(p)));
}

octet_status oct_plan_backward(octet_plan *plan, const octet_plan *forward,
                               const octet_linear_backward_args *args, octet_error *err) {
    const octet_linear_args *call = &args->forward;
    oct_builder b;
    oct_planner p = oct_planner_start(&b, plan, OCTET_PLAN_LINEAR_BACKWARD, call, err);
    uint8_t dy = oct_linear_argument(&p, OCTET_NAME_GRAD_OUTPUT, &args->grad_output);
    oct_restore(&b, forward);
    dgrad dx = {.tail = {.joined = OCTET_ABSENT}};
    oct_prologue_restore(&p);
    /* Else only the bias wants a gradient, or nothing does: dy is not quantized.
     * e.g. `recipe=mxfp8 bias grad=b`: "steps 1 column sums of grad_output -> grad_bias" */
    if (p.facts.dgrad || p.facts.wgrad) {
        oct_grads operands = oct_grad_operands(&p, dy);
        /* dx first: a collective that sums it over the ranks runs beside wgrad.
         * e.g. `parallel=column tp=2`: "-> grad_input 3 wgrad" */
        if (p.facts.dgrad) {
            dx = start_dgrad(&p, operands.row);
            finish_dgrad(&p, &dx, false);
        }
        if (p.facts.wgrad) {
            oct_operand grad_output = oct_wgrad_operand(&p, &operands);
            /* dw in a plan of its own, later (pipeline parallelism), or now.
             * e.g. `recipe=mxfp8 delay_wgrad`: "linear wgrad: m=256"
             * e.g. `recipe=mxfp8`: no "linear wgrad" */
            if (call->delay_wgrad) {
                save_for_wgrad(&p, grad_output);
            } else {
                oct_plan_wgrad(&p, grad_output);
            }
        }
    }
    /* The gradient of a bias that this call added.
     * e.g. `bias`: "column sums of grad_output -> grad_bias"
     * e.g. `bias return_bias`: no "column sums" */
    if (p.facts.bgrad) {
        plan_bias_grad(&p, dy);
    }
    if (p.facts.dgrad) {
        finish_dgrad(&p, &dx, true);
    }
    oct_fill_amaxes(&b);
    return oct_build_finish(&b);
}

octet_status octet_plan_linear_backward(octet_plan *out, const octet_linear_backward_args *args,
                                        octet_error *err) {
    octet_plan forward, plan;
    oct_facts facts;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need_size(out->size, sizeof *out, "octet_plan", err);
    status = status ? status : oct_linear_backward_check(args, &facts, err);
    status = status ? status : oct_plan_forward(&forward, &args->forward, err);
    status = status ? status : oct_plan_backward(&plan, &forward, args, err);
    status = status ? status : oct_plan_check_chunks(&plan, &plan.extents, err);
    if (!status) {
        *out = plan;
    }
    return status;
}
