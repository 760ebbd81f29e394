/* forward.c - y = x w^T + b: what is quantized, multiplied, reduced and saved for backward. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

void oct_save_scale(oct_planner *p, octet_role role) {
    bool again =
        p->facts.quantized && p->args->recipe.override_ != OCTET_OVERRIDE_HIGH_PRECISION;
    /* Nothing to save: backward does not quantize, or finds the same scale from the values.
     * e.g. `recipe=current fsdp`: no "weight_scale" */
    if (!again || !oct_scheme_of(&p->facts.role[role])->given_scale) {
        return;
    }
    /* e.g. `recipe=delayed fsdp`: "cast scale -> weight_scale.cast f32" */
    bool input = role == OCTET_INPUT;
    octet_plan_name name = input ? OCTET_NAME_INPUT_SCALE : OCTET_NAME_WEIGHT_SCALE;
    int slot = input ? OCTET_SLOT_INPUT : OCTET_SLOT_WEIGHT;
    uint8_t copy = oct_tensor(p->b, name, OCTET_FORM_CAST, OCTET_F32, NULL);
    oct_place(p->b, copy, OCT_ALL_PARTS, OCTET_PLACE_SAVED);
    octet_step *step = oct_step(p->b, OCTET_OP_CAST);
    step->a = p->b->plan->buffers[oct_scale_slot(p->b, slot)].tensor;
    step->dst = copy;
    oct_step_done(p->b, step);
    oct_save(p->b, copy, OCT_ALL_PARTS);
}

/* Calibration computes in high precision and measures what delayed scaling would have
 * quantized. Recipes that find their scales in the tensor itself have nothing to learn.
 * e.g. `recipe=delayed calibrate`: "fprop output = input x weight 2 amax of input -> amax[0]"
 * e.g. `recipe=current calibrate`: no "amax" */
static void calibrate(oct_planner *p, uint8_t x, uint8_t w) {
    const uint8_t tensors[] = {x, w};
    static const int slots[] = {OCTET_SLOT_INPUT, OCTET_SLOT_WEIGHT};
    for (int role = OCTET_INPUT; role <= OCTET_WEIGHT; role++) {
        octet_quantizer q = oct_recipe_role(&p->args->recipe, (octet_role)role);
        if (oct_scheme_of(&q)->given_scale) {
            octet_step *step;
            uint8_t values = oct_values(p->b, tensors[role], p->facts.dtype, OCTET_PLACE_WORK);
            uint8_t amax = oct_amax_slot(p->b, slots[role]);
            step = oct_step(p->b, OCTET_OP_AMAX);
            step->a = values;
            step->amax = amax;
            step->accumulate = p->b->raises;
            oct_step_done(p->b, step);
        }
    }
}

/* The bias as the product adds it. A quantized product with f32 results takes a bf16 bias, as
 * GPUs' epilogues do; every other one takes the bias in its own dtype.
 * e.g. `in=f32 recipe=mxfp8 bias`: "cast bias -> bias.cast bf16"
 * e.g. `in=f32 bias`: "fprop output = input x weight + bias" */
static uint8_t fused_bias(oct_planner *p, uint8_t bias, bool quantized_gemm) {
    bool narrow = quantized_gemm && p->facts.dtype == OCTET_F32;
    uint8_t tensor = oct_values(
        p->b, bias, narrow ? OCTET_BF16 : oct_tensor_at(p->b, bias)->dtype, OCTET_PLACE_WORK);
    return oct_buffer_of(p->b, tensor);
}

