/* restore.c - what one plan of the chain saved, found again in the next. */
#include <string.h>

#include "linear/planner.h"

/* This plan's tensor for a tensor of the previous one, with no parts yet. */
static uint8_t same_tensor(oct_builder *b, const octet_plan_tensor *previous) {
    octet_quantizer q = previous->quantizer;
    uint8_t tensor = oct_tensor(b, (octet_plan_name)previous->name,
                                (octet_plan_form)previous->form, previous->dtype, &q);
    oct_tensor_shape(b, tensor, previous->rows, previous->cols);
    return tensor;
}

/* Gives the tensor one saved buffer of the previous plan. There are three cases:
 * - an alias, such as x itself: the caller hands the same tensor over again, as an argument;
 *   e.g. `grad=w`: "restored from the plan before 0 input bf16 (256, 256) 128.0 KiB, is
 * argument 1"
 * - a buffer in forward's arena (port 0);
 *   e.g. `recipe=mxfp8 grad=w`: "input.quantized columnwise data u8 (256, 256) 64.0 KiB, stored
 *   by forward"
 * - a buffer in backward's arena (port 1): only a later wgrad reads one.
 *   e.g. `recipe=mxfp8 delay_wgrad`: "grad_output.quantized columnwise data u8 (256, 256) 64.0
 *   KiB, stored by backward" */
static void restore_part(oct_builder *b, uint8_t tensor, const octet_plan_buffer *saved) {
    bool alias = saved->place == OCTET_PLACE_ARG || saved->place == OCTET_PLACE_OUT;
    bool by_backward =
        b->plan->kind == OCTET_PLAN_LINEAR_WGRAD && saved->place == OCTET_PLACE_SAVED;
    oct_place(b, tensor, 1u << saved->part, alias ? OCTET_PLACE_ARG : OCTET_PLACE_RESTORED);
    octet_plan_buffer *buffer =
        &b->plan->buffers[oct_tensor_at(b, tensor)->buffers[saved->part]];
    if (!alias) {
        buffer->port = by_backward;
        buffer->offset = saved->offset;
    }
}

/* A tensor of which only some parts were saved has only their directions: forward made both
 * directions of x, and only the columnwise one is here.
 * e.g. `recipe=mxfp8 grad=w`: "restored from the plan before 0 input.quantized columnwise data"
 */
static void trim_usage(octet_plan_tensor *tensor) {
    octet_quantizer *q = &tensor->quantizer;
    if (q->scheme != OCTET_SCHEME_NONE) {
        q->rowwise = tensor->buffers[OCTET_PART_ROW_DATA] != OCTET_ABSENT;
        q->columnwise = tensor->buffers[OCTET_PART_COL_DATA] != OCTET_ABSENT;
    }
}

void oct_restore(oct_builder *b, const octet_plan *previous) {
    uint8_t here[OCTET_PLAN_TENSORS];
    memset(here, OCTET_ABSENT, sizeof here);
    for (int i = 0; i < previous->saved_count; i++) {
        const octet_plan_buffer *saved = &previous->buffers[previous->saved[i]];
        /* The first part of this tensor; later parts join it. */
        if (here[saved->tensor] == OCTET_ABSENT) {
            here[saved->tensor] = same_tensor(b, &previous->tensors[saved->tensor]);
        }
        uint8_t tensor = here[saved->tensor];
        restore_part(b, tensor, saved);
        b->plan->restored[b->plan->restored_count++] =
            oct_tensor_at(b, tensor)->buffers[saved->part];
    }
    for (int i = 0; i < OCTET_PLAN_TENSORS; i++) {
        if (here[i] != OCTET_ABSENT) {
            trim_usage(oct_tensor_at(b, here[i]));
        }
    }
}

uint8_t oct_restored_as(const oct_builder *b, octet_plan_name name, octet_plan_form form) {
    for (int i = 0; i < b->plan->restored_count; i++) {
        uint8_t tensor = b->plan->buffers[b->plan->restored[i]].tensor;
        const octet_plan_tensor *t = &b->plan->tensors[tensor];
        if (t->name == name && t->form == form) {
            return tensor;
        }
    }
    return OCTET_ABSENT;
}

uint8_t oct_restored(const oct_builder *b, octet_plan_name name) {
    for (int i = 0; i < b->plan->restored_count; i++) {
        uint8_t tensor = b->plan->buffers[b->plan->restored[i]].tensor;
        if (b->plan->tensors[tensor].name == name) {
            return tensor;
        }
    }
    return OCTET_ABSENT;
}
