/* alpha.c - which cast leaves a product its factor, where block scales have an amax and casts
 * make factors.
 *
 * Elements are multiplied without their tensors' amaxes, and the sums by both of them. They are
 * known before the last cast of an operand begins, so that makes the factor on the way, and
 * there is no launch for it. */
#include "format/scheme.h"
#include "plan/build.h"
#include "quant/layout.h"

static uint8_t amax_of(const octet_plan *plan, uint8_t tensor, uint8_t use) {
    octet_part part = use == OCTET_USE_COL ? OCTET_PART_COL_AMAX : OCTET_PART_ROW_AMAX;
    return plan->tensors[tensor].buffers[part];
}

uint64_t oct_alpha_factors(const octet_plan *plan, const octet_step *gemm) {
    return (uint64_t)1 << amax_of(plan, gemm->a, gemm->a_use) |
           (uint64_t)1 << amax_of(plan, gemm->b, gemm->b_use);
}

/* One amax for all of a tensor. */
static bool has_factor(const octet_plan *plan, uint8_t tensor, uint8_t use) {
    const octet_quantizer *q = &plan->tensors[tensor].quantizer;
    return oct_scheme_of(q)->amax && !q->row_scaled &&
           amax_of(plan, tensor, use) != OCTET_ABSENT;
}

/* A cast that may make the factor: one of an operand, and not for two products already. */
static bool may_make(const octet_plan *plan, const octet_step *step, uint64_t factors) {
    if (step->op != OCTET_OP_QUANTIZE) {
        return false;
    }
    const octet_quantizer *q = &plan->tensors[step->dst].quantizer;
    return oct_scheme_of(q)->amax && !q->four_over_six && (step->reads & factors) &&
           step->alphas[1] == OCTET_ABSENT;
}

/* The last such cast before a product, unless an amax is written after it. */
static octet_step *maker_of(octet_plan *plan, int gemm) {
    uint64_t factors = oct_alpha_factors(plan, &plan->steps[gemm]);
    for (int i = gemm - 1; i >= 0 && !(plan->steps[i].writes & factors); i--) {
        if (may_make(plan, &plan->steps[i], factors)) {
            return &plan->steps[i];
        }
    }
    return NULL;
}

/* The product's two factors, of its sums and of what is in dst already. */
static uint8_t alpha_and_beta(oct_builder *b) {
    uint8_t tensor = oct_tensor(b, OCTET_NAME_ALPHA, OCTET_FORM_GIVEN, OCTET_F32, NULL);
    oct_tensor_shape(b, tensor, oct_dim_of(OCTET_AXIS_ONE, 1, 1),
                     oct_axis_times(OCTET_AXIS_ONE, 2));
    oct_place(b, tensor, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    return oct_tensor_at(b, tensor)->buffers[OCTET_PART_VALUES];
}

void oct_place_alphas(oct_builder *b) {
    octet_plan *plan = b->plan;
    uint8_t first = OCTET_ABSENT; /* the factor of a product's first chunk is all chunks' */
    for (int i = 0; b->target->casts_make_factors && i < plan->step_count; i++) {
        octet_step *gemm = &plan->steps[i];
        bool follows = gemm->op == OCTET_OP_GEMM && gemm->chunk != OCTET_ABSENT && gemm->chunk;
        if (follows) {
            gemm->alpha = first;
            oct_step_done(b, gemm);
            continue;
        }
        bool wants = gemm->op == OCTET_OP_GEMM && has_factor(plan, gemm->a, gemm->a_use) &&
                     has_factor(plan, gemm->b, gemm->b_use);
        octet_step *cast = wants ? maker_of(plan, i) : NULL;
        /* Example: fprop of NVFP4, after the casts of x and w. Without such a cast (both
         * operands arrived quantized) the product makes the factor itself. */
        if (cast) {
            gemm->alpha = alpha_and_beta(b);
            cast->alphas[cast->alphas[0] != OCTET_ABSENT] = (uint8_t)i;
            oct_step_done(b, gemm);
            oct_step_done(b, cast);
        }
        first = gemm->op == OCTET_OP_GEMM ? gemm->alpha : first;
    }
}
