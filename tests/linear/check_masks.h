/* check_masks.h - what a step reads and writes, worked out again from its operands. */
#ifndef OCTET_CHECK_MASKS_H
#define OCTET_CHECK_MASKS_H

#include "check_view.h"

typedef struct check_traffic {
    uint64_t reads, writes;
} check_traffic;

static inline uint64_t check_values(const octet_plan *plan, int tensor) {
    return check_use_mask(plan, tensor, OCTET_USE_VALUES);
}

static inline uint64_t check_parts(const octet_plan *plan, int tensor, octet_part a,
                                   octet_part b) {
    const uint8_t *buffers = plan->tensors[tensor].buffers;
    return check_bit(buffers[a]) | check_bit(buffers[b]);
}

static inline uint64_t check_amax_parts(const octet_plan *plan, int tensor) {
    return check_parts(plan, tensor, OCTET_PART_ROW_AMAX, OCTET_PART_COL_AMAX);
}

/* What a step reads for the prologue that it applies; of others nothing. */
static inline uint64_t check_parameters(const octet_plan *plan, const octet_step *step) {
    return !step->apply
               ? 0
               : check_bit(step->gamma) | check_bit(step->bias) |
                     (step->stats == OCTET_ABSENT ? 0 : check_values(plan, step->stats));
}

/* An amax goes to the tensor that is made from it, or else to a buffer of its own. */
static inline check_traffic check_amax_traffic(const octet_plan *plan, const octet_step *step) {
    uint64_t parts = step->dst == OCTET_ABSENT ? 0 : check_amax_parts(plan, step->dst);
    check_traffic traffic = {check_values(plan, step->a),
                             parts ? parts : check_bit(step->amax)};
    traffic.reads |= step->accumulate ? traffic.writes : 0;
    traffic.reads |= check_parameters(plan, step);
    traffic.writes |= check_sums_mask(plan, step);
    return traffic;
}

/* The tensor's own amaxes were measured before; a scale comes with an amax to record, or to
 * raise. */
static inline check_traffic check_quantize(const octet_plan *plan, const octet_step *step) {
    uint64_t known = check_amax_parts(plan, step->dst);
    check_traffic traffic = {
        .reads = check_values(plan, step->a) | check_bit(step->scale) | check_bit(step->seed) |
                 known | check_parameters(plan, step),
        .writes = (check_tensor_mask(plan, step->dst) & ~known) | check_copy_mask(plan, step) |
                  check_sums_mask(plan, step),
    };
    *(step->scale != OCTET_ABSENT ? &traffic.writes : &traffic.reads) |= check_bit(step->amax);
    traffic.reads |= step->accumulate ? check_bit(step->amax) : 0;
    /* A note is made of the amaxes of a product that reads it. */
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *gemm = &plan->steps[i];
        bool noted = gemm->op == OCTET_OP_GEMM && (gemm->reads & check_notes_mask(step));
        traffic.reads |= noted ? check_factors(plan, gemm) : 0;
    }
    traffic.writes |= check_notes_mask(step);
    return traffic;
}

/* The part that becomes this one when a tensor is turned round. */
static inline octet_part check_turned(int part) {
    switch (part) {
    case OCTET_PART_ROW_DATA:
        return OCTET_PART_COL_DATA;
    case OCTET_PART_COL_DATA:
        return OCTET_PART_ROW_DATA;
    case OCTET_PART_ROW_SCALE:
        return OCTET_PART_COL_SCALE;
    case OCTET_PART_COL_SCALE:
        return OCTET_PART_ROW_SCALE;
    case OCTET_PART_ROW_AMAX:
        return OCTET_PART_COL_AMAX;
    case OCTET_PART_COL_AMAX:
        return OCTET_PART_ROW_AMAX;
    default:
        return (octet_part)part;
    }
}

