/* delayed.c - a layer's live state, wherever it lies: delayed scaling's. */
#include "core/fail.h"
#include "core/size.h"
#include "quant/recipe.h"
#include "run/run.h"

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
    if (!status && (state->margin < -OCT_MOST_MARGIN || state->margin > OCT_MOST_MARGIN)) {
        status = oct_fail(err, OCTET_INVALID, "delayed scaling's margin is %ld; from %d to %d",
                          (long)state->margin, -OCT_MOST_MARGIN, OCT_MOST_MARGIN);
    }
    status = status ? status
                    : oct_need_zero(state->reserved, sizeof state->reserved,
                                    "octet_delayed.reserved", err);
    return status ? status : check_sizes(state, err);
}

/* exec is NULL or sound; it says where the state lies. */
static octet_status check_exec(const oct_runner **runner, const octet_exec *exec,
                               octet_error *err) {
    octet_status status =
        exec ? oct_need_size(exec->size, sizeof *exec, "octet_exec", err) : OCTET_OK;
    if (!status) {
        *runner = oct_runner_beside(exec);
    }
    return status;
}

/* A state that amaxes are recorded in, and where. */
static octet_status check_record(const oct_runner **runner, const octet_delayed *state,
                                 const float *amax, const octet_exec *exec, octet_error *err) {
    octet_status status = check_state(state, err);
    if (!status && state->slots) {
        status = oct_need(amax, "amax", err);
    }
    return status ? status : check_exec(runner, exec, err);
}

octet_status octet_delayed_record(const octet_delayed *state, const float *amax,
                                  const octet_exec *exec, octet_error *err) {
    const oct_runner *runner = NULL;
    octet_status status = check_record(&runner, state, amax, exec, err);
    return status ? status : runner->record(state, amax, exec, err);
}

octet_status octet_delayed_update(const octet_delayed *state, const float *reduced,
                                  const octet_exec *exec, octet_error *err) {
    const oct_runner *runner = NULL;
    octet_status status = check_state(state, err);
    status = status ? status : check_exec(&runner, exec, err);
    return status ? status : runner->update(state, NULL, reduced, exec, err);
}

octet_status octet_delayed_update_all(const octet_delayed *states, int count,
                                      const octet_exec *exec, octet_error *err) {
    const oct_runner *runner = NULL;
    octet_status status = check_exec(&runner, exec, err);
    for (int i = 0; i < count && !status; i++) {
        status = check_state(states ? &states[i] : NULL, err);
    }
    return status ? status : runner->update_all(states, count, exec, err);
}

octet_status octet_delayed_step(const octet_delayed *state, const float *amax,
                                const octet_exec *exec, octet_error *err) {
    const oct_runner *runner = NULL;
    octet_status status = check_record(&runner, state, amax, exec, err);
    return status ? status : runner->update(state, amax, NULL, exec, err);
}
