/* check_flow.h - reads follow writes, writes happen once, promised outputs are written. */
#ifndef OCTET_CHECK_FLOW_H
#define OCTET_CHECK_FLOW_H

#include "check_view.h"

/* ---- reads ----------------------------------------------------------------------------- */

static inline void check_reads_of(check_report *report, const octet_plan *plan, int index,
                                  uint64_t ready) {
    uint64_t missing = plan->steps[index].reads & ~ready;
    for (int i = 0; i < plan->buffer_count; i++) {
        CHECK_LAW(report, LAW_READS, !check_has(missing, i),
                  "step %d reads %s, which nothing has written before", index,
                  check_name(plan, i));
    }
}

/* Compute steps of a phase in their order, then its collectives, which run side by side: none
 * of them reads what another of the same phase delivers. */
static inline uint64_t check_phase_reads(check_report *report, const octet_plan *plan,
                                         int phase, uint64_t ready) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->phase == phase && step->op != OCTET_OP_COLLECTIVE) {
            check_reads_of(report, plan, i, ready);
            ready |= step->writes;
        }
    }
    uint64_t after = ready;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->phase == phase && step->op == OCTET_OP_COLLECTIVE) {
            check_reads_of(report, plan, i, ready);
            after |= step->writes;
        }
    }
    return after;
}

/* Phases are counted by their compute steps: collectives part them, and may follow the last. */
static inline void check_phases(check_report *report, const octet_plan *plan) {
    bool computes[256] = {false}, collects[256] = {false};
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        *(step->op == OCTET_OP_COLLECTIVE ? &collects[step->phase] : &computes[step->phase]) =
            true;
        CHECK_LAW(report, LAW_READS, i == 0 || plan->steps[i - 1].phase <= step->phase,
                  "step %d goes back to phase %d", i, step->phase);
    }
    for (int phase = 0; phase + 1 < plan->phases; phase++) {
        /* Chunks that were scattered are put together behind everything else; each piece that
         * is gathered has a phase. */
        bool joins = plan->chunks > 1 && (plan->by_rows || phase + 2 == plan->phases);
        CHECK_LAW(report, LAW_READS, collects[phase] || joins,
                  "phase %d ends without a collective", phase);
    }
    CHECK_LAW(report, LAW_READS, plan->phases == 1 || computes[plan->phases - 1],
              "there are %d phases, the last without a step", plan->phases);
}

static inline void check_reads(check_report *report, const octet_plan *plan) {
    uint64_t ready = check_place_mask(plan, OCTET_PLACE_ARG, -1) |
                     check_slot_mask(plan->restored, plan->restored_count);
    check_phases(report, plan);
    for (int phase = 0; phase < plan->phases; phase++) {
        ready = check_phase_reads(report, plan, phase, ready);
    }
    for (int i = 0; i < plan->saved_count; i++) {
        CHECK_LAW(report, LAW_READS, check_has(ready, plan->saved[i]),
                  "slot %d saves %s, which nothing has written", i,
                  check_name(plan, plan->saved[i]));
    }
}

/* ---- writes ---------------------------------------------------------------------------- */

static inline bool check_may_write(const octet_plan *plan, const octet_plan_buffer *buffer) {
    if (buffer->place == OCTET_PLACE_ARG) {
        return plan->args[buffer->port].is_mutable != 0;
    }
    return buffer->place != OCTET_PLACE_RESTORED;
}

/* Whether the last step before it that put a piece somewhere had the chunk before, of the same
 * tensor. */
static inline bool check_joins_next(const octet_plan *plan, int index) {
    const octet_step *step = &plan->steps[index], *before = step;
    for (int i = 0; i < index; i++) {
        before = plan->steps[i].op == OCTET_OP_JOIN ? &plan->steps[i] : before;
    }
    return before->dst == step->dst && before->chunk + 1 == step->chunk;
}

/* A later chunk: other columns of the same tensor, or a product's room to copy its operands. */
static inline bool check_adds_chunk(const octet_plan *plan, int index, int buffer) {
    const octet_step *step = &plan->steps[index];
    bool later = step->chunk != OCTET_ABSENT && step->chunk > 0;
    bool copy = check_has(check_copy_mask(plan, step), buffer);
    return later && (step->op == OCTET_OP_GEMM   ? copy
                     : step->op == OCTET_OP_JOIN ? check_joins_next(plan, index)
                                                 : plan->steps[index - 1].dst == step->dst);
}

