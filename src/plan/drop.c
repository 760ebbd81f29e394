/* drop.c - bytes that need not be written where their cast decodes them itself. */
#include "plan/build.h"

/* Codes and block scales of one direction. */
static uint64_t bytes_of(const octet_plan *plan, uint8_t tensor, octet_use use) {
    static const uint8_t parts[2][2] = {{OCTET_PART_ROW_DATA, OCTET_PART_ROW_SCALE},
                                        {OCTET_PART_COL_DATA, OCTET_PART_COL_SCALE}};
    uint64_t bits = 0;
    for (int i = 0; i < 2; i++) {
        uint8_t buffer = plan->tensors[tensor].buffers[parts[use == OCTET_USE_COL][i]];
        bits |= buffer == OCTET_ABSENT ? 0 : (uint64_t)1 << buffer;
    }
    return bits;
}

/* Whether none of them outlives the call. */
static bool are_passing(const octet_plan *plan, uint64_t bits) {
    for (int i = 0; i < plan->buffer_count; i++) {
        if ((bits >> i & 1) && plan->buffers[i].place != OCTET_PLACE_WORK) {
            return false;
        }
    }
    return true;
}

/* Whether products of a phase that have the copy are the only readers. */
static bool reads_copy(const octet_plan *plan, uint64_t bits, uint8_t copy, uint8_t phase) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool has = step->op == OCTET_OP_GEMM && step->phase == phase &&
                   (step->a_copy == copy || step->b_copy == copy);
        if ((step->reads & bits) && !has) {
            return false;
        }
    }
    return true;
}

/* Bytes of one direction need not be written if the cast writes what they decode or fold to,
 * and the bytes themselves have no reader. Of MXFP8 on an H200 fprop multiplies the folded copy
 * of x, and nobody reads x's rowwise bytes: wgrad reads the columnwise ones.
 * e.g. `recipe=mxfp8 device=cuda:0/90`: "quantize input -> input.quantized
 * mxfp8:e4m3/1x32+row+col, rowwise folded" */
static bool may_drop(const octet_plan *plan, const octet_step *step, octet_use use) {
    uint8_t copy = use == OCTET_USE_ROW ? step->a_copy : step->b_copy;
    uint64_t bits = bytes_of(plan, step->dst, use);
    return copy != OCTET_ABSENT && are_passing(plan, bits) &&
           reads_copy(plan, bits, copy, step->phase);
}

void oct_drop_bytes(oct_builder *b) {
    for (int i = 0; i < b->plan->step_count; i++) {
        octet_step *step = &b->plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE) {
            step->row_unread = may_drop(b->plan, step, OCTET_USE_ROW);
            step->col_unread = may_drop(b->plan, step, OCTET_USE_COL);
        }
    }
}
