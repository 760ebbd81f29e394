/* delayed.c - delayed scaling's state on a GPU: all slots in one launch. */
#include "cuda/kernels/delayed.h"
#include "core/size.h"
#include "cuda/device.h"
#include "format/scaling.h"

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

octet_status oct_cuda_delayed_update(const oct_cuda_on *on, const octet_delayed *state,
                                     const float *amax, const float *reduced,
                                     octet_error *err) {
    oct_delayed_params p = params_of(state, amax);
    p.reduced = reduced;
    while (p.shift < OCT_DELAYED_SHIFT && (int64_t)1 << p.shift < p.slots) {
        p.shift++;
    }
    oct_cuda_launch launch = {
        .module = OCT_MODULE_delayed,
        .kernel = "delayed_update",
        .grid = {(uint32_t)oct_size_ceil_div(p.slots, 1 << p.shift), 1, 1},
        .threads = OCT_DELAYED_THREADS,
        .params = &p,
        .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(on, &launch, err);
}

octet_status oct_cuda_advance(const oct_cuda_on *on, int64_t *random, octet_error *err) {
    oct_advance_params p = {random, 1};
    oct_cuda_launch launch = {.module = OCT_MODULE_delayed,
                              .kernel = "random_advance",
                              .grid = {1, 1, 1},
                              .threads = 1,
                              .params = &p,
                              .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(on, &launch, err);
}
