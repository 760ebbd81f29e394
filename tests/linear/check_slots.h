/* check_slots.h - what one plan saves is what the next one finds and reads, byte for byte. */
#ifndef OCTET_CHECK_SLOTS_H
#define OCTET_CHECK_SLOTS_H

#include "check_flow.h"

/* A plan and the one that comes after it in the chain. */
typedef struct check_link {
    const octet_plan *before, *after;
} check_link;

static inline bool check_same_buffer(const octet_plan_buffer *a, const octet_plan_buffer *b) {
    return a->part == b->part && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->dims, b->dims, sizeof a->dims) == 0 &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0 && a->bytes == b->bytes;
}

/* Where the next plan must find a slot. */
static inline bool check_same_place(const check_link *link, const octet_plan_buffer *slot,
                                    const octet_plan_buffer *found) {
    bool stored = slot->place == OCTET_PLACE_SAVED || slot->place == OCTET_PLACE_RESTORED;
    int block = slot->place == OCTET_PLACE_RESTORED ? slot->port : link->before->kind;
    if (stored) {
        return found->place == OCTET_PLACE_RESTORED && found->port == block &&
               found->offset == slot->offset;
    }
    if (found->place != OCTET_PLACE_ARG || found->offset != slot->offset) {
        return false;
    }
    const octet_port *had = slot->place == OCTET_PLACE_ARG ? &link->before->args[slot->port]
                                                           : &link->before->outs[slot->port];
    const octet_port *has = &link->after->args[found->port];
    return had->name == has->name && check_ports_alike(had, has);
}

static inline void check_slot(check_report *report, const check_link *link, int index) {
    int was = link->before->saved[index], is = link->after->restored[index];
    const octet_plan_buffer *slot = &link->before->buffers[was];
    const octet_plan_buffer *found = &link->after->buffers[is];
    const octet_plan_tensor *from = check_tensor_of(link->before, was);
    const octet_plan_tensor *to = check_tensor_of(link->after, is);
    CHECK_LAW(report, LAW_SLOTS,
              check_same_buffer(slot, found) && from->name == to->name &&
                  from->dtype == to->dtype,
              "slot %d was %s and is taken for %s", index, check_name(link->before, was),
              check_name(link->after, is));
    CHECK_LAW(report, LAW_SLOTS,
              check_same_code(&from->quantizer, &to->quantizer, slot->part) &&
                  check_same_recipe(&from->quantizer, &to->quantizer),
              "slot %d, %s, is read by another quantizer", index,
              check_name(link->before, was));
    CHECK_LAW(report, LAW_SLOTS, check_same_place(link, slot, found),
              "slot %d, %s, is looked for where it is not", index,
              check_name(link->before, was));
}

/* Arguments of its own, besides the slots of the plan before. */
static inline bool check_is_own(const octet_plan *plan, const octet_port *port) {
    switch (port->name) {
    case OCTET_NAME_GRAD_OUTPUT:
    case OCTET_NAME_BIAS_MAIN_GRAD:
        return plan->kind == OCTET_PLAN_LINEAR_BACKWARD;
    case OCTET_NAME_MAIN_GRAD:
    case OCTET_NAME_SCALE:
    case OCTET_NAME_AMAX:
    case OCTET_NAME_SEED:
        return true;
    default:
        return false;
    }
}

/* The next plan takes nothing that was not saved for it, and nothing was saved in vain. */
static inline void check_takes(check_report *report, const octet_plan *plan) {
    uint64_t restored = check_slot_mask(plan->restored, plan->restored_count);
    uint64_t used = check_all_reads(plan) | check_slot_mask(plan->saved, plan->saved_count);
    for (int i = 0; i < plan->buffer_count; i++) {
        CHECK_LAW(report, LAW_SLOTS,
                  plan->buffers[i].place != OCTET_PLACE_RESTORED || check_has(restored, i),
                  "%s is no slot", check_name(plan, i));
        CHECK_LAW(report, LAW_SLOTS, !check_has(restored & ~used, i),
                  "%s is restored and never read", check_name(plan, i));
    }
    for (int i = 0; i < plan->arg_count; i++) {
        uint64_t mask = check_place_mask(plan, OCTET_PLACE_ARG, i);
        CHECK_LAW(report, LAW_SLOTS,
                  (mask & restored) != 0 || check_is_own(plan, &plan->args[i]),
                  "argument %d is neither restored nor its own", i);
    }
}

static inline void check_distinct(check_report *report, const octet_plan *plan,
                                  const uint8_t *slots, int count) {
    uint64_t seen = 0;
    for (int i = 0; i < count; i++) {
        CHECK_LAW(report, LAW_SLOTS, !check_has(seen, slots[i]), "slot %d, %s, comes twice", i,
                  check_name(plan, slots[i]));
        seen |= check_bit(slots[i]);
    }
}

/* Between forward and backward, or backward and wgrad. */
static inline void check_slots(check_report *report, const octet_plan *before,
                               const octet_plan *after) {
    check_link link = {before, after};
    bool same = CHECK_LAW(report, LAW_SLOTS, before->saved_count == after->restored_count,
                          "%d slots are saved and %d taken", before->saved_count,
                          after->restored_count);
    for (int i = 0; same && i < before->saved_count; i++) {
        check_slot(report, &link, i);
    }
    check_distinct(report, before, before->saved, before->saved_count);
    check_distinct(report, after, after->restored, after->restored_count);
    check_takes(report, after);
}

/* ---- the slots of one plan ------------------------------------------------------------- */

/* Stored slots fill the block that is saved; the others are counted as aliases. */
static inline void check_saved(check_report *report, const octet_plan *plan) {
    uint64_t slots = check_slot_mask(plan->saved, plan->saved_count);
    int64_t stored = 0, aliased = 0;
    for (int i = 0; i < plan->saved_count; i++) {
        const octet_plan_buffer *buffer = &plan->buffers[plan->saved[i]];
        bool own = buffer->place == OCTET_PLACE_SAVED;
        CHECK_LAW(report, LAW_SAVED,
                  buffer->place != OCTET_PLACE_WORK && buffer->place != OCTET_PLACE_EXCHANGE,
                  "slot %d, %s, does not outlive the call", i,
                  check_name(plan, plan->saved[i]));
        stored += own ? check_align(buffer->bytes) : 0;
        aliased += own ? 0 : buffer->bytes;
    }
    uint64_t block = check_place_mask(plan, OCTET_PLACE_SAVED, -1);
    for (int i = 0; i < plan->buffer_count; i++) {
        CHECK_LAW(report, LAW_SAVED, !check_has(block & ~slots, i), "%s is stored and no slot",
                  check_name(plan, i));
        CHECK_LAW(report, LAW_SAVED,
                  !check_has(block, i) || check_has(check_all_writes(plan), i),
                  "%s is stored and never written", check_name(plan, i));
    }
    CHECK_LAW(report, LAW_SAVED, plan->saved_bytes == stored,
              "saved_bytes is %lld; the stored slots take %lld", (long long)plan->saved_bytes,
              (long long)stored);
    CHECK_LAW(report, LAW_SAVED, plan->aliased_bytes == aliased,
              "aliased_bytes is %lld; the aliased slots have %lld",
              (long long)plan->aliased_bytes, (long long)aliased);
}

#endif