/* What dst does not share with a is made from a's parts of the other direction. */
static inline check_traffic check_transpose(const octet_plan *plan, const octet_step *step) {
    check_traffic traffic = {.writes = check_own_mask(plan, step->dst)};
    for (int i = 0; i < plan->buffer_count; i++) {
        if (check_has(traffic.writes, i)) {
            octet_part from = check_turned(plan->buffers[i].part);
            bool used = check_part_in(from, (octet_use)step->a_use);
            traffic.reads |= used ? check_bit(plan->tensors[step->a].buffers[from]) : 0;
        }
    }
    return traffic;
}

static inline check_traffic check_swizzle(const octet_plan *plan, const octet_step *step) {
    octet_part part =
        step->a_use == OCTET_USE_ROW ? OCTET_PART_ROW_SCALE : OCTET_PART_COL_SCALE;
    check_traffic traffic = {check_parts(plan, step->a, part, part),
                             check_own_mask(plan, step->dst)};
    return traffic;
}

/* Parts that only one of the two has stay as they are. */
static inline check_traffic check_assemble(const octet_plan *plan, const octet_step *step) {
    check_traffic traffic = {.reads = check_tensor_mask(plan, step->a)};
    for (int part = 0; part < OCTET_PARTS; part++) {
        bool both = plan->tensors[step->a].buffers[part] != OCTET_ABSENT;
        traffic.writes |= both ? check_bit(plan->tensors[step->dst].buffers[part]) : 0;
    }
    return traffic;
}

/* Values, or rowwise codes. */
static inline check_traffic check_join(const octet_plan *plan, const octet_step *step) {
    check_traffic traffic = {
        check_parts(plan, step->a, OCTET_PART_VALUES, OCTET_PART_ROW_DATA),
        check_parts(plan, step->dst, OCTET_PART_VALUES, OCTET_PART_ROW_DATA)};
    return traffic;
}

static inline check_traffic check_gemm_traffic(const octet_plan *plan, const octet_step *step) {
    uint64_t dst = check_tensor_mask(plan, step->dst);
    uint64_t copies = check_copy_mask(plan, step), made = check_decoded_mask(plan);
    check_traffic traffic = {
        .reads = check_use_mask(plan, step->a, (octet_use)step->a_use) |
                 check_use_mask(plan, step->b, (octet_use)step->b_use) | check_bit(step->bias) |
                 (step->accumulate ? dst : 0) | (copies & made) |
                 (step->reads & check_all_notes(plan)), /* which, check_notes says */
        .writes = dst | (copies & ~made),
    };
    return traffic;
}

/* Values in, values out. */
static inline check_traffic check_simple(const octet_plan *plan, const octet_step *step) {
    check_traffic traffic = {check_values(plan, step->a) | check_bit(step->bias),
                             check_tensor_mask(plan, step->dst)};
    return traffic;
}

/* Sums that a cast has left are read instead of what they are of, others are written first. */
static inline check_traffic check_bias_grad(const octet_plan *plan, const octet_step *step) {
    int summer = check_summer(plan, step->a);
    uint64_t sums = check_sums_mask(plan, step);
    uint64_t made = summer < 0 ? 0 : check_sums_mask(plan, &plan->steps[summer]);
    uint64_t dst = check_tensor_mask(plan, step->dst);
    check_traffic traffic = {(sums & made ? sums : check_values(plan, step->a)) |
                                 (step->accumulate ? dst : 0),
                             dst | (sums & ~made)};
    return traffic;
}

/* The prologue reads what it is a function of; gamma's sums are its own, written first. */
static inline check_traffic check_prologue(const octet_plan *plan, const octet_step *step) {
    check_traffic traffic = {check_values(plan, step->a) | check_bit(step->gamma) |
                                 check_bit(step->bias),
                             check_tensor_mask(plan, step->dst) | check_bit(step->amax) |
                                 check_sums_mask(plan, step)};
    traffic.reads |= step->b == OCTET_ABSENT ? 0 : check_values(plan, step->b);
    traffic.reads |= step->stats == OCTET_ABSENT ? 0 : check_values(plan, step->stats);
    return traffic;
}

