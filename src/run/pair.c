/* pair.c - which two steps of a phase a device does as one, where it does so. */
#include <string.h>

#include "run/run.h"

/* Two tensors are measured, or cast, as one is; not what a prologue makes. */
static bool alike(const octet_step *a, const octet_step *b) {
    bool measures = a->op == OCTET_OP_AMAX && a->dst == OCTET_ABSENT && b->dst == OCTET_ABSENT;
    return a->op == b->op && (measures || a->op == OCTET_OP_QUANTIZE) && !a->apply && !b->apply;
}

/* The first later step that is alike and independent of all before it that is not done by then;
 * bits of `taken` are steps that are done with an earlier one. */
static uint8_t partner_of(const octet_plan *plan, int index, uint64_t taken) {
    const octet_step *step = &plan->steps[index];
    uint64_t reads = step->reads, writes = step->writes;
    for (int i = index + 1; i < plan->step_count; i++) {
        const octet_step *next = &plan->steps[i];
        /* What follows a collective waits for it. */
        if (next->phase != step->phase || next->op == OCTET_OP_COLLECTIVE) {
            break;
        }
        /* Done before: with a step ahead of this one. */
        if (taken >> i & 1) {
            continue;
        }
        /* It may run now: it reads nothing that a skipped step writes, and writes nothing that
         * one reads or writes. Example: the casts of x and w before fprop. */
        if (alike(step, next) && !(next->reads & writes) &&
            !(next->writes & (reads | writes))) {
            return (uint8_t)i;
        }
        reads |= next->reads;
        writes |= next->writes;
    }
    return OCTET_ABSENT;
}

_Static_assert(OCTET_PLAN_STEPS <= 64, "steps are bits of a uint64_t");

void oct_pairs_of(uint8_t partner[OCTET_PLAN_STEPS], const octet_plan *plan, int phase) {
    uint64_t taken = 0;
    memset(partner, OCTET_ABSENT, OCTET_PLAN_STEPS);
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool may = step->op == OCTET_OP_AMAX || step->op == OCTET_OP_QUANTIZE;
        if (may && step->phase == phase && !(taken >> i & 1)) {
            partner[i] = partner_of(plan, i, taken);
            taken |= partner[i] == OCTET_ABSENT ? 0 : (uint64_t)1 << partner[i];
        }
    }
}
