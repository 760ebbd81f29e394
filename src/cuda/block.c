/* block.c - FP8 in blocks of 128, rows, columns or squares, with one fp32 scale each. */
#include "cuda/kernels/block.h"

#include "cuda/quantize.h"

static const char *const names[2][3][2] = {
    {{"block_lines_f32_e4m3", "block_lines_f32_e5m2"},
     {"block_lines_bf16_e4m3", "block_lines_bf16_e5m2"},
     {"block_lines_f16_e4m3", "block_lines_f16_e5m2"}},
    {{"block_square_f32_e4m3", "block_square_f32_e5m2"},
     {"block_square_bf16_e4m3", "block_square_bf16_e5m2"},
     {"block_square_f16_e4m3", "block_square_f16_e5m2"}},
};

octet_status oct_cuda_quantize_block(const oct_cuda_quantize_call *call, octet_error *err) {
    const octet_quantizer *q = &call->dst->quantizer;
    uint8_t dtype = call->source->dtype;
    oct_block_params p = {.q = oct_cuda_quantize_params(call->dst, call->source)};
    p.rule = (oct_scale_rule){oct_largest(q->format), q->epsilon, oct_largest(dtype), q->pow2};
    oct_cuda_launch launch = {.module = OCT_MODULE_block, .params = &p};
    launch.kernel = names[oct_is_square(q)][oct_dtype_index(dtype)][q->format == OCTET_E5M2];
    launch.grid[0] = oct_cuda_slabs(&p.q, dtype);
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = OCT_SLAB_THREADS;
    launch.params_bytes = sizeof p;
    return oct_cuda_launch_kernel(call->on, &launch, err);
}
