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

/* Whether f(x) is computed by the cast that reads it. An amax above block scales (NVFP4) would
 * be a second step that computes all of it. */
static bool cast_applies(const oct_planner *p, const octet_quantizer *q) {
    return oct_quantizer_is(q) && !oct_scheme_of(q)->amax &&
           p->b->target->applies(&p->b->device, q, p->facts.dtype, p->args->prologue);
}

uint8_t oct_plan_prologue(oct_planner *p, octet_place place, const octet_quantizer *cast) {
    octet_dim cols = oct_dim_of(OCTET_AXIS_K, 1, 1);
    /* Nobody but a cast reads it, and that computes it on the way: it has no memory. */
    if (place == OCTET_PLACE_WORK && cast_applies(p, cast)) {
        p->b->applied = (oct_applied){p->x, p->stats, buffer_or_none(p, p->gamma),
                                      buffer_or_none(p, p->beta), cols};
        return p->x;
    }
    /* Ranks exchange it, or a product reads it: a step of its own writes it. */
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
    /* x is not there for another reason: it would be more bytes than the cast is. Example: the
     * first layer of a model, whose x wants no gradient, with a frozen gamma. */
    bool has_x = p->facts.xgrad || p->facts.gamma_grad;
    /* A cast that rounds at random is made once: backward may have another seed. */
    return saves_memory(p) && has_x && !p->facts.role[OCTET_INPUT].stochastic;
}

bool oct_packs_input(const oct_planner *p) {
    /* A norm's x is held by the residual stream, and costs nothing. What an activation reads is
     * held by nobody else, and is the widest tensor of a block. Backward in values (override
     * dequantized) stays exact, and so does x that the caller wants saved itself. */
    return saves_memory(p) && p->facts.quantized_back && p->facts.xgrad &&
           !oct_prologue_is_norm(p->args->prologue) && !p->args->save_original_input;
}

/* In blocks of 1x32, one E8M0 scale each. The scale is a power of two and no element saturates,
 * so the decoded one is within 2^-4 of it, or within 2^-17 of the largest of its block; Inf and
 * NaN stay what they are. docs/prologues.md derives what that does to gradients. Blocks of
 * 1x128 with f32 scales take as many bytes (1/32 more than the codes), and lose an Inf. */
void oct_plan_packing(oct_planner *p) {
    octet_quantizer q = oct_quantizer_default(OCTET_MXFP8);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_PACKED, &q, true, false);
    how.row_place = OCTET_PLACE_SAVED;
    p->packed = oct_quantize(p->b, p->x, &how);
}

/* x as the prologue and its backward read it: decoded where forward saved it in 8 bits, when it
 * is first asked for. */
static uint8_t prologue_x(oct_planner *p) {
    if (p->x == OCTET_ABSENT && p->packed != OCTET_ABSENT) {
        p->x = oct_values(p->b, p->packed, p->facts.dtype, OCTET_PLACE_WORK);
    }
    return p->x;
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
    /* No prologue: wgrad multiplies what forward saved of x. */
    if (!p->args->prologue) {
        return oct_restored(p->b, OCTET_NAME_INPUT);
    }
    /* Forward cast f(x) for fprop and saved that cast. Example: rmsnorm and MXFP8. */
    if (!oct_prologue_again(p)) {
        return oct_restored_as(p->b, OCTET_NAME_INPUT, OCTET_FORM_QUANTIZED);
    }
    /* Forward saved x alone, so f(x) is computed again. Examples: no recipe, save=memory, or
     * save_original_input. Ranks that gather values gather those of f(x). */
    (void)prologue_x(p);
    octet_quantizer q = p->facts.role[OCTET_INPUT];
    bool values = !p->facts.quantized_back || p->args->gather == OCTET_GATHER_HIGH_PRECISION ||
                  !oct_quantizer_is(&q);
    octet_place place =
        oct_gathers_input(p) && values ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK;
    /* A cast is repeated for the bytes that wgrad multiplies, columnwise unless it reads others
     * across, or for what forward's rowwise bytes decode to. Else the product reads f(x). */
    bool decodes = p->args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED;
    if (!p->facts.quantized_back && !decodes) {
        q = oct_quantizer_default(OCTET_SCHEME_NONE);
    }
    q.rowwise = decodes || oct_reads_across(p->b, &q);
    q.columnwise = !q.rowwise;
    return oct_plan_prologue(p, place, &q);
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
    /* A norm's factor of each column: a sum over the rows of grad times the normed x. */
    if (p->facts.gamma_grad) {
        uint8_t made = parameter_grad(p, OCTET_NAME_GRAD_GAMMA, &p->args->gamma);
        uint8_t sums = oct_column_sums(p, grad, OCTET_NAME_GRAD_GAMMA);
        octet_step *step = grad_step(p, OCTET_OP_GAMMA_GRAD, grad, made);
        step->sums = sums;
        oct_step_done(p->b, step);
    }
    /* Beta is added to every row, as a bias is: its gradient is the column sums of grad. */
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
