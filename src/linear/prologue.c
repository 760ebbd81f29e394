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

/* The row statistics of p->x, where the prologue is a norm. */
static void plan_statistics(oct_planner *p, octet_place place) {
    int count = oct_prologue_statistics(p->args->prologue);
    /* An activation looks at one element, or two, at a time.
     * e.g. `prologue=swiglu`: no "statistics" */
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

/* Whether f(x) is computed by the cast that reads it. An amax above block scales (NVFP4) would
 * be a second step that computes all of it.
 * e.g. `recipe=nvfp4 prologue=gelu`: "gelu of input -> input.prologue" */
static bool cast_applies(const oct_planner *p, const octet_quantizer *q) {
    return oct_quantizer_is(q) && !oct_scheme_of(q)->amax &&
           p->b->target->applies(&p->b->device, q, p->facts.dtype, p->args->prologue);
}

/* f(x), in `place`; or x, which casts then apply f to, where a cast by that quantizer alone
 * reads it and the device computes it there. Scheme NONE: others read it. */
static uint8_t plan_prologue(oct_planner *p, octet_place place, const octet_quantizer *cast) {
    octet_dim cols = oct_dim_of(OCTET_AXIS_K, 1, 1);
    /* Nobody but a cast reads it, and that computes it on the way: it has no memory.
     * e.g. `recipe=mxfp8 prologue=rmsnorm eps=1e-05`: "quantize rmsnorm(input)" */
    if (place == OCTET_PLACE_WORK && cast_applies(p, cast)) {
        p->b->applied = (oct_applied){p->x, p->stats, buffer_or_none(p, p->gamma),
                                      buffer_or_none(p, p->beta), cols};
        return p->x;
    }
    /* Ranks exchange it, a product reads it, or the device has no such cast: a step of its own
     * writes it.
     * e.g. `prologue=gelu`: "gelu of input -> input.prologue 2 fprop output = input.prologue"
     */
    uint8_t made =
        oct_tensor(p->b, OCTET_NAME_INPUT, OCTET_FORM_PROLOGUE, p->facts.dtype, NULL);
    oct_tensor_shape(p->b, made, oct_tensor_at(p->b, p->x)->rows, cols);
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

/* ---- save=memory ------------------------------------------------------------------------- */

/* Whether memory is what a call saves, and a recipe lets it. Without a recipe, in calibration,
 * and where backward runs in high precision nothing is cast for backward. */
static bool saves_memory(const oct_planner *p) {
    return p->args->save == OCTET_SAVE_MEMORY && p->args->prologue && p->facts.quantized &&
           p->args->recipe.override_ != OCTET_OVERRIDE_HIGH_PRECISION;
}

bool oct_saves_no_cast(const oct_planner *p) {
    /* Else x is not saved for another reason, and it would be more bytes than the cast is: the
     * first layer of a model, whose x wants no gradient, with a frozen gamma.
     * e.g. `recipe=mxfp8 prologue=rmsnorm eps=1e-05 save=memory grad=w`: "saved for the next
     * plan 0 input.quantized columnwise data" */
    bool has_x = p->facts.xgrad || p->facts.gamma_grad;
    /* A cast that rounds at random is made once: backward may have another seed. */
    return saves_memory(p) && has_x && !p->facts.role[OCTET_INPUT].stochastic;
}

/* Whether an activation's input is saved in 8 bits, and not as it is. */
static bool packs_input(const oct_planner *p) {
    /* A norm's x is held by the residual stream, and costs nothing. What an activation reads is
     * held by nobody else, and is the widest tensor of a layer. Backward in values (override
     * dequantized) stays exact, and so does x that the caller wants saved itself.
     * e.g. `recipe=mxfp8 prologue=swiglu save=memory`: "input.packed rowwise data u8 (256, 512)
     * 128.0 KiB, stored" */
    return saves_memory(p) && p->facts.quantized_back && p->facts.xgrad &&
           !oct_prologue_is_norm(p->args->prologue) && !p->args->save_original_input;
}

/* Casts the input to 8 bits, in blocks of 1x32 with one E8M0 scale each. The scale is a power
 * of two and no element saturates, so the decoded one is within 2^-4 of it, or within 2^-17 of
 * the largest of its block; Inf and NaN stay what they are. docs/prologues.md derives what that
 * does to gradients. Blocks of 1x128 with f32 scales take as many bytes (1/32 more than the
 * codes), and lose an Inf. */
static void plan_packing(oct_planner *p) {
    octet_quantizer q = oct_quantizer_default(OCTET_MXFP8);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_PACKED, &q, true, false);
    how.row_place = OCTET_PLACE_SAVED;
    p->packed = oct_quantize(p->b, p->x, &how);
}

/* x as the prologue and its backward read it: decoded where forward saved it in 8 bits, when it
 * is first asked for.
 * e.g. `recipe=mxfp8 prologue=swiglu save=memory`: "dequantize input.packed rowwise ->
 * input.dequantized 5 backward of swiglu: grad_input.prologue, input.dequantized" */
static uint8_t prologue_x(oct_planner *p) {
    if (p->x == OCTET_ABSENT && p->packed != OCTET_ABSENT) {
        p->x = oct_values(p->b, p->packed, p->facts.dtype, OCTET_PLACE_WORK);
    }
    return p->x;
}

/* ---- forward -------------------------------------------------------------------------------
 */

/* Whether backward applies the prologue again, for wgrad.
 * e.g. `prologue=gelu`: "gelu of input -> input.prologue 4 wgrad" */
static bool applies_again(const oct_planner *p) {
    return oct_input_saving(p) == OCT_SAVE_ARGUMENT;
}

/* Whether backward reads x and a norm's statistics. Beta's gradient takes neither. */
static bool reads_x(const oct_planner *p) {
    return p->facts.xgrad || p->facts.gamma_grad || applies_again(p);
}

/* Where ranks gather values, a collective reads f(x); where the recipe quantizes it, its cast
 * alone.
 * e.g. `prologue=gelu parallel=column sequence tp=2`: "all-gather input.prologue ->
 * input.gathered" */
static uint8_t apply_prologue(oct_planner *p) {
    octet_quantizer cast = oct_input_cast(p).quantizer;
    bool values = !oct_quantizer_is(&cast) || p->args->gather == OCTET_GATHER_HIGH_PRECISION;
    /* e.g. `recipe=mxfp8 prologue=gelu save=memory`: "1 quantize input -> input.packed" */
    if (packs_input(p)) {
        plan_packing(p);
    }
    plan_statistics(p, reads_x(p) ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK);
    octet_place place =
        oct_gathers_input(p) && values ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK;
    return plan_prologue(p, place, &cast);
}

/* What the prologue's backward reads, and what it takes to apply it again for wgrad: x, perhaps
 * in 8 bits, a norm's statistics and parameters. */
static void save_prologue(oct_planner *p) {
    bool again = applies_again(p);
    bool packs = packs_input(p);
    const uint8_t tensors[] = {packs ? p->packed : p->x, p->stats, p->gamma, p->beta};
    /* With a frozen gamma dx reads x, the statistics and gamma; with x alone frozen, gamma's
     * gradient reads x and the statistics.
     * e.g. `recipe=mxfp8 prologue=rmsnorm eps=1e-05 grad=xw`: "2 gamma bf16 (256) 512 B, is
     * argument 2"
     * e.g. `recipe=mxfp8 prologue=rmsnorm eps=1e-05 grad=wg`: "1 statistics f32 (256, 1) 1024
     * B, stored 2 input.quantized" */
    const bool reads[] = {reads_x(p), reads_x(p), p->facts.xgrad || again, again};
    for (int i = 0; i < 4; i++) {
        if (reads[i] && tensors[i] != OCTET_ABSENT) {
            oct_save(p->b, tensors[i], OCT_ALL_PARTS);
        }
    }
}

uint8_t oct_forward_prologue(oct_planner *p) {
    uint8_t made = apply_prologue(p);
    save_prologue(p);
    return made;
}

/* ---- backward ---------------------------------------------------------------------------- */

void oct_prologue_restore(oct_planner *p) {
    if (p->args->prologue) {
        p->x = oct_restored_as(p->b, OCTET_NAME_INPUT, OCTET_FORM_GIVEN);
        p->packed = oct_restored_as(p->b, OCTET_NAME_INPUT, OCTET_FORM_PACKED);
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
    /* No prologue: wgrad multiplies what forward saved of x.
     * e.g. `recipe=mxfp8`: "x input.quantized columnwise" */
    if (!p->args->prologue) {
        return oct_restored(p->b, OCTET_NAME_INPUT);
    }
    /* Forward cast f(x) for fprop and saved that cast.
     * e.g. `recipe=mxfp8 prologue=gelu`: "stored by forward", no "-> input.quantized
     * mxfp8:e4m3/1x32+col" */
    if (!oct_prologue_again(p)) {
        return oct_restored_as(p->b, OCTET_NAME_INPUT, OCTET_FORM_QUANTIZED);
    }
    /* Forward saved x alone, so f(x) is computed again: without a recipe, with save=memory or
     * save_original_input. Ranks that gather values gather those of f(x).
     * e.g. `m=40 recipe=mxfp8 prologue=gelu parallel=column sequence tp=2
     * gather=high_precision`: "5 gelu of input -> input.prologue 6 all-gather input.prologue"
     */
    (void)prologue_x(p);
    octet_quantizer q = p->facts.role[OCTET_INPUT];
    bool values = !p->facts.quantized_back || p->args->gather == OCTET_GATHER_HIGH_PRECISION ||
                  !oct_quantizer_is(&q);
    octet_place place =
        oct_gathers_input(p) && values ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK;
    /* A cast is repeated for the bytes that wgrad multiplies, columnwise unless it reads others
     * across, or for what forward's rowwise bytes decode to. Else the product reads f(x).
     * e.g. `recipe=mxfp8 prologue=gelu save_original_input`: "quantize gelu(input) ->
     * input.quantized mxfp8:e4m3/1x32+col"
     * e.g. `recipe=mxfp8:override=dequantized prologue=gelu save_original_input`: "4 quantize
     * gelu(input) -> input.quantized mxfp8:e4m3/1x32+row 5 dequantize input.quantized"
     * e.g. `prologue=gelu`: "wgrad grad_weight = grad_output x input.prologue" */
    bool decodes = p->args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED;
    if (!p->facts.quantized_back && !decodes) {
        q = oct_quantizer_default(OCTET_SCHEME_NONE);
    }
    q.rowwise = decodes || oct_reads_across(p->b, &q);
    q.columnwise = !q.rowwise;
    return plan_prologue(p, place, &q);
}

/* A step of the backward: the gradient of f(x), x, and what a norm reads besides. */
static octet_step *grad_step(oct_planner *p, octet_op op, uint8_t grad, uint8_t dst) {
    uint8_t x = prologue_x(p);
    octet_step *step = oct_step(p->b, op);
    step->a = grad;
    step->b = x;
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
    /* The caller wants dx quantized, for the layer before.
     * e.g. `recipe=custom:grad_input=mxfp8:e4m3 prologue=gelu quantize_grad_input`: "quantize
     * grad_input.high_precision -> grad_input" */
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
    /* dx. Not where x is frozen: then dgrad runs for gamma or beta alone.
     * e.g. `prologue=rmsnorm eps=1e-05 grad=g`: no "backward of rmsnorm" */
    if (p->facts.xgrad) {
        plan_dx(p, grad, dx);
    }
    /* A norm's factor of each column: a sum over the rows of grad times the normed x.
     * e.g. `prologue=rmsnorm eps=1e-05`: "gradient of gamma from grad_input.prologue" */
    if (p->facts.gamma_grad) {
        uint8_t made = parameter_grad(p, OCTET_NAME_GRAD_GAMMA, &p->args->gamma);
        uint8_t sums = oct_column_sums(p, grad, OCTET_NAME_GRAD_GAMMA);
        octet_step *step = grad_step(p, OCTET_OP_GAMMA_GRAD, grad, made);
        step->sums = sums;
        oct_step_done(p->b, step);
    }
    /* Beta is added to every row, as a bias is: its gradient is the column sums of grad.
     * e.g. `prologue=layernorm eps=1e-05 beta`: "column sums of grad_input.prologue ->
     * grad_beta" */
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
