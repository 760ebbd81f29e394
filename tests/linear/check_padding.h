/* check_padding.h - what a GPU's library is given has rows of whole 16 bytes, whatever the
 * size. */
#ifndef OCTET_CHECK_PADDING_H
#define OCTET_CHECK_PADDING_H

#include "check_shapes.h"

/* An operand as it is multiplied: its bytes, or the copy of them that has some. */
typedef struct check_lines {
    int64_t lines, length; /* as stored */
    int64_t outer, depth;  /* as multiplied */
    bool across;
    bool copied;
} check_lines;

static inline const octet_plan_buffer *check_values_of(const octet_plan *plan, int tensor) {
    return &plan->buffers[plan->tensors[tensor].buffers[OCTET_PART_VALUES]];
}

static inline check_lines check_lines_of(const octet_plan *plan, const octet_step *step,
                                         bool first) {
    const octet_plan_tensor *t = &plan->tensors[first ? step->a : step->b];
    int use = first ? step->a_use : step->b_use, copy = first ? step->a_copy : step->b_copy;
    int64_t rows = check_dim(plan, &t->rows), cols = check_dim(plan, &t->cols);
    bool down = first ? step->gemm == OCTET_WGRAD : step->gemm != OCTET_FPROP;
    bool turned = use == OCTET_USE_COL;
    check_lines out = {.lines = turned ? cols : rows, .length = turned ? rows : cols};
    const octet_plan_buffer *room = check_values_of(plan, copy);
    out.across = down != turned;
    out.copied = room->bytes > 0;
    if (out.copied) {
        out.lines = room->shape[0];
        out.length = room->shape[1];
    }
    out.outer = out.across ? out.length : out.lines;
    out.depth = out.across ? out.lines : out.length;
    /* Of a chunk only the lines that are multiplied count. */
    if (!first && step->chunk != OCTET_ABSENT && !plan->by_rows && !out.copied) {
        out.outer = check_dim(plan, &plan->tensors[step->dst].cols);
    }
    return out;
}

/* Whether all of them are whole already. */
static inline bool check_is_whole(const octet_plan *plan) {
    return (plan->extents.m | plan->extents.k | plan->extents.n) % 16 == 0;
}

static inline bool check_padded_room(const octet_plan *plan, int tensor, octet_dtype dtype) {
    if (tensor == OCTET_ABSENT) {
        return false;
    }
    const octet_plan_tensor *t = &plan->tensors[tensor];
    const octet_plan_buffer *buffer = check_values_of(plan, tensor);
    return t->form == OCTET_FORM_PADDED && t->dtype == dtype && buffer->ragged &&
           !(check_is_whole(plan) && buffer->bytes);
}

/* dst is written as it is where it has the rows and columns that are multiplied, and whole
 * lines. Rows of 128-blocks that are no whole eights are the product's own affair. */
static inline bool check_is_direct(const octet_plan *plan, const octet_step *step,
                                   const check_lines *a, const check_lines *b) {
    const octet_plan_tensor *dst = &plan->tensors[step->dst];
    int64_t rows = check_dim(plan, &dst->rows), cols = check_dim(plan, &dst->cols);
    int64_t bytes = octet_dtype_bits((octet_dtype)dst->dtype) / 8;
    return a->outer == rows && b->outer == cols && cols * bytes % 16 == 0;
}

/* Room in scratch for what is padded besides the operands: sums of some rows at a time, where
 * dst is not written as it is; of blocks of one line a row of scales for each block, with a
 * place for each of b's lines. */
static inline int64_t check_padded_bytes(const octet_plan *plan, const octet_step *step) {
    const octet_plan_tensor *t = &plan->tensors[step->b];
    check_lines a = check_lines_of(plan, step, true), b = check_lines_of(plan, step, false);
    bool turned = step->b_use == OCTET_USE_COL;
    int64_t lines = check_dim(plan, turned ? &t->cols : &t->rows);
    bool whole = step->chunk == OCTET_ABSENT || plan->by_rows;
    bool added = lines / (whole ? 1 : plan->chunks) != b.outer;
    bool vectors = t->quantizer.scheme == OCTET_FP8_BLOCK && t->quantizer.block_rows == 1;
    /* Of a spoiled plan any number will do, but it is no overflow. */
    uint64_t sums = (uint64_t)(a.outer < 1024 ? a.outer : 1024) * (uint64_t)b.outer * 4;
    int64_t depth = b.across ? b.lines : b.length;
    int64_t scales = (depth + 127) / 128 * b.outer * 4;
    return check_align(check_is_direct(plan, step, &a, &b) ? 0 : (int64_t)sums) +
           check_align(added && vectors ? scales : 0);
}

/* dst's columns are the second operand's lines. */
static inline bool check_is_padded(const octet_plan *plan, const octet_step *step,
                                   bool one_scale) {
    if (!check_padded_room(plan, step->a_copy, OCTET_U8) ||
        !check_padded_room(plan, step->b_copy, OCTET_U8)) {
        return false;
    }
    check_lines a = check_lines_of(plan, step, true), b = check_lines_of(plan, step, false);
    int64_t depth = a.across && b.across ? 1 : 16;
    return a.length % 16 == 0 && b.length % 16 == 0 && a.depth == b.depth &&
           a.depth % depth == 0 && (one_scale || b.outer % 8 == 0);
}

#endif
