/* notes.c - factors that a cast computes for later products: the plan's `notes`.
 *
 * NVFP4 has block scales, and above them one amax for the whole tensor. A product multiplies
 * codes and block scales, and then its sums by a factor that the amaxes of both operands give.
 * A GPU's library reads this factor from memory. A launch of its own would cost more than the
 * factor, so the last cast before the product computes it: by then both amaxes are measured. */
#include <string.h>

#include "format/scheme.h"
#include "plan/build.h"
#include "plan/product.h"
#include "quant/layout.h"

#define NOTES 2 /* products that a cast leaves notes for, at most */

static uint64_t amax_bit(const octet_plan *plan, uint8_t tensor, octet_part part) {
    uint8_t buffer = plan->tensors[tensor].buffers[part];
    return buffer == OCTET_ABSENT ? 0 : (uint64_t)1 << buffer;
}

/* The buffer of the one amax of a tensor, as a bit; 0: it has none, or one for each row. */
static uint64_t factor_of(const octet_plan *plan, uint8_t tensor, uint8_t use) {
    const octet_quantizer *q = &plan->tensors[tensor].quantizer;
    bool one = oct_scheme_of(q)->amax && !q->row_scaled;
    return !one ? 0
                : amax_bit(plan, tensor,
                           use == OCTET_USE_COL ? OCTET_PART_COL_AMAX : OCTET_PART_ROW_AMAX);
}

/* The amaxes that make a product's factor, as bits; 0: not both operands have one.
 * e.g. `recipe=custom:weight=nvfp4:e2m1 device=cuda:0/90`: no "notes" */
static uint64_t factors_of(const octet_plan *plan, const octet_step *gemm) {
    uint64_t a = factor_of(plan, gemm->a, gemm->a_use);
    uint64_t b = factor_of(plan, gemm->b, gemm->b_use);
    return a && b ? a | b : 0;
}

/* Whether a step can compute the factor: it casts an operand, by an amax. */
static bool may_make(const octet_plan *plan, const octet_step *step, uint64_t factors) {
    if (step->op != OCTET_OP_QUANTIZE) {
        return false;
    }
    const octet_quantizer *q = &plan->tensors[step->dst].quantizer;
    uint64_t own = amax_bit(plan, step->dst, OCTET_PART_ROW_AMAX) |
                   amax_bit(plan, step->dst, OCTET_PART_COL_AMAX);
    return oct_scheme_of(q)->amax && !q->four_over_six && (own & factors);
}

/* The last step before a product that can compute its factor. Steps that write one of the
 * amaxes end the search: before them it is not known. A cast serves NOTES products at most:
 * bits of `full` are casts that do. The cast of dy serves dgrad and wgrad.
 * e.g. `recipe=nvfp4 device=cuda:0/90`: "by seed stream 0, both decoded to bf16, notes for
 * products" */
static uint8_t noter_of(const octet_plan *plan, int gemm, uint64_t full) {
    uint64_t factors = factors_of(plan, &plan->steps[gemm]);
    for (int i = gemm - 1; factors && i >= 0 && !(plan->steps[i].writes & factors); i--) {
        if (!(full >> i & 1) && may_make(plan, &plan->steps[i], factors)) {
            return (uint8_t)i;
        }
    }
    return OCTET_ABSENT;
}

_Static_assert(OCTET_PLAN_STEPS <= 64 && NOTES == 2, "casts with notes are bits of a uint64_t");

/* Of each GEMM, by step, the QUANTIZE that leaves it a note; OCTET_ABSENT: none could. */
static void find_makers(uint8_t makers[OCTET_PLAN_STEPS], const octet_plan *plan) {
    uint64_t some = 0, full = 0;
    uint8_t last = OCTET_ABSENT;
    memset(makers, OCTET_ABSENT, OCTET_PLAN_STEPS);
    for (int i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].op == OCTET_OP_GEMM && oct_is_later_chunk(&plan->steps[i])) {
            makers[i] = last;
        } else if (plan->steps[i].op == OCTET_OP_GEMM) {
            makers[i] = last = noter_of(plan, i, full);
            uint64_t bit = makers[i] == OCTET_ABSENT ? 0 : (uint64_t)1 << makers[i];
            full |= some & bit;
            some |= bit;
        }
    }
}

/* Room for one more note of a cast: they lie in the order of their GEMMs. */
static void add_note(oct_builder *b, octet_step *cast) {
    if (cast->scratch == OCTET_ABSENT) {
        uint8_t tensor = oct_tensor(b, OCTET_NAME_NOTES, OCTET_FORM_GIVEN, OCTET_F32, NULL);
        oct_tensor_shape(b, tensor, oct_dim_of(OCTET_AXIS_ONE, 1, 1),
                         oct_axis_times(OCTET_AXIS_ONE, b->target->note_floats));
        oct_place(b, tensor, OCT_ALL_PARTS, OCTET_PLACE_WORK);
        cast->scratch = oct_tensor_at(b, tensor)->buffers[OCTET_PART_VALUES];
        return;
    }
    octet_plan_buffer *buffer = &b->plan->buffers[cast->scratch];
    octet_dim *dim = &oct_tensor_at(b, buffer->tensor)->cols;
    dim->mul = (uint16_t)(dim->mul + b->target->note_floats);
    buffer->dims[0] = *dim;
}

void oct_place_notes(oct_builder *b) {
    octet_plan *plan = b->plan;
    uint8_t makers[OCTET_PLAN_STEPS];
    if (!b->target->note_floats || b->status) {
        return;
    }
    find_makers(makers, plan);
    for (int i = 0; i < plan->step_count && !b->status; i++) {
        /* fprop of NVFP4, after the casts of x and w. Where both operands arrived quantized
         * there is no such cast.
         * e.g. `recipe=nvfp4 device=cuda:0/100`: "+swizzled, notes for products"
         * e.g. `recipe=nvfp4 qin=nvfp4:e2m1 qw=nvfp4:e2m1 grad=none device=cuda:0/100`: no
         * "notes" */
        if (makers[i] != OCTET_ABSENT) {
            octet_step *gemm = &plan->steps[i], *cast = &plan->steps[makers[i]];
            if (!oct_is_later_chunk(gemm)) {
                add_note(b, cast);
            }
            if (b->status) {
                break;
            }
            cast->reads |= factors_of(plan, gemm);
            cast->writes |= (uint64_t)1 << cast->scratch;
            gemm->reads |= (uint64_t)1 << cast->scratch;
        }
    }
}
