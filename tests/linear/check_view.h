/* check_view.h - questions to a plan that every law asks: masks, names, places. */
#ifndef OCTET_CHECK_VIEW_H
#define OCTET_CHECK_VIEW_H

#include "check_report.h"

static inline uint64_t check_bit(int index) {
    return index == OCTET_ABSENT ? 0 : (uint64_t)1 << index;
}

static inline bool check_has(uint64_t mask, int index) {
    return (mask >> index & 1) != 0;
}

static inline int64_t check_align(int64_t bytes) {
    return (bytes + OCTET_ALIGN - 1) / OCTET_ALIGN * OCTET_ALIGN;
}

/* A buffer's name for a report; the text lives until the fourth call after this one. */
static inline const char *check_name(const octet_plan *plan, int buffer) {
    static char texts[4][96];
    static int next;
    char *text = texts[next++ % 4];
    size_t length = octet_plan_buffer_print(text, sizeof texts[0], plan, buffer);
    if (length == 0) {
        snprintf(text, sizeof texts[0], "buffer %d", buffer);
    }
    return text;
}

static inline const octet_plan_tensor *check_tensor_of(const octet_plan *plan, int buffer) {
    return &plan->tensors[plan->buffers[buffer].tensor];
}

static inline int check_name_of(const octet_plan *plan, int buffer) {
    return check_tensor_of(plan, buffer)->name;
}

static inline bool check_is_quantized(const octet_plan_tensor *tensor) {
    return tensor->quantizer.scheme != OCTET_SCHEME_NONE;
}

/* One scale for the whole tensor: either scheme of it. */
static inline bool check_is_per_tensor(const octet_quantizer *quantizer) {
    return quantizer->scheme == OCTET_FP8_TENSOR || quantizer->scheme == OCTET_FP8_DELAYED;
}

/* A scale that comes from the amax of the whole tensor. */
static inline bool check_needs_amax(const octet_quantizer *quantizer) {
    return quantizer->scheme == OCTET_FP8_TENSOR ||
           (quantizer->scheme == OCTET_NVFP4 && !quantizer->row_scaled);
}

/* Equal but for the usages and the order of scales, which are the plan's to choose. */
static inline bool check_same_recipe(const octet_quantizer *a, const octet_quantizer *b) {
    octet_quantizer one = *a, other = *b;
    one.rowwise = other.rowwise = 1;
    one.columnwise = other.columnwise = 1;
    one.swizzled = other.swizzled = 0;
    return octet_quantizer_equal(&one, &other);
}

/* Whether bytes of one part, made by a, mean the same when read as b's. */
static inline bool check_same_code(const octet_quantizer *a, const octet_quantizer *b,
                                   int part) {
    bool scales = part == OCTET_PART_ROW_SCALE || part == OCTET_PART_COL_SCALE;
    bool columns = part == OCTET_PART_COL_DATA || part == OCTET_PART_COL_SCALE ||
                   part == OCTET_PART_COL_AMAX;
    return a->scheme == b->scheme && a->format == b->format && a->block_rows == b->block_rows &&
           a->block_cols == b->block_cols && a->row_scaled == b->row_scaled &&
           a->four_over_six == b->four_over_six && a->max256 == b->max256 &&
           (!scales || a->swizzled == b->swizzled) && (!columns || a->hadamard == b->hadamard);
}

static inline bool check_part_in(octet_part part, octet_use use) {
    switch (part) {
    case OCTET_PART_VALUES:
        return use == OCTET_USE_VALUES;
    case OCTET_PART_ROW_DATA:
    case OCTET_PART_ROW_SCALE:
    case OCTET_PART_ROW_AMAX:
        return use == OCTET_USE_ROW;
    case OCTET_PART_COL_DATA:
    case OCTET_PART_COL_SCALE:
    case OCTET_PART_COL_AMAX:
        return use == OCTET_USE_COL;
    default: /* the scale of both directions */
        return use != OCTET_USE_VALUES;
    }
}

/* The buffers of a tensor that one use reads. */
static inline uint64_t check_use_mask(const octet_plan *plan, int tensor, octet_use use) {
    uint64_t mask = 0;
    for (int part = 0; part < OCTET_PARTS; part++) {
        if (check_part_in((octet_part)part, use)) {
            mask |= check_bit(plan->tensors[tensor].buffers[part]);
        }
    }
    return mask;
}

static inline uint64_t check_tensor_mask(const octet_plan *plan, int tensor) {
    return check_use_mask(plan, tensor, OCTET_USE_VALUES) |
           check_use_mask(plan, tensor, OCTET_USE_ROW) |
           check_use_mask(plan, tensor, OCTET_USE_COL);
}

/* The buffers of a tensor that are not another's. */
static inline uint64_t check_own_mask(const octet_plan *plan, int tensor) {
    uint64_t mask = check_tensor_mask(plan, tensor);
    for (int i = 0; i < plan->buffer_count; i++) {
        mask &= plan->buffers[i].tensor == tensor ? ~(uint64_t)0 : ~check_bit(i);
    }
    return mask;
}

