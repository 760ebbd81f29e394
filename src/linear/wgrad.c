/* wgrad.c - dw = dy^T x, at once or as a plan of its own. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

/* How an input that was saved as the argument that it is becomes columnwise bytes. Under
 * delayed scaling it is quantized by the scale that forward used, which was saved with it. e.g.
 * `recipe=delayed qin=mxfp8:e4m3+row`: "input.requantized fp8-delayed:e4m3+row by
 * input_scale.cast" */
static oct_quantizing input_recast(const oct_planner *p) {
    oct_quantizing how =
        oct_quantizing_of(OCTET_FORM_QUANTIZED, &p->facts.role[OCTET_INPUT], false, true);
    uint8_t scale = oct_restored(p->b, OCTET_NAME_INPUT_SCALE);
    if (scale != OCTET_ABSENT) {
        how.restored_scale = p->b->plan->tensors[scale].buffers[OCTET_PART_VALUES];
    }
    return how;
}

/* Backward does not multiply bytes: x as numbers, in the dtype of the activations. */
static oct_operand input_values(oct_planner *p, uint8_t x) {
    bool decoded =
        p->args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED && p->facts.quantized;
    bool plain = oct_tensor_is_plain(p->b, x);
    bool own_bytes = oct_tensor_at(p->b, x)->form == OCTET_FORM_QUANTIZED;
    if (oct_gathers_input(p) && own_bytes) {
        /* Column parallel with sequence: each rank saved its rows of x, and wgrad sums over all
         * of them. The bytes of forward's own cast are joined as they are: their ranks agreed
         * on a scale.
         * e.g. `recipe=mxfp8:override=dequantized parallel=column sequence tp=2`: "dequantize
         * input.gathered rowwise -> input.dequantized" */
        x = oct_gather_bytes(p->b, x, OCTET_USE_ROW, OCTET_PLACE_WORK);
    } else if (oct_gathers_input(p)) {
        /* The same of a tensor that is no cast of forward's: it travels as values.
         * e.g. `parallel=column sequence tp=2`: "wgrad grad_weight = grad_output x
         * input.gathered" */
        x = oct_values(p->b, x, p->facts.dtype, OCTET_PLACE_EXCHANGE);
        x = oct_gather_values(p->b, x, OCTET_PLACE_WORK);
    }
    /* Backward multiplies what forward multiplied, decoded, but x itself was saved: forward's
     * rowwise cast is repeated.
     * e.g. `recipe=mxfp8:override=dequantized save_original_input`: "3 quantize input ->
     * input.quantized mxfp8:e4m3/1x32+row 4 dequantize input.quantized rowwise" */
    oct_quantizing how = input_recast(p);
    if (decoded && plain && oct_quantizer_is(&how.quantizer)) {
        how.quantizer.rowwise = 1;
        how.quantizer.columnwise = 0;
        x = oct_quantize(p->b, x, &how);
    }
    return (oct_operand){oct_values(p->b, x, p->facts.dtype, OCTET_PLACE_WORK),
                         OCTET_USE_VALUES};
}

/* Column parallel with sequence: each rank saved its rows of x, and wgrad wants all of them,
 * columnwise. */
