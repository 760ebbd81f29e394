/* delayed.c - delayed scaling's state: amaxes recorded, the history rolled, scales moved. */
#include <float.h>

#include "octet.h"

#include "core/fail.h"
#include "core/size.h"
#include "format/scaling.h"

/* The larger of two amaxes; a NaN is no amax. */
static float larger(float a, float b) {
    return a != a ? b : b > a ? b : a;
}

static octet_status check_sizes(const octet_delayed *state, octet_error *err) {
    int64_t entries;
    if (state->slots < 0 || state->length < 1 ||
        !oct_size_mul(&entries, state->slots, state->length)) {
        return oct_fail(err, OCTET_INVALID,
                        "delayed scaling's history has %lu rows of %lld slots; it has at least "
                        "one row, and slots are not negative",
                        (unsigned long)state->length, (long long)state->slots);
    }
    if (state->slots && (!state->scale || !state->history)) {
        return oct_fail(err, OCTET_INVALID, "delayed scaling's %s is NULL but has %lld slots",
                        state->scale ? "history" : "scale", (long long)state->slots);
    }
    return OCTET_OK;
}

static octet_status check_state(const octet_delayed *state, octet_error *err) {
    octet_status status = oct_need(state, "state", err);
    status = status ? status : oct_need_size(state->size, sizeof *state, "octet_delayed", err);
    if (!status && state->format != OCTET_E4M3 && state->format != OCTET_E5M2) {
        status = oct_fail(err, OCTET_INVALID, "delayed scaling has format %s; e4m3 or e5m2",
                          octet_dtype_name((octet_dtype)state->format));
    }
    if (!status && state->algo != OCTET_AMAX_MAX && state->algo != OCTET_AMAX_MOST_RECENT) {
        status = oct_fail(err, OCTET_INVALID,
                          "delayed scaling has algo %u; the library knows max and most_recent, "
                          "others are the caller's to compute",
                          state->algo);
    }
    return status ? status : check_sizes(state, err);
}

octet_status octet_delayed_record(const octet_delayed *state, const float *amax,
                                  octet_error *err) {
    octet_status status = check_state(state, err);
    if (!status && state->slots) {
        status = oct_need(amax, "amax", err);
    }
    for (int64_t slot = 0; !status && slot < state->slots; slot++) {
        state->history[slot] = larger(state->history[slot], amax[slot]);
    }
    return status;
}

/* The largest code over 2^margin, rounded once. Beyond 400 halvings nothing is left of it. */
static float aim(const octet_delayed *state) {
    double value = state->format == OCTET_E4M3 ? 448.0 : 57344.0;
    int32_t margin = state->margin > 400 ? 400 : state->margin < -400 ? -400 : state->margin;
    for (; margin > 0; margin--) {
        value /= 2;
    }
    for (; margin < 0; margin++) {
        value *= 2;
    }
    return (float)value;
}

/* Keeps the old scale unless the amax is positive and finite. */
static float move_scale(float scale, float amax, float aim) {
    if (!(amax > 0) || !oct_is_finite(amax)) {
        return scale;
    }
    float moved = aim / amax;
    return oct_is_finite(moved) ? moved : FLT_MAX;
}

/* One slot: row 0 is the amax since the last roll, rows 1 to length - 1 are older, oldest
 * first. */
static void update_slot(const octet_delayed *state, int64_t slot, float last, float aim) {
    float *history = state->history + slot;
    int64_t slots = state->slots, rows = state->length;
    float amax = last;
    for (int64_t row = 1; row < rows; row++) {
        if (state->algo == OCTET_AMAX_MAX) {
            amax = larger(amax, history[row * slots]);
        }
        history[row * slots] = row + 1 < rows ? history[(row + 1) * slots] : last;
    }
    history[0] = 0;
    state->scale[slot] = move_scale(state->scale[slot], amax, aim);
}

octet_status octet_delayed_update(const octet_delayed *state, const float *reduced,
                                  octet_error *err) {
    octet_status status = check_state(state, err);
    float target = status ? 0 : aim(state);
    for (int64_t slot = 0; !status && slot < state->slots; slot++) {
        bool replaced = reduced && reduced[slot] != 0;
        float last = replaced ? reduced[slot] : state->history[slot];
        if (last != 0) {
            update_slot(state, slot, last, target);
        }
    }
    return status;
}
