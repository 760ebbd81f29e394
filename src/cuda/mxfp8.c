/* mxfp8.c - blocks of 32 with one E8M0 scale: along rows, along columns, or squares. */
#include "cuda/kernels/mxfp8.h"

#include "cuda/quantize.h"

static const char *const names[3][2] = {
    {"mxfp8_f32_e4m3", "mxfp8_f32_e5m2"},
    {"mxfp8_bf16_e4m3", "mxfp8_bf16_e5m2"},
    {"mxfp8_f16_e4m3", "mxfp8_f16_e5m2"},
};

static oct_mxfp8_params params_of(const oct_cuda_quantize_call *call) {
    oct_mxfp8_params p = {.q = oct_cuda_quantize_params(call->dst, call->source)};
    p.q.sums = call->live->sums;
    p.copies = oct_cuda_copies(call);
    oct_cuda_leave_out(&p.q, &p.copies, call);
    p.q.ahead = p.copies.row || p.copies.col ? 0 : oct_cuda_ahead(call);
    p.square = oct_is_square(&call->dst->quantizer);
    return p;
}

octet_status oct_cuda_quantize_mxfp8(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err) {
    uint8_t dtype = calls->source->dtype;
    oct_mxfp8_two p = {.of = {params_of(&calls[0])}};
    oct_cuda_launch launch = {.module = OCT_MODULE_mxfp8,
                              .grid = {0, 1, 1},
                              .threads = oct_cuda_tile_threads(dtype),
                              .params = &p,
                              .params_bytes = sizeof p};
    p.split = launch.grid[0] = oct_cuda_tiles(p.of[0].q.rows, p.of[0].q.cols);
    if (count > 1) {
        p.of[1] = params_of(&calls[1]);
        launch.grid[0] += oct_cuda_tiles(p.of[1].q.rows, p.of[1].q.cols);
    }
    return oct_cuda_launch_fp8(calls, &launch, names, err);
}