static inline void check_written_once(check_report *report, const octet_plan *plan) {
    uint64_t written = 0;
    for (int i = 0; i < plan->step_count; i++) {
        uint64_t writes = plan->steps[i].writes;
        for (int b = 0; b < plan->buffer_count; b++) {
            if (!check_has(writes, b)) {
                continue;
            }
            CHECK_LAW(report, LAW_WRITES,
                      !check_has(written, b) || check_adds_chunk(plan, i, b),
                      "step %d writes %s again", i, check_name(plan, b));
            CHECK_LAW(report, LAW_WRITES, check_may_write(plan, &plan->buffers[b]),
                      "step %d writes %s, which is not its own", i, check_name(plan, b));
        }
        written |= writes;
    }
}

/* The bytes of the memory that holds a buffer; of a restored block this plan does not know
 * them. */
static inline int64_t check_room(const octet_plan *plan, const octet_plan_buffer *buffer) {
    switch (buffer->place) {
    case OCTET_PLACE_ARG:
        return plan->args[buffer->port].bytes;
    case OCTET_PLACE_OUT:
        return plan->outs[buffer->port].bytes;
    case OCTET_PLACE_EXCHANGE:
        return plan->exchanges[buffer->port].bytes;
    case OCTET_PLACE_SAVED:
        return plan->saved_bytes;
    case OCTET_PLACE_WORK:
        return plan->workspace_bytes;
    default:
        return INT64_MAX;
    }
}

static inline bool check_in_block(const octet_plan_buffer *buffer) {
    return buffer->place == OCTET_PLACE_SAVED || buffer->place == OCTET_PLACE_RESTORED ||
           buffer->place == OCTET_PLACE_WORK;
}

static inline bool check_same_memory(const octet_plan_buffer *a, const octet_plan_buffer *b) {
    bool ported = a->place != OCTET_PLACE_SAVED && a->place != OCTET_PLACE_WORK;
    return a->place == b->place && (!ported || a->port == b->port);
}

static inline bool check_overlap(const octet_plan_buffer *a, const octet_plan_buffer *b) {
    return check_same_memory(a, b) && a->bytes > 0 && b->bytes > 0 &&
           a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Whether a buffer of the workspace is needed no more when the other is first used. */
static inline bool check_is_past(const octet_plan *plan, int past, int other) {
    int last = -1, first = plan->step_count;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool is_used = check_has(step->reads | step->writes, past) || step->scratch == past;
        bool begins = check_has(step->reads | step->writes, other) || step->scratch == other;
        last = is_used ? i : last;
        first = begins && i < first ? i : first;
    }
    return plan->buffers[past].place == OCTET_PLACE_WORK && last >= 0 && last < first;
}

static inline bool check_apart(const octet_plan *plan, int a, int b) {
    return !check_overlap(&plan->buffers[a], &plan->buffers[b]) || check_is_past(plan, a, b) ||
           check_is_past(plan, b, a);
}

static inline void check_memory(check_report *report, const octet_plan *plan) {
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *buffer = &plan->buffers[i];
        int64_t grain = check_in_block(buffer)
                            ? OCTET_ALIGN
                            : octet_dtype_bits((octet_dtype)buffer->dtype) / 8;
        CHECK_LAW(report, LAW_WRITES, buffer->offset >= 0 && buffer->offset % grain == 0,
                  "%s begins at byte %lld, not a multiple of %lld", check_name(plan, i),
                  (long long)buffer->offset, (long long)grain);
        CHECK_LAW(report, LAW_WRITES,
                  buffer->bytes >= 0 &&
                      buffer->offset <= check_room(plan, buffer) - buffer->bytes,
                  "%s leaves its memory of %lld bytes", check_name(plan, i),
                  (long long)check_room(plan, buffer));
        for (int j = 0; j < i; j++) {
            CHECK_LAW(report, LAW_WRITES, check_apart(plan, i, j),
                      "%s and %s overlap, and both are needed", check_name(plan, i),
                      check_name(plan, j));
        }
    }
}

static inline void check_writes(check_report *report, const octet_plan *plan) {
    check_written_once(report, plan);
    check_memory(report, plan);
}

/* ---- outputs --------------------------------------------------------------------------- */

static inline int64_t check_bytes_in(const octet_plan *plan, uint64_t mask) {
    int64_t bytes = 0;
    for (int i = 0; i < plan->buffer_count; i++) {
        bytes += check_has(mask, i) ? plan->buffers[i].bytes : 0;
    }
    return bytes;
}

static inline bool check_ports_alike(const octet_port *a, const octet_port *b) {
    return a->part == b->part && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->dims, b->dims, sizeof a->dims) == 0 &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0 && a->bytes == b->bytes;
}

