/* phases.c - what a phase of a plan reads and writes, and the collectives after it. */
#include <string.h>

#include "octet.h"

/* The phases that run before a collective: up to the last step that writes what it sends. An
 * input's bytes that forward saved are there from the start, so their gather runs beside the
 * product of the first phase. */
static uint8_t begin_of(const octet_plan *plan, int collective) {
    uint64_t sent = (uint64_t)1 << plan->steps[collective].from;
    uint8_t begin = 0;
    for (int i = 0; i < collective; i++) {
        if (plan->steps[i].writes & sent) {
            begin = (uint8_t)(plan->steps[i].phase + 1);
        }
    }
    return begin;
}

/* The first phase that reads what a collective brings. No phase of its own plan reads an
 * input's gradient, so its sum over ranks runs beside the weight's product. */
static uint8_t end_of(const octet_plan *plan, int collective) {
    uint64_t brought = (uint64_t)1 << plan->steps[collective].to;
    for (int i = collective + 1; i < plan->step_count; i++) {
        if (plan->steps[i].reads & brought) {
            return plan->steps[i].phase;
        }
    }
    return plan->phases;
}

/* Where a buffer lies: its place and port, and in an arena which of its buffers it is. */
typedef struct spot {
    uint8_t place, port, item;
} spot;

static uint8_t item_of(const octet_plan *plan, uint8_t buffer) {
    uint8_t buffers[OCTET_PLAN_BUFFERS];
    int count = octet_arena_buffers(buffers, plan), item = 0;
    while (item < count && buffers[item] != buffer) {
        item++;
    }
    return (uint8_t)item;
}

/* Finds a buffer that a collective sends or receives. One that this plan restored lies in an
 * earlier plan's arena, and that plan may have restored it, too: so this goes back to the plan
 * that made it. Example: a later wgrad gathers x, which backward passed on and forward saved.
 */
static spot spot_of(const octet_chain *chain, int at, uint8_t buffer) {
    const octet_plan *plan = &chain->plans[at];
    const octet_plan_buffer *b = &plan->buffers[buffer];
    spot found = {b->place, b->port, 0};
    while (b->place == OCTET_PLACE_RESTORED && at > 0) {
        int saved = 0;
        while (saved < plan->restored_count && plan->restored[saved] != buffer) {
            saved++;
        }
        plan = &chain->plans[--at];
        buffer = plan->saved[saved];
        b = &plan->buffers[buffer];
    }
    if (b->place == OCTET_PLACE_SAVED) {
        found.item = item_of(plan, buffer);
    }
    return found;
}

int octet_collectives_of(octet_collective_call out[OCTET_PLAN_EXCHANGES],
                         const octet_chain *chain, int at) {
    const octet_plan *plan = &chain->plans[at];
    int count = 0;
    for (int i = 0; i < plan->step_count && count < OCTET_PLAN_EXCHANGES; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_COLLECTIVE) {
            spot from = spot_of(chain, at, step->from), to = spot_of(chain, at, step->to);
            out[count++] = (octet_collective_call){.kind = step->collective,
                                                   .phase = step->phase,
                                                   .from_place = from.place,
                                                   .from_port = from.port,
                                                   .to_place = to.place,
                                                   .to_port = to.port,
                                                   .from_item = from.item,
                                                   .to_item = to.item,
                                                   .begin = begin_of(plan, i),
                                                   .end = end_of(plan, i),
                                                   .chunk = step->chunk,
                                                   .chunks = plan->chunks};
        }
    }
    return count;
}

/* Adds a buffer's region, once; it is written if one of its buffers is. All of an arena is one
 * region: steps may touch any part of it. */
static void add_region(octet_regions *out, const octet_plan_buffer *b, bool is_written) {
    uint8_t port = b->place == OCTET_PLACE_SAVED ? 0 : b->port;
    int at = 0;
    while (at < out->count && (out->at[at].place != b->place || out->at[at].port != port)) {
        at++;
    }
    if (at == out->count && at < OCTET_REGIONS) {
        out->at[out->count++] = (octet_region){.place = b->place, .port = port};
    }
    out->at[at].is_written = out->at[at].is_written || is_written;
}

void octet_phase_regions(octet_regions *out, const octet_plan *plan, int phase) {
    uint64_t reads = 0, writes = 0;
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->phase == phase && step->op != OCTET_OP_COLLECTIVE) {
            reads |= step->reads;
            writes |= step->writes;
        }
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        bool used = (reads | writes) >> i & 1;
        if (used && plan->buffers[i].place != OCTET_PLACE_WORK) {
            add_region(out, &plan->buffers[i], writes >> i & 1);
        }
    }
}
