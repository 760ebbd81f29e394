/* block.c - FP8 in blocks of 128, rows, columns or squares, with one fp32 scale each. */
#include "cuda/kernels/block.h"

#include "cuda/quantize.h"

static const char *const names[3][2] = {
    {"block_f32_e4m3", "block_f32_e5m2"},
    {"block_bf16_e4m3", "block_bf16_e5m2"},
    {"block_f16_e4m3", "block_f16_e5m2"},
};

static oct_block_params params_of(const oct_cuda_quantize_call *call) {
    const octet_quantizer *q = &call->dst->quantizer;
    oct_block_params p = {.q = oct_cuda_quantize_params(call->dst, call->source)};
    p.rule = (oct_scale_rule){oct_largest(q->format), q->epsilon,
                              oct_largest(call->source->dtype), q->pow2};
    p.square = oct_is_square(q);
    p.q.sums = call->live->sums;
    p.q.ahead = oct_cuda_ahead(call);
    return p;
}

static octet_status cast_applied(const oct_cuda_quantize_call *call, octet_error *err) {
    static const char *const applied[3][2] = {
        {"block_applied_f32_e4m3", "block_applied_f32_e5m2"},
        {"block_applied_bf16_e4m3", "block_applied_bf16_e5m2"},
        {"block_applied_f16_e4m3", "block_applied_f16_e5m2"},
    };
    oct_block_applied p = {params_of(call), oct_cuda_applied_of(call->live->apply)};
    oct_cuda_launch launch = {.module = OCT_MODULE_block_applied,
                              .grid = {0, 1, 1},
                              .threads = OCT_SLAB_THREADS,
                              .params = &p,
                              .params_bytes = sizeof p};
    p.of.q.ahead = 0; /* its source is not read */
    launch.grid[0] = oct_cuda_slabs(&p.of.q, call->source->dtype);
    return oct_cuda_launch_fp8(call, &launch, applied, err);
}

octet_status oct_cuda_quantize_block(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err) {
    if (calls->live->apply) {
        return cast_applied(calls, err);
    }
    uint8_t dtype = calls->source->dtype;
    oct_block_two p = {.of = {params_of(&calls[0])}};
    oct_cuda_launch launch = {.module = OCT_MODULE_block,
                              .grid = {0, 1, 1},
                              .threads = OCT_SLAB_THREADS,
                              .params = &p,
                              .params_bytes = sizeof p};
    p.split = launch.grid[0] = oct_cuda_slabs(&p.of[0].q, dtype);
    if (count > 1) {
        p.of[1] = params_of(&calls[1]);
        launch.grid[0] += oct_cuda_slabs(&p.of[1].q, dtype);
    }
    return oct_cuda_launch_fp8(calls, &launch, names, err);
}
