/* product.c - of a product of a plan: how its device multiplies, and whether it copies rows. */
#include "plan/product.h"

static bool is_gemm(const octet_plan *plan, int step) {
    return plan && step >= 0 && step < plan->step_count &&
           plan->steps[step].op == OCTET_OP_GEMM;
}

octet_support octet_step_support(const octet_plan *plan, int step) {
    if (!is_gemm(plan, step)) {
        return OCTET_SUPPORT_EMULATED;
    }
    const octet_step *s = &plan->steps[step];
    uint8_t copy = s->a_copy != OCTET_ABSENT ? s->a_copy : s->b_copy;
    bool folds = copy != OCTET_ABSENT && plan->tensors[copy].form == OCTET_FORM_FOLDED;
    return s->native ? OCTET_SUPPORT_NATIVE
           : folds   ? OCTET_SUPPORT_FOLDED
                     : OCTET_SUPPORT_EMULATED;
}

static bool is_used(const octet_plan *plan, uint8_t copy) {
    return copy != OCTET_ABSENT &&
           plan->buffers[plan->tensors[copy].buffers[OCTET_PART_VALUES]].bytes > 0;
}

static bool is_rounded_up(const octet_plan *plan, const octet_dim *dim) {
    octet_dim exact = *dim;
    int64_t size = 0;
    exact.align = 1;
    return !octet_dim_eval(&size, &exact, &plan->extents, NULL) && size % dim->align;
}

bool oct_step_pads_operands(const octet_plan *plan, const octet_step *s) {
    return is_used(plan, s->a_copy) || is_used(plan, s->b_copy);
}

bool oct_step_pads_sums(const octet_plan *plan, const octet_step *s) {
    if (s->a_copy == OCTET_ABSENT || !is_used(plan, s->dst)) {
        return false;
    }
    const octet_plan_tensor *a = &plan->tensors[s->a_copy], *b = &plan->tensors[s->b_copy];
    bool a_across = (s->gemm == OCTET_WGRAD) != (s->a_use == OCTET_USE_COL);
    bool b_across = (s->gemm != OCTET_FPROP) != (s->b_use == OCTET_USE_COL);
    return is_rounded_up(plan, a_across ? &a->cols : &a->rows) ||
           is_rounded_up(plan, b_across ? &b->cols : &b->rows);
}

bool octet_step_is_padded(const octet_plan *plan, int step) {
    if (octet_step_support(plan, step) != OCTET_SUPPORT_NATIVE) {
        return false;
    }
    const octet_step *s = &plan->steps[step];
    return oct_step_pads_operands(plan, s) || oct_step_pads_sums(plan, s);
}
