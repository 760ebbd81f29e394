/* delayed.c - delayed scaling's state: amaxes recorded, the history rolled, scales updated. */
#include "cpu/cpu.h"
#include "format/scaling.h"

void oct_cpu_delayed_record(const octet_delayed *state, const float *amax) {
    for (int64_t slot = 0; slot < state->slots; slot++) {
        state->history[slot] = oct_delayed_larger(state->history[slot], amax[slot]);
    }
}

/* One slot: row 0 is the amax since the last roll, rows 1 to length - 1 are older, oldest
 * first. */
static void update_slot(const octet_delayed *state, int64_t slot, float last, float aim) {
    float *history = state->history + slot;
    int64_t slots = state->slots, rows = state->length;
    float amax = last;
    for (int64_t row = 1; row < rows; row++) {
        if (state->algo == OCTET_AMAX_MAX) {
            amax = oct_delayed_larger(amax, history[row * slots]);
        }
        history[row * slots] = row + 1 < rows ? history[(row + 1) * slots] : last;
    }
    history[0] = 0;
    state->scale[slot] = oct_delayed_scale(state->scale[slot], amax, aim);
}

void oct_cpu_delayed_update(const octet_delayed *state, const float *reduced) {
    float aim = oct_delayed_aim(state->format, state->margin);
    for (int64_t slot = 0; slot < state->slots; slot++) {
        bool replaced = reduced && reduced[slot] != 0;
        float last = replaced ? reduced[slot] : state->history[slot];
        if (last != 0) {
            update_slot(state, slot, last, aim);
        }
    }
}
