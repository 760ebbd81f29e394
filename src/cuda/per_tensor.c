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
    p.inverse = call->dst->parts[OCTET_PART_SCALE];
    if (q->scheme == OCTET_FP8_DELAYED) {
        p.scale = call->live->scale;
        p.new_amax = call->live->new_amax;
    } else {
        p.amax = call->live->amax;
        p.q.backward = 1;
    }
    return p;
}

octet_status oct_cuda_quantize_per_tensor(const oct_cuda_quantize_call *call,
                                          octet_error *err) {
    oct_per_tensor_params p = params_of(call);
    uint8_t dtype = call->source->dtype;
    uint32_t tiles = oct_cuda_slabs(&p.q, dtype);
    oct_cuda_launch launch = {.module = OCT_MODULE_per_tensor, .params = &p};
    launch.kernel = names[oct_dtype_index(dtype)][call->dst->quantizer.format == OCTET_E5M2];
    launch.grid[0] = tiles ? tiles : 1; /* a matrix of nothing has a scale, too */
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = OCT_SLAB_THREADS;
    launch.params_bytes = sizeof p;
    return oct_cuda_launch_kernel(call->on, &launch, err);
}