static void forward_output(oct_planner *p, oct_operand x, oct_operand w, uint8_t bias) {
    const oct_facts *f = &p->facts;
    bool row_parallel = f->parallel == OCTET_PARALLEL_ROW;
    bool quantized_gemm = x.use != OCTET_USE_VALUES || w.use != OCTET_USE_VALUES;
    oct_result result = {OCTET_NAME_OUTPUT,
                         f->output_dtype,
                         oct_tensor_at(p->b, x.tensor)->rows,
                         oct_dim_of(OCTET_AXIS_N, 1, 1),
                         OCTET_COLLECTIVE_NONE,
                         OCTET_ABSENT,
                         NULL,
                         OCTET_SLOT_OUTPUT};
    oct_product product = {OCTET_FPROP,
                           x,
                           w,
                           OCTET_ABSENT,
                           OCTET_ABSENT,
                           false,
                           f->quantized && p->args->recipe.split_fprop};
    if (row_parallel) {
        /* Each rank has a part of the sum over k. The bias comes after the ranks are added up,
         * or it would be added once for each of them. With sequence each rank receives its rows
         * of y.
         * e.g. `bias parallel=row tp=2`: "all-reduce sum output.partial -> output.reduced 3 add
         * bias to output.reduced -> output"
         * e.g. `bias parallel=row sequence tp=2`: "reduce-scatter output.partial ->
         * output.reduced" */
        result.collective = f->sequence ? OCTET_REDUCE_SCATTER : OCTET_ALL_REDUCE_SUM;
        result.late_bias = f->adds_bias ? oct_buffer_of(p->b, bias) : OCTET_ABSENT;
    } else if (f->adds_bias) {
        /* The product adds it on the way.
         * e.g. `recipe=mxfp8 bias`: "weight.quantized rowwise + bias" */
        product.bias = fused_bias(p, bias, quantized_gemm);
    }
    result.quantizer = p->args->quantize_output ? &f->role[OCTET_OUTPUT] : NULL;
    /* x arrives in pieces: a product for each.
     * e.g. `parallel=column sequence tp=2 gather_chunks=2`: "fprop output.piece = input.piece x
     * weight, chunk 1 of 2" */
    if (p->pieces.count) {
        result.rows = oct_all_rows(p->b, oct_tensor_at(p->b, p->pieces.local)->rows);
        oct_tail tail =
            oct_produce_pieces(p->b, &product, &result, &p->pieces, oct_form_of(&result));
        oct_produce_finish(p->b, &tail, &result);
        return;
    }
    oct_produce(p->b, &product, &result);
}

octet_status oct_plan_forward(octet_plan *plan, const octet_linear_args *args,
                              octet_error *err) {
    oct_builder b;
    oct_planner p = oct_planner_start(&b, plan, OCTET_PLAN_LINEAR, args, err);
    uint8_t bias = OCTET_ABSENT;
    uint8_t x = oct_linear_argument(&p, OCTET_NAME_INPUT, &args->input);
    uint8_t w = oct_linear_argument(&p, OCTET_NAME_WEIGHT, &args->weight);
    /* A bias is an argument even where the caller adds it.
     * e.g. `bias return_bias`: "2 bias bf16 (256) 512 B" */
    if (oct_has(&args->bias)) {
        bias = oct_linear_argument(&p, OCTET_NAME_BIAS, &args->bias);
    }
    /* f(x) takes the place of x; a norm brings its parameters.
     * e.g. `prologue=layernorm eps=1e-05 beta`: "2 gamma bf16 (256) 512 B 3 beta bf16 (256) 512
     * B" */
    if (args->prologue) {
        p.x = x;
        if (oct_has(&args->gamma)) {
            p.gamma = oct_linear_argument(&p, OCTET_NAME_GAMMA, &args->gamma);
        }
        if (oct_has(&args->beta)) {
            p.beta = oct_linear_argument(&p, OCTET_NAME_BETA, &args->beta);
        }
        x = oct_forward_prologue(&p);
    }
    oct_operand left = oct_forward_input(&p, x);
    oct_operand right = oct_forward_weight(&p, w);
    forward_output(&p, left, right, bias);
    /* The caller adds the bias, so the argument is handed back.
     * e.g. `bias return_bias`: "1 bias bf16 (256) 512 B, argument 2" */
    if (args->return_bias) {
        oct_output_alias(&b, bias);
    }
    /* Amaxes are all that the recipe adds to the call.
     * e.g. `recipe=delayed calibrate`: "3 amax of weight -> amax[1]" */
    if (args->calibrate) {
        calibrate(&p, x, w);
    }
    oct_fill_amaxes(&b);
    return oct_build_finish(&b);
}

octet_status octet_plan_linear(octet_plan *out, const octet_linear_args *args,
                               octet_error *err) {
    octet_plan plan;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need_size(out->size, sizeof *out, "octet_plan", err);
    status = status ? status : octet_linear_check(args, err);
    status = status ? status : oct_plan_forward(&plan, args, err);
    status = status ? status : oct_plan_check_chunks(&plan, &plan.extents, err);
    if (!status) {
        *out = plan;
    }
    return status;
}
