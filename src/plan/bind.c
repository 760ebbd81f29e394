/* bind.c - sizes make a plan's numbers: shapes, offsets and totals. */
#include "core/fail.h"
#include "core/size.h"
#include "plan/build.h"
#include "quant/layout.h"

static bool number_dims(int64_t shape[3], int64_t *bytes, const octet_dim dims[3], int ndim,
                        const octet_extents *extents) {
    bool fits = true;
    for (int i = 0; i < ndim; i++) {
        fits = fits && oct_dim_number(&shape[i], &dims[i], extents) &&
               oct_size_mul(bytes, *bytes, shape[i]);
    }
    return fits;
}

static bool number_port(octet_port *port, const octet_extents *extents) {
    port->bytes = octet_dtype_bits(port->dtype) / 8;
    return number_dims(port->shape, &port->bytes, port->dims, port->ndim, extents);
}

/* Puts a buffer at the end of its arena. */
static bool append_to_arena(octet_plan_buffer *buffer, int64_t *total) {
    int64_t aligned;
    buffer->offset = *total;
    return oct_size_round_up(&aligned, buffer->bytes, OCTET_ALIGN) &&
           oct_size_add(total, *total, aligned);
}

/* Whether a padded copy is needed at these sizes. For rows of whole 16 bytes 100 bytes are
 * rounded up to 112, and 96 are not.
 * e.g. `k=100 recipe=current device=cuda:0/90 grad=none`: "operands padded"
 * e.g. `k=96 recipe=current device=cuda:0/90 grad=none`: no "padded" */
static bool is_rounded_up(const octet_plan_buffer *buffer, const octet_extents *extents) {
    bool rounded = false;
    for (int i = 0; i < buffer->ndim; i++) {
        octet_dim dim = buffer->dims[i];
        int64_t exact = 0;
        dim.align = 1;
        rounded |= oct_dim_number(&exact, &dim, extents) && exact % buffer->dims[i].align;
    }
    return rounded;
}

/* What the product that wants most works in. */
static bool number_scratch(octet_plan *plan, octet_plan_buffer *buffer) {
    const oct_target *target = oct_target_of(&plan->device);
    uint8_t index = (uint8_t)(buffer - plan->buffers);
    buffer->bytes = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        oct_target_product product;
        int64_t bytes = 0;
        if (step->op != OCTET_OP_GEMM || step->scratch != index) {
            continue;
        }
        if (!oct_product_at(&product, plan, step) ||
            !target->scratch(&bytes, &plan->device, &product, buffer->shape[0])) {
            return false;
        }
        buffer->bytes = bytes > buffer->bytes ? bytes : buffer->bytes;
    }
    return true;
}

/* Amaxes come first in an arena, one beside the other: a GPU zeroes them all at once. */
static bool comes_first(const octet_plan *plan, const octet_plan_buffer *buffer) {
    return plan->tensors[buffer->tensor].form == OCTET_FORM_MEASURED ||
           (OCT_AMAX_PARTS >> buffer->part & 1);
}

static bool number_buffer(octet_plan *plan, octet_plan_buffer *buffer) {
    buffer->bytes = octet_dtype_bits(buffer->dtype) / 8;
    if (!number_dims(buffer->shape, &buffer->bytes, buffer->dims, buffer->ndim,
                     &plan->extents)) {
        return false;
    }
    if (buffer->sized && !number_scratch(plan, buffer)) {
        return false;
    }
    /* The tensor itself has whole rows at these sizes: no copy, no bytes. */
    if (buffer->ragged && !is_rounded_up(buffer, &plan->extents)) {
        buffer->bytes = 0;
    }
    bool first = comes_first(plan, buffer);
    return buffer->place == OCTET_PLACE_SAVED ? append_to_arena(buffer, &plan->saved_bytes)
           : buffer->place == OCTET_PLACE_WORK && first
               ? append_to_arena(buffer, &plan->workspace_bytes)
               : true;
}

/* Buffers of the workspace that may share bytes, as bits. */
static uint64_t sharing(const octet_plan *plan) {
    uint64_t bits = 0;
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        bool shares = b->place == OCTET_PLACE_WORK && !comes_first(plan, b);
        bits |= shares ? (uint64_t)1 << i : 0;
    }
    return bits;
}

static bool number_buffers(octet_plan *plan) {
    bool fits = true;
    for (int rest = 0; rest < 2; rest++) {
        for (int i = 0; i < plan->buffer_count; i++) {
            octet_plan_buffer *buffer = &plan->buffers[i];
            if (comes_first(plan, buffer) == !rest) {
                fits = fits && number_buffer(plan, buffer);
            }
        }
    }
    return fits && oct_share_workspace(plan, sharing(plan));
}

int octet_arena_buffers(uint8_t out[OCTET_PLAN_BUFFERS], const octet_plan *plan) {
    int count = 0;
    for (int rest = 0; rest < 2; rest++) {
        for (int i = 0; i < plan->buffer_count; i++) {
            const octet_plan_buffer *buffer = &plan->buffers[i];
            if (buffer->place == OCTET_PLACE_SAVED && comes_first(plan, buffer) == !rest) {
                out[count++] = (uint8_t)i;
            }
        }
    }
    return count;
}

static bool number_ports(octet_port *ports, int count, const octet_extents *extents) {
    bool fits = true;
    for (int i = 0; i < count; i++) {
        fits = fits && number_port(&ports[i], extents);
    }
    return fits;
}

