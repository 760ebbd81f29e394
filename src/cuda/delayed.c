/* delayed.c - delayed scaling's state on a GPU: all slots in one launch, of many states, too.
 */
#include "cuda/kernels/delayed.h"
#include "core/size.h"
#include "cuda/device.h"
#include "format/scaling.h"
#include "octet/run.h"

_Static_assert(OCT_DELAYED_MANY == OCTET_DELAYED_BATCH, "callers gather as many");

#define RECORD_THREADS 256

static oct_delayed_params params_of(const octet_delayed *state, const float *amax) {
    return (oct_delayed_params){.scale = state->scale,
                                .history = state->history,
                                .amax = amax,
                                .slots = state->slots,
                                .length = state->length,
                                .aim = oct_delayed_aim(state->format, state->margin),
                                .most_recent = state->algo == OCTET_AMAX_MOST_RECENT};
}

octet_status oct_cuda_delayed_record(const oct_cuda_on *on, const octet_delayed *state,
                                     const float *amax, octet_error *err) {
    oct_delayed_params p = params_of(state, amax);
    oct_cuda_launch launch = {
        .module = OCT_MODULE_delayed,
        .kernel = "delayed_record",
        .grid = {(uint32_t)oct_size_ceil_div(p.slots, RECORD_THREADS), 1, 1},
        .threads = RECORD_THREADS,
        .params = &p,
        .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(on, &launch, err);
}

/* A launch that updates so many states of these slots; which, its parameters say. */
static oct_cuda_launch updating(oct_delayed_params *p, uint32_t states) {
    while (p->shift < OCT_DELAYED_SHIFT && (int64_t)1 << p->shift < p->slots) {
        p->shift++;
    }
    uint32_t blocks = (uint32_t)oct_size_ceil_div(p->slots, 1 << p->shift);
    return (oct_cuda_launch){.module = OCT_MODULE_delayed,
                             .grid = {blocks, states, 1},
                             .threads = OCT_DELAYED_THREADS};
}

octet_status oct_cuda_delayed_update(const oct_cuda_on *on, const octet_delayed *state,
                                     const float *amax, const float *reduced,
                                     octet_error *err) {
    oct_delayed_params p = params_of(state, amax);
    p.reduced = reduced;
    oct_cuda_launch launch = updating(&p, 1);
    launch.kernel = "delayed_update";
    launch.params = &p;
    launch.params_bytes = sizeof p;
    return oct_cuda_launch_kernel(on, &launch, err);
}

static bool alike(const octet_delayed *a, const octet_delayed *b) {
    return a->format == b->format && a->algo == b->algo && a->margin == b->margin &&
           a->length == b->length && a->slots == b->slots;
}

/* States of one rule and one shape, as many as a launch takes. */
static octet_status update_alike(const oct_cuda_on *on, const octet_delayed *states, int count,
                                 octet_error *err) {
    if (count == 1) {
        return oct_cuda_delayed_update(on, states, NULL, NULL, err);
    }
    oct_delayed_many many = {.of = params_of(states, NULL)};
    for (int i = 0; i < count; i++) {
        many.scale[i] = states[i].scale;
        many.history[i] = states[i].history;
    }
    oct_cuda_launch launch = updating(&many.of, (uint32_t)count);
    launch.kernel = "delayed_update_many";
    launch.params = &many;
    launch.params_bytes = sizeof many;
    return oct_cuda_launch_kernel(on, &launch, err);
}

octet_status oct_cuda_delayed_update_all(const oct_cuda_on *on, const octet_delayed *states,
                                         int count, octet_error *err) {
    octet_status status = OCTET_OK;
    for (int from = 0; from < count && !status;) {
        int some = 1;
        while (some < OCT_DELAYED_MANY && from + some < count &&
               alike(&states[from], &states[from + some])) {
            some++;
        }
        status = update_alike(on, states + from, some, err);
        from += some;
    }
    return status;
}