/* What a GEMM decodes or pads for itself, multiplies instead of its operands, or a QUANTIZE
 * decodes to. */
static inline uint64_t check_copy_mask(const octet_plan *plan, const octet_step *step) {
    int copies[] = {step->a_copy, step->b_copy};
    uint64_t mask = 0;
    for (int i = 0; i < 2; i++) {
        mask |= copies[i] == OCTET_ABSENT ? 0 : check_tensor_mask(plan, copies[i]);
    }
    return mask;
}

/* Whether a step multiplies folded copies of its operands. */
static inline bool check_is_folded(const octet_plan *plan, const octet_step *step) {
    return step->op == OCTET_OP_GEMM && step->a_copy != OCTET_ABSENT &&
           plan->tensors[step->a_copy].form == OCTET_FORM_FOLDED;
}

/* Column sums that a step leaves and a BIAS_GRAD finds, or makes. */
static inline uint64_t check_sums_mask(const octet_plan *plan, const octet_step *step) {
    return step->sums == OCTET_ABSENT ? 0 : check_tensor_mask(plan, step->sums);
}

/* The amax that the elements of an operand lack; 0 where it is none of the tensor's. */
static inline uint64_t check_factor_mask(const octet_plan *plan, int tensor, int use) {
    const octet_plan_tensor *t = &plan->tensors[tensor];
    bool one = t->quantizer.scheme == OCTET_NVFP4 && !t->quantizer.row_scaled;
    return !one ? 0
                : check_bit(t->buffers[use == OCTET_USE_ROW ? OCTET_PART_ROW_AMAX
                                                            : OCTET_PART_COL_AMAX]);
}

/* Of both operands, where both have one. */
static inline uint64_t check_factors(const octet_plan *plan, const octet_step *gemm) {
    uint64_t a = check_factor_mask(plan, gemm->a, gemm->a_use);
    uint64_t b = check_factor_mask(plan, gemm->b, gemm->b_use);
    return a && b ? a | b : 0;
}

/* What a cast leaves for products, which no one else sees. */
static inline uint64_t check_notes_mask(const octet_step *step) {
    return step->op == OCTET_OP_QUANTIZE ? check_bit(step->scratch) : 0;
}

/* Of all casts. */
static inline uint64_t check_all_notes(const octet_plan *plan) {
    uint64_t mask = 0;
    for (int i = 0; i < plan->step_count; i++) {
        mask |= check_notes_mask(&plan->steps[i]);
    }
    return mask;
}

/* The first step that leaves column sums of a tensor, or could: its cast, or where that has to
 * be measured first, the measuring; -1: none. */
static inline int check_summer(const octet_plan *plan, int tensor) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool parts = step->op == OCTET_OP_AMAX && step->dst != OCTET_ABSENT;
        if ((parts || step->op == OCTET_OP_QUANTIZE) && step->a == tensor) {
            return i;
        }
    }
    return -1;
}

/* What the QUANTIZE steps of a plan decode to. */
static inline uint64_t check_decoded_mask(const octet_plan *plan) {
    uint64_t mask = 0;
    for (int i = 0; i < plan->step_count; i++) {
        bool quantizes = plan->steps[i].op == OCTET_OP_QUANTIZE;
        mask |= quantizes ? check_copy_mask(plan, &plan->steps[i]) : 0;
    }
    return mask;
}

/* The buffers in one place; any port when port is negative. */
static inline uint64_t check_place_mask(const octet_plan *plan, octet_place place, int port) {
    uint64_t mask = 0;
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *buffer = &plan->buffers[i];
        if (buffer->place == place && (port < 0 || buffer->port == port)) {
            mask |= check_bit(i);
        }
    }
    return mask;
}

/* What some step reads (or writes). */
static inline uint64_t check_all_reads(const octet_plan *plan) {
    uint64_t mask = 0;
    for (int i = 0; i < plan->step_count; i++) {
        mask |= plan->steps[i].reads;
    }
    return mask;
}

static inline uint64_t check_all_writes(const octet_plan *plan) {
    uint64_t mask = 0;
    for (int i = 0; i < plan->step_count; i++) {
        mask |= plan->steps[i].writes;
    }
    return mask;
}

static inline uint64_t check_slot_mask(const uint8_t *slots, int count) {
    uint64_t mask = 0;
    for (int i = 0; i < count; i++) {
        mask |= check_bit(slots[i]);
    }
    return mask;
}

/* The first step that writes a buffer; -1 when none does. */
static inline int check_writer(const octet_plan *plan, int buffer) {
    for (int i = 0; i < plan->step_count; i++) {
        if (check_has(plan->steps[i].writes, buffer)) {
            return i;
        }
    }
    return -1;
}

static inline int check_count_ops(const octet_plan *plan, octet_op op) {
    int count = 0;
    for (int i = 0; i < plan->step_count; i++) {
        count += plan->steps[i].op == op;
    }
    return count;
}

static inline int check_find_port(const octet_port *ports, int count, octet_plan_name name) {
    for (int i = 0; i < count; i++) {
        if (ports[i].name == name) {
            return i;
        }
    }
    return -1;
}

#endif
