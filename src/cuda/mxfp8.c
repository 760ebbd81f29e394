/* mxfp8.c - blocks of 32 with one E8M0 scale: along rows, along columns, or squares. */
#include "cuda/kernels/mxfp8.h"

#include "cuda/quantize.h"

static const char *const names[3][2] = {
    {"mxfp8_f32_e4m3", "mxfp8_f32_e5m2"},
    {"mxfp8_bf16_e4m3", "mxfp8_bf16_e5m2"},
    {"mxfp8_f16_e4m3", "mxfp8_f16_e5m2"},
};

octet_status oct_cuda_quantize_mxfp8(const oct_cuda_quantize_call *call, octet_error *err) {
    const octet_quantizer *q = &call->dst->quantizer;
    uint8_t dtype = call->source->dtype;
    oct_mxfp8_params p = {.q = oct_cuda_quantize_params(call->dst, call->source)};
    p.copies = oct_cuda_copies(call);
    oct_cuda_leave_out(&p.q, &p.copies, call);
    p.square = oct_is_square(q);
    oct_cuda_launch launch = {.module = OCT_MODULE_mxfp8, .params = &p};
    launch.kernel = names[oct_dtype_index(dtype)][q->format == OCTET_E5M2];
    launch.grid[0] = oct_cuda_tiles(p.q.rows, p.q.cols);
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = oct_cuda_tile_threads(dtype);
    launch.params_bytes = sizeof p;
    return oct_cuda_launch_kernel(call->on, &launch, err);
}