static inline check_traffic check_expect(const octet_plan *plan, const octet_step *step) {
    check_traffic traffic = {check_bit(step->from), check_bit(step->to)};
    switch (step->op) {
    case OCTET_OP_CAST:
    case OCTET_OP_ADD_BIAS:
    case OCTET_OP_STATISTICS:
        return check_simple(plan, step);
    case OCTET_OP_PROLOGUE:
    case OCTET_OP_PROLOGUE_GRAD:
    case OCTET_OP_GAMMA_GRAD:
        return check_prologue(plan, step);
    case OCTET_OP_BIAS_GRAD:
        return check_bias_grad(plan, step);
    case OCTET_OP_AMAX:
        return check_amax_traffic(plan, step);
    case OCTET_OP_QUANTIZE:
        return check_quantize(plan, step);
    case OCTET_OP_DEQUANTIZE:
        traffic.reads = check_use_mask(plan, step->a, (octet_use)step->a_use);
        traffic.writes = check_tensor_mask(plan, step->dst);
        return traffic;
    case OCTET_OP_TRANSPOSE:
        return check_transpose(plan, step);
    case OCTET_OP_SWIZZLE:
        return check_swizzle(plan, step);
    case OCTET_OP_ASSEMBLE:
        return check_assemble(plan, step);
    case OCTET_OP_JOIN:
        return check_join(plan, step);
    case OCTET_OP_GEMM:
        return check_gemm_traffic(plan, step);
    default: /* zero: nothing to `to`; a collective: `from` to `to` */
        return traffic;
    }
}

static inline void check_mask(check_report *report, const octet_plan *plan, int index) {
    const octet_step *step = &plan->steps[index];
    check_traffic want = check_expect(plan, step);
    uint64_t reads = step->reads ^ want.reads, writes = step->writes ^ want.writes;
    for (int i = 0; i < plan->buffer_count; i++) {
        CHECK_LAW(report, LAW_MASKS, !check_has(reads, i), "step %d %s %s", index,
                  check_has(want.reads, i) ? "does not say that it reads its operand"
                                           : "reads what is no operand of it,",
                  check_name(plan, i));
        CHECK_LAW(report, LAW_MASKS, !check_has(writes, i), "step %d %s %s", index,
                  check_has(want.writes, i) ? "does not say that it writes its result"
                                            : "writes what is no result of it,",
                  check_name(plan, i));
    }
    CHECK_LAW(report, LAW_MASKS, want.writes != 0, "step %d has nothing to write", index);
    CHECK_LAW(report, LAW_MASKS, want.reads != 0 || step->op == OCTET_OP_ZERO,
              "step %d has nothing to read", index);
}

static inline bool check_works_in(const octet_plan *plan, int buffer) {
    bool found = false;
    for (int i = 0; i < plan->step_count; i++) {
        bool gemm = plan->steps[i].op == OCTET_OP_GEMM;
        found = found || (gemm && plan->steps[i].scratch == buffer);
    }
    return found;
}

/* The scratch of GEMMs is nobody's operand, and outlives no call. */
static inline void check_scratch(check_report *report, const octet_plan *plan) {
    for (int i = 0; i < plan->buffer_count; i++) {
        bool scratch = check_name_of(plan, i) == OCTET_NAME_SCRATCH;
        CHECK_LAW(report, LAW_MASKS, !scratch || plan->buffers[i].place == OCTET_PLACE_WORK,
                  "%s is not in the workspace", check_name(plan, i));
        CHECK_LAW(report, LAW_MASKS, !scratch || check_works_in(plan, i), "no product uses %s",
                  check_name(plan, i));
    }
}

static inline void check_masks(check_report *report, const octet_plan *plan) {
    check_scratch(report, plan);
    for (int i = 0; i < plan->step_count; i++) {
        check_mask(report, plan, i);
    }
}

#endif
