/* per_tensor.c - FP8 with one scale per tensor, from its own amax or given by the caller. */
#include "cuda/kernels/per_tensor.h"

#include "cuda/quantize.h"

static const char *const names[2][3][2] = {
    {{"per_tensor_f32_e4m3", "per_tensor_f32_e5m2"},
     {"per_tensor_bf16_e4m3", "per_tensor_bf16_e5m2"},
     {"per_tensor_f16_e4m3", "per_tensor_f16_e5m2"}},
    {{"per_tensor_two_f32_e4m3", "per_tensor_two_f32_e5m2"},
     {"per_tensor_two_bf16_e4m3", "per_tensor_two_bf16_e5m2"},
     {"per_tensor_two_f16_e4m3", "per_tensor_two_f16_e5m2"}},
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

static oct_cuda_launch launch_of(const oct_cuda_quantize_call *call, bool two, uint32_t tiles) {
    uint8_t dtype = call->source->dtype, format = call->dst->quantizer.format;
    oct_cuda_launch launch = {.module = OCT_MODULE_per_tensor, .grid = {tiles, 1, 1}};
    launch.kernel = names[two][oct_dtype_index(dtype)][format == OCTET_E5M2];
    launch.threads = OCT_SLAB_THREADS;
    return launch;
}

/* A matrix of nothing has a scale, too. */
static uint32_t tiles_of(oct_per_tensor_params *p, uint8_t dtype) {
    uint32_t tiles = oct_cuda_slabs(&p->q, dtype);
    return tiles ? tiles : 1;
}

octet_status oct_cuda_quantize_per_tensor(const oct_cuda_quantize_call *call,
                                          octet_error *err) {
    oct_per_tensor_params p = params_of(call);
    oct_cuda_launch launch = launch_of(call, false, tiles_of(&p, call->source->dtype));
    launch.params = &p;
    launch.params_bytes = sizeof p;
    return oct_cuda_launch_kernel(call->on, &launch, err);
}

octet_status oct_cuda_quantize_per_tensor_two(bool *done, const oct_cuda_quantize_call two[2],
                                              octet_error *err) {
    uint8_t dtype = two[0].source->dtype;
    oct_per_tensor_two p = {.of = {params_of(&two[0]), params_of(&two[1])}};
    p.split = tiles_of(&p.of[0], dtype);
    uint32_t tiles = p.split + tiles_of(&p.of[1], dtype);
    *done = tiles <= 2 * (uint32_t)oct_cuda_facts_of(two[0].on->cuda)->processors;
    if (!*done) {
        return OCTET_OK;
    }
    oct_cuda_launch launch = launch_of(&two[0], true, tiles);
    launch.params = &p;
    launch.params_bytes = sizeof p;
    return oct_cuda_launch_kernel(two[0].on, &launch, err);
}
