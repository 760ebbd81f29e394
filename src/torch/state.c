/* state.c - delayed scaling's state as the ops take it: one tensor a direction. */
#include "torch/state.h"

bool oct_is_state(const octet_port *port) {
    return port->name == OCTET_NAME_AMAX && port->is_mutable;
}

octet_port oct_written_output(const octet_port *port) {
    octet_port written = *port;
    written.is_mutable = 1;
    written.name = written.name == OCTET_NAME_AMAX ? OCTET_NAME_OUTPUT : written.name;
    return written;
}

/* The argument that takes the state; -1: there is none. */
static int state_of(const octet_plan *plan) {
    for (int i = 0; i < plan->arg_count; i++) {
        if (oct_is_state(&plan->args[i])) {
            return i;
        }
    }
    return -1;
}

bool oct_is_in_state(const octet_plan *plan, int argument) {
    return plan->args[argument].name == OCTET_NAME_SCALE && state_of(plan) >= 0;
}

void oct_put_argument(octet_memory *memory, const octet_plan *plan, int argument,
                      const void *data) {
    if (!oct_is_state(&plan->args[argument])) {
        memory->args[argument] = data;
        return;
    }
    memory->args[argument] = (const char *)data + OCT_STATE_AMAXES * plan->args[argument].bytes;
    for (int i = 0; i < plan->arg_count; i++) {
        if (plan->args[i].name == OCTET_NAME_SCALE) {
            memory->args[i] = data;
        }
    }
}

/* ---- phases ------------------------------------------------------------------------------ */

static bool writes_state(const octet_regions *regions, const octet_plan *plan) {
    bool found = false;
    for (int i = 0; i < regions->count; i++) {
        const octet_region *r = &regions->at[i];
        found = found || (r->place == OCTET_PLACE_ARG && oct_is_state(&plan->args[r->port]));
    }
    return found;
}

void oct_phase_tensors(octet_regions *out, const octet_plan *plan, int phase) {
    octet_phase_regions(out, plan, phase);
    int count = 0;
    bool writes = writes_state(out, plan);
    for (int i = 0; i < out->count; i++) {
        const octet_region *r = &out->at[i];
        bool inside = r->place == OCTET_PLACE_ARG && oct_is_in_state(plan, r->port);
        if (!(writes && inside)) {
            out->at[count++] = *r;
        }
    }
    out->count = count;
}

/* ---- signatures -------------------------------------------------------------------------- */

/* Scales and the state that they lie in, by their indices in a list; -1: there is none. */
typedef struct joined {
    int scale, state;
} joined;

static joined find_arguments(const octet_signature *s) {
    joined found = {-1, -1};
    for (int i = 0; i < s->arg_count; i++) {
        const octet_call_tensor *g = &s->args[i];
        found.scale = g->name == OCTET_NAME_SCALE ? i : found.scale;
        found.state = g->name == OCTET_NAME_AMAX && g->is_mutable ? i : found.state;
    }
    return found;
}

static joined find_lent(const octet_signature *s) {
    joined found = {-1, -1};
    for (int i = 0; i < s->lent_count; i++) {
        found.scale = s->lent[i] == OCTET_LENT_SCALE ? i : found.scale;
        found.state = s->lent[i] == OCTET_LENT_HISTORY ? i : found.state;
    }
    return found;
}

/* An index where the scales are no longer counted. */
static uint8_t index_of(joined j, uint8_t index) {
    return index != OCTET_ABSENT && index > j.scale ? (uint8_t)(index - 1) : index;
}

static void join_arguments(octet_signature *s, joined j) {
    for (int i = j.scale; i + 1 < s->arg_count; i++) {
        s->args[i] = s->args[i + 1];
    }
    s->arg_count--;
    for (int i = 0; i < s->saved_count; i++) {
        if (s->saved[i].is_argument) {
            s->saved[i].index = index_of(j, s->saved[i].index);
        }
    }
}

void oct_join_state(octet_signature *s) {
    joined arguments = find_arguments(s), lent = find_lent(s);
    if (arguments.scale >= 0 && arguments.state >= 0) {
        join_arguments(s, arguments);
    }
    if (lent.scale >= 0 && lent.state >= 0) {
        for (int i = lent.scale; i + 1 < s->lent_count; i++) {
            s->lent[i] = s->lent[i + 1];
        }
        s->lent_count--;
    }
}

/* Indices of a list without the scales; gives how many are left. */
static uint8_t join_indices(uint8_t *at, int count, joined j) {
    uint8_t kept = 0;
    for (int i = 0; i < count; i++) {
        if (at[i] != j.scale) {
            at[kept++] = index_of(j, at[i]);
        }
    }
    return kept;
}

void oct_join_state_of_backward(octet_backward_signature *s, const octet_signature *forward) {
    joined j = find_lent(forward);
    if (j.scale < 0 || j.state < 0) {
        return;
    }
    int first = 1 + forward->saved_count + forward->saves_arena;
    j = (joined){first + j.scale, first + j.state};
    s->read_count = join_indices(s->read, s->read_count, j);
    s->written_count = join_indices(s->written, s->written_count, j);
    s->later_count = join_indices(s->later, s->later_count, j);
}