static uint8_t gathered_input(oct_planner *p, uint8_t x) {
    oct_quantizing how = input_recast(p);
    const octet_plan_tensor *saved = oct_tensor_at(p->b, x);
    octet_quantizer q = saved->quantizer;
    bool columnwise = q.columnwise && q.hadamard == oct_wgrad_hadamard(p);
    /* Bytes that are joined as they are: those of forward's own cast, whose ranks agreed on a
     * scale, or the caller's, if they are columnwise and no scale covers rows of two ranks.
     * Rowwise ones (one scale) are transposed after they are joined.
     * e.g. `recipe=mxfp8 parallel=column sequence tp=2`: "all-gather input.quantized columnwise
     * data -> input.gathered columnwise data"
     * e.g. `recipe=mxfp8 qin=mxfp8:e4m3 parallel=column sequence tp=2`: "all-gather input
     * columnwise data -> input.gathered columnwise data" */
    bool own = saved->form == OCTET_FORM_QUANTIZED;
    bool callers = columnwise && !oct_shares_scale(&q) && !p->args->gather;
    if (!oct_tensor_is_plain(p->b, x) && (own || callers)) {
        return oct_gather_bytes(p->b, x, columnwise ? OCTET_USE_COL : OCTET_USE_ROW,
                                OCTET_PLACE_WORK);
    }
    /* Values are gathered and quantized after that, as forward did.
     * e.g. `m=40 recipe=mxfp8 parallel=column sequence tp=2 gather=high_precision`: "all-gather
     * input -> input.gathered 5 quantize input.gathered -> input.quantized
     * mxfp8:e4m3/1x32+col" */
    if (p->args->gather == OCTET_GATHER_HIGH_PRECISION || !oct_quantizer_is(&how.quantizer)) {
        uint8_t values = oct_values(p->b, x, p->facts.dtype, OCTET_PLACE_EXCHANGE);
        return oct_gather_values(p->b, values, OCTET_PLACE_WORK);
    }
    /* x itself was saved (save_original_input), or the caller's bytes cannot be joined: each
     * rank quantizes its rows, by an amax that the ranks agree on, and bytes are gathered. With
     * one scale they travel rowwise, so that the ranks' rows lie one after the other.
     * e.g. `recipe=mxfp8 save_original_input parallel=column sequence tp=2`: "quantize input ->
     * input.quantized mxfp8:e4m3/1x32+col 5 all-gather input.quantized columnwise data"
     * e.g. `recipe=current qin=fp8-tensor:e4m3 parallel=column sequence tp=2`: "8 quantize
     * input.dequantized -> input.quantized fp8-tensor:e4m3+row by input.reduced 9 all-gather"
     */
    bool rowwise = oct_quantizer_one_scale(&how.quantizer);
    how.quantizer.rowwise = rowwise;
    how.quantizer.columnwise = !rowwise;
    how.row_place = how.col_place = OCTET_PLACE_EXCHANGE;
    how.reduce = true;
    uint8_t values = oct_values(p->b, x, oct_tensor_at(p->b, x)->dtype, OCTET_PLACE_WORK);
    uint8_t local = oct_quantize(p->b, values, &how);
    return oct_gather_bytes(p->b, local, rowwise ? OCTET_USE_ROW : OCTET_USE_COL,
                            OCTET_PLACE_WORK);
}

/* What was saved of the input, as wgrad reads it. */
static oct_operand wgrad_input(oct_planner *p) {
    uint8_t x = oct_prologue_input(p);
    oct_quantizing how = input_recast(p);
    bool bytes = oct_quantizer_is(&how.quantizer) || !oct_tensor_is_plain(p->b, x);
    /* High precision: no recipe, a recipe whose backward is not quantized, or one that leaves
     * the input alone.
     * e.g. `recipe=custom:weight=mxfp8:e4m3`: "wgrad grad_weight = grad_output x input" */
    if (!p->facts.quantized_back || !bytes) {
        return input_values(p, x);
    }
    /* Other ranks have the other rows.
     * e.g. `recipe=mxfp8 parallel=column sequence tp=2`: "x input.gathered columnwise" */
    if (oct_gathers_input(p)) {
        x = gathered_input(p, x);
    }
    how.quantizer = oct_for_gemm(p->b, how.quantizer);
    return oct_direction(p->b, x, OCTET_USE_COL, &how, oct_wgrad_hadamard(p));
}