/* What the next plan reads that lies outside of the saved arena. */
static bool number_aliased(octet_plan *plan) {
    bool fits = true;
    for (int i = 0; i < plan->saved_count; i++) {
        const octet_plan_buffer *buffer = &plan->buffers[plan->saved[i]];
        if (buffer->place != OCTET_PLACE_SAVED) {
            fits =
                fits && oct_size_add(&plan->aliased_bytes, plan->aliased_bytes, buffer->bytes);
        }
    }
    return fits;
}

octet_status oct_plan_number(octet_plan *plan, octet_error *err) {
    const octet_extents *extents = &plan->extents;
    plan->saved_bytes = plan->workspace_bytes = plan->aliased_bytes = 0;
    bool fits = number_ports(plan->args, plan->arg_count, extents) &&
                number_ports(plan->outs, plan->out_count, extents) &&
                number_ports(plan->exchanges, plan->exchange_count, extents) &&
                number_buffers(plan) && number_aliased(plan);
    return fits ? OCTET_OK
                : oct_fail(err, OCTET_INVALID,
                           "the buffers of m=%lld k=%lld n=%lld exceed 64-bit sizes",
                           (long long)extents->m, (long long)extents->k, (long long)extents->n);
}

/* ---- other sizes ------------------------------------------------------------------------- */

octet_status oct_plan_check_chunks(const octet_plan *plan, const octet_extents *sizes,
                                   octet_error *err) {
    bool forward = plan->kind == OCTET_PLAN_LINEAR, rows = plan->by_rows;
    int64_t size = rows ? sizes->m : forward ? sizes->n : sizes->k;
    if (size % plan->chunk_multiple == 0) {
        return OCTET_OK;
    }
    return oct_fail(err, OCTET_INVALID,
                    "%s is %lld; a product in %u chunks has a multiple of %lu %s: take "
                    "fewer chunks, or pad it",
                    rows      ? "m"
                    : forward ? "n"
                              : "k",
                    (long long)size, plan->chunks, (unsigned long)plan->chunk_multiple,
                    rows ? "rows" : "columns");
}

/* Each failure is a rule that the caller broke; the text has the value and the rule. */
static octet_status check_sizes(const octet_plan *plan, const octet_extents *sizes,
                                octet_error *err) {
    octet_status status = oct_need(plan, "plan", err);
    status = status ? status : oct_need(sizes, "sizes", err);
    status = status ? status : oct_need_size(plan->size, sizeof *plan, "octet_plan", err);
    /* Zeroed memory: every plan has a phase. */
    if (!status && plan->phases == 0) {
        status = oct_fail(err, OCTET_INVALID, "plan is empty: make it by an octet_plan_ call");
    }
    if (!status && (sizes->m < 0 || sizes->k < 0 || sizes->n < 0)) {
        status = oct_fail(err, OCTET_INVALID,
                          "sizes are m=%lld k=%lld n=%lld; none may be "
                          "negative",
                          (long long)sizes->m, (long long)sizes->k, (long long)sizes->n);
    }
    /* Sequence parallel: a block of elements, or a rank's share of rows, would be cut. */
    if (!status && sizes->m % plan->row_multiple) {
        status = oct_fail(err, OCTET_INVALID,
                          "m is %lld; the plan's ranks share rows by %lu: pad them, or plan "
                          "with another gather",
                          (long long)sizes->m, (unsigned long)plan->row_multiple);
    }
    return status ? status : oct_plan_check_chunks(plan, sizes, err);
}

static octet_status check_previous(const octet_plan *plan, const octet_plan *previous,
                                   const octet_extents *sizes, octet_error *err) {
    /* The first plan of a chain reads nothing that another one saved. */
    if (!previous) {
        return plan->restored_count == 0
                   ? OCTET_OK
                   : oct_fail(err, OCTET_INVALID,
                              "previous is NULL; this plan reads what the one before it saved");
    }
    const octet_extents *other = &previous->extents;
    /* A plan of another chain. */
    if (previous->saved_count != plan->restored_count) {
        return oct_fail(err, OCTET_INVALID,
                        "previous saves %u buffers; the plan that follows it reads %u",
                        previous->saved_count, plan->restored_count);
    }
    /* Its offsets are those of other sizes. */
    if (other->m != sizes->m || other->k != sizes->k || other->n != sizes->n) {
        return oct_fail(err, OCTET_INVALID,
                        "previous is bound to m=%lld k=%lld n=%lld; bind it to the same sizes",
                        (long long)other->m, (long long)other->k, (long long)other->n);
    }
    return OCTET_OK;
}

/* Where in their arena the buffers lie that earlier plans saved. */
static void take_offsets(octet_plan *plan, const octet_plan *previous) {
    for (int i = 0; i < plan->restored_count; i++) {
        octet_plan_buffer *buffer = &plan->buffers[plan->restored[i]];
        if (buffer->place == OCTET_PLACE_RESTORED) {
            buffer->offset = previous->buffers[previous->saved[i]].offset;
        }
    }
}

octet_status octet_plan_bind(octet_plan *plan, const octet_plan *previous,
                             const octet_extents *sizes, octet_error *err) {
    octet_status status = check_sizes(plan, sizes, err);
    status = status ? status : check_previous(plan, previous, sizes, err);
    if (status) {
        return status;
    }
    octet_plan bound = *plan;
    bound.extents = *sizes;
    if (previous) {
        take_offsets(&bound, previous);
    }
    status = oct_plan_number(&bound, err);
    if (!status) {
        *plan = bound;
    }
    return status;
}
