/* per_tensor.c - FP8 with one scale per tensor, from its own amax or given by the caller. */
#include "cuda/kernels/per_tensor.h"

#include "cuda/quantize.h"

static const char *const names[3][2] = {
    {"per_tensor_f32_e4m3", "per_tensor_f32_e5m2"},
    {"per_tensor_bf16_e4m3", "per_tensor_bf16_e5m2"},
    {"per_tensor_f16_e4m3", "per_tensor_f16_e5m2"},
};

static oct_per_tensor_params params_of(const oct_cuda_quantize_call *call) {
    const octet_quantizer *q = &call->dst->quantizer;
    oct_per_tensor_params p = {.q = oct_cuda_quantize_params(call->dst, call->source)};
    p.rule = (oct_scale_rule){oct_largest(q->format), q->epsilon, FLT_MAX, q->pow2};
    p.q.sums = call->live->sums;
    p.inverse = call->dst->parts[OCTET_PART_SCALE];
    if (oct_scheme_of(q)->given_scale) {
        p.scale = call->live->scale;
        p.new_amax = call->live->new_amax;
    } else {
        *(call->live->amaxes > 1 ? &p.shares : &p.amax) = call->live->amax;
        p.q.backward = 1;
    }
    return p;
}

/* A matrix of nothing has a scale, too. */
static uint32_t tiles_of(oct_per_tensor_params *p, uint8_t dtype) {
    uint32_t tiles = oct_cuda_slabs(&p->q, dtype);
    return tiles ? tiles : 1;
}

static octet_status cast_applied(const oct_cuda_quantize_call *call, octet_error *err) {
    static const char *const applied[3][2] = {
        {"per_tensor_applied_f32_e4m3", "per_tensor_applied_f32_e5m2"},
        {"per_tensor_applied_bf16_e4m3", "per_tensor_applied_bf16_e5m2"},
        {"per_tensor_applied_f16_e4m3", "per_tensor_applied_f16_e5m2"},
    };
    oct_per_tensor_applied p = {params_of(call), oct_cuda_applied_of(call->live->apply)};
    oct_cuda_launch launch = {.module = OCT_MODULE_per_tensor_applied,
                              .grid = {0, 1, 1},
                              .threads = OCT_SLAB_THREADS,
                              .params = &p,
                              .params_bytes = sizeof p};
    launch.grid[0] = tiles_of(&p.of, call->source->dtype);
    return oct_cuda_launch_fp8(call, &launch, applied, err);
}

octet_status oct_cuda_quantize_per_tensor(const oct_cuda_quantize_call *calls, int count,
                                          octet_error *err) {
    if (calls->live->apply) {
        return cast_applied(calls, err);
    }
    uint8_t dtype = calls->source->dtype;
    oct_per_tensor_two p = {.of = {params_of(&calls[0])}};
    oct_cuda_launch launch = {.module = OCT_MODULE_per_tensor,
                              .grid = {0, 1, 1},
                              .threads = OCT_SLAB_THREADS,
                              .params = &p,
                              .params_bytes = sizeof p};
    p.split = launch.grid[0] = tiles_of(&p.of[0], dtype);
    if (count > 1) {
        p.of[1] = params_of(&calls[1]);
        launch.grid[0] += tiles_of(&p.of[1], dtype);
    }
    p.tiles = launch.grid[0];
    /* True if an amax step has read the source before. A prologue leaves an amax, too, but the
     * source that it writes may not be complete yet. */
    p.measured = calls[0].live->measured && (count == 1 || calls[1].live->measured);
    oct_cuda_pipe(&launch, calls->on->cuda);
    return oct_cuda_launch_fp8(calls, &launch, names, err);
}