static inline void check_output(check_report *report, const octet_plan *plan, int index) {
    const octet_port *port = &plan->outs[index];
    uint64_t mask = check_place_mask(plan, OCTET_PLACE_OUT, index) & check_all_writes(plan);
    CHECK_LAW(report, LAW_OUTPUTS, !port->is_mutable, "output %d is marked mutable", index);
    if (port->alias == OCTET_ABSENT) {
        CHECK_LAW(report, LAW_OUTPUTS, check_bytes_in(plan, mask) == port->bytes && mask != 0,
                  "of the %lld bytes of output %d, %lld are written", (long long)port->bytes,
                  index, (long long)check_bytes_in(plan, mask));
        return;
    }
    CHECK_LAW(report, LAW_OUTPUTS, mask == 0, "output %d is an alias and is written", index);
    CHECK_LAW(report, LAW_OUTPUTS, check_ports_alike(port, &plan->args[port->alias]),
              "output %d does not look like argument %d, which it is", index, port->alias);
}

/* Bytes that a QUANTIZE may leave out are in the workspace, and read by products alone that
 * have the copy. */
static inline void check_passing(check_report *report, const octet_plan *plan,
                                 const octet_step *step, octet_use use) {
    uint64_t bytes = check_use_mask(plan, step->dst, use);
    int copy = use == OCTET_USE_ROW ? step->a_copy : step->b_copy;
    for (int i = 0; i < plan->buffer_count; i++) {
        if (!check_has(bytes & step->writes, i)) {
            continue;
        }
        CHECK_LAW(report, LAW_OUTPUTS, plan->buffers[i].place == OCTET_PLACE_WORK,
                  "%s may be left out, and outlives the call", check_name(plan, i));
        for (int k = 0; k < plan->step_count; k++) {
            const octet_step *reader = &plan->steps[k];
            bool has = reader->op == OCTET_OP_GEMM &&
                       (reader->a_copy == copy || reader->b_copy == copy);
            CHECK_LAW(report, LAW_OUTPUTS, has || !check_has(reader->reads, i),
                      "step %d reads %s, which may be left out", k, check_name(plan, i));
        }
    }
}

static inline void check_all_passing(check_report *report, const octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->row_unread) {
            check_passing(report, plan, step, OCTET_USE_ROW);
        }
        if (step->col_unread) {
            check_passing(report, plan, step, OCTET_USE_COL);
        }
    }
}

/* Everything written is used: by a later step, the caller or the next plan. */
static inline void check_used(check_report *report, const octet_plan *plan) {
    uint64_t reads = check_all_reads(plan), writes = check_all_writes(plan);
    uint64_t used = reads | check_place_mask(plan, OCTET_PLACE_OUT, -1) |
                    check_place_mask(plan, OCTET_PLACE_ARG, -1) |
                    check_slot_mask(plan->saved, plan->saved_count);
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        used |= step->op == OCTET_OP_GEMM ? check_copy_mask(plan, step) : 0;
        bool sums = step->op == OCTET_OP_BIAS_GRAD || step->op == OCTET_OP_GAMMA_GRAD;
        used |= sums ? check_sums_mask(plan, step) : 0;
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        CHECK_LAW(report, LAW_OUTPUTS, check_has(used, i) || !check_has(writes, i),
                  "%s is written in vain", check_name(plan, i));
    }
}

static inline void check_exchange(check_report *report, const octet_plan *plan, int index) {
    uint64_t mask = check_place_mask(plan, OCTET_PLACE_EXCHANGE, index);
    uint64_t moved = 0;
    uint32_t phases = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        moved |=
            step->op == OCTET_OP_COLLECTIVE ? check_bit(step->from) | check_bit(step->to) : 0;
        phases |= (step->reads | step->writes) & mask ? (uint32_t)1 << step->phase : 0;
    }
    bool carried = (phases & (phases - 1)) != 0;
    CHECK_LAW(report, LAW_OUTPUTS, carried || (mask & moved) != 0,
              "no collective reads or writes exchange %d, and one phase alone uses it", index);
    CHECK_LAW(report, LAW_OUTPUTS,
              check_bytes_in(plan, mask & check_all_writes(plan)) ==
                  plan->exchanges[index].bytes,
              "exchange %d is not written whole", index);
    CHECK_LAW(report, LAW_OUTPUTS, (mask & check_all_reads(plan)) == mask,
              "exchange %d is not read whole", index);
}

static inline void check_outputs(check_report *report, const octet_plan *plan) {
    uint64_t writes = check_all_writes(plan);
    for (int i = 0; i < plan->out_count; i++) {
        check_output(report, plan, i);
    }
    for (int i = 0; i < plan->exchange_count; i++) {
        check_exchange(report, plan, i);
    }
    for (int i = 0; i < plan->arg_count; i++) {
        bool written = (check_place_mask(plan, OCTET_PLACE_ARG, i) & writes) != 0;
        CHECK_LAW(report, LAW_OUTPUTS, written || !plan->args[i].is_mutable,
                  "argument %d is marked mutable and never written", i);
    }
    check_used(report, plan);
    check_all_passing(report, plan);
}

#endif