void oct_plan_wgrad(oct_planner *p, oct_operand grad_output) {
    oct_operand x = wgrad_input(p);
    const octet_quantizer *q = &p->facts.role[OCTET_GRAD_WEIGHT];
    oct_product product = {OCTET_WGRAD,
                           grad_output,
                           x,
                           OCTET_ABSENT,
                           OCTET_ABSENT,
                           p->args->main_grad == OCTET_MAIN_GRAD_ADD,
                           p->facts.quantized_back && p->args->recipe.split_wgrad};
    /* Gradients are accumulated in the caller's main_grad: the product writes or adds there,
     * and the plan has no output for dw.
     * e.g. `main_grad=add`: "wgrad main_grad += grad_output x input", no "grad_weight"
     * e.g. `main_grad=overwrite`: "wgrad main_grad = grad_output x input" */
    if (p->args->main_grad) {
        product.dst = oct_written_argument(p, OCTET_NAME_MAIN_GRAD, &p->args->weight,
                                           p->args->main_grad_dtype);
        oct_gemm(p->b, &product);
        return;
    }
    /* An output, quantized where the recipe says so.
     * e.g. `recipe=custom:grad_weight=fp8-tensor:e5m2`: "quantize grad_weight.high_precision ->
     * grad_weight fp8-tensor:e5m2+row" */
    oct_result result = {OCTET_NAME_GRAD_WEIGHT,         p->args->weight.dtype,
                         oct_dim_of(OCTET_AXIS_N, 1, 1), oct_dim_of(OCTET_AXIS_K, 1, 1),
                         OCTET_COLLECTIVE_NONE,          OCTET_ABSENT,
                         oct_quantizer_is(q) ? q : NULL, 0};
    oct_produce(p->b, &product, &result);
}

/* The dy that backward saved, as wgrad reads it. */
static oct_operand saved_grad(oct_planner *p) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_GRAD_OUTPUT]);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, false, true);
    how.slot = OCTET_SLOT_GRAD_OUTPUT;
    uint8_t saved = oct_restored(p->b, OCTET_NAME_GRAD_OUTPUT);
    /* Bytes: backward's cast, or a quantized dy as it was given, whose columnwise direction may
     * have to be made.
     * e.g. `recipe=mxfp8 delay_wgrad`: "steps 1 wgrad grad_weight = grad_output.quantized
     * columnwise" */
    if (p->facts.quantized_back && !oct_tensor_is_plain(p->b, saved)) {
        return oct_direction(p->b, saved, OCTET_USE_COL, &how, oct_wgrad_hadamard(p));
    }
    /* High precision.
     * e.g. `delay_wgrad`: "steps 1 wgrad grad_weight = grad_output x input" */
    return (oct_operand){oct_values(p->b, saved, p->facts.dtype, OCTET_PLACE_WORK),
                         OCTET_USE_VALUES};
}

octet_status oct_plan_later_wgrad(octet_plan *plan, const octet_plan *backward,
                                  const octet_linear_backward_args *args, octet_error *err) {
    oct_builder b;
    oct_planner p = oct_planner_start(&b, plan, OCTET_PLAN_LINEAR_WGRAD, &args->forward, err);
    oct_restore(&b, backward);
    oct_prologue_restore(&p);
    oct_plan_wgrad(&p, saved_grad(&p));
    oct_fill_amaxes(&b);
    return oct_build_finish(&b);
}

octet_status octet_plan_linear_wgrad(octet_plan *out, const octet_linear_backward_args *args,
                                     octet_error *err) {
    octet_chain chain;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need_size(out->size, sizeof *out, "octet_plan", err);
    status = status ? status : octet_plan_chain(&chain, args, err);
    if (!status && chain.count < OCTET_CHAIN_PLANS) {
        status = oct_fail(err, OCTET_INVALID,
                          "backward leaves no wgrad for later: delay_wgrad is "
                          "%u and weight_requires_grad is %u",
                          args->forward.delay_wgrad, args->forward.weight_requires_grad);
    }
    if (!status) {
        *out = chain.plans[2];
    }
    return status;
}
