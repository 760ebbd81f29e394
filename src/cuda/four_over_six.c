/* four_over_six.c - NVFP4's choice per block: its amax becomes 6, or 4 where that errs less. */
#include "cuda/kernels/four_over_six.h"

#include "cuda/quantize.h"

#define SIDE 16

static const char *const names[3] = {"four_over_six_f32", "four_over_six_bf16",
                                     "four_over_six_f16"};

static oct_four_over_six_params params_of(const oct_cuda_quantize_call *call, octet_use use) {
    const oct_matrix *dst = call->dst, *source = call->source;
    const octet_quantizer *q = &dst->quantizer;
    bool row = use == OCTET_USE_ROW;
    oct_four_over_six_params p = {.source = source->parts[0]};
    p.lines = row ? source->rows : source->cols;
    p.length = row ? source->cols : source->rows;
    p.line_step = row ? source->stride : 1;
    p.element_step = row ? 1 : source->stride;
    p.codes = dst->parts[oct_data_part(use)];
    p.line_bytes = oct_line_bytes(dst, use);
    p.scales = dst->parts[oct_scale_part(use)];
    p.at = oct_scales_of(dst, use);
    p.amax = dst->parts[oct_amax_part(use)];
    p.aim = oct_nv_aim(q);
    p.square = oct_is_square(q);
    p.row_scaled = q->row_scaled;
    p.squared = q->four_over_six == OCTET_4OVER6_MSE;
    p.down = !row;
    p.squares = (uint32_t)(oct_size_ceil_div(p.lines, SIDE) * p.at.blocks);
    return p;
}

/* The scales are not many: zeroing them whole is cheaper than finding the padding. */
static octet_status quantize(const oct_cuda_quantize_call *call, octet_use use,
                             octet_error *err) {
    oct_four_over_six_params p = params_of(call, use);
    oct_cuda_launch launch = {.module = OCT_MODULE_four_over_six, .params = &p};
    launch.input = call->source->dtype;
    launch.kernel = names[oct_dtype_index(call->source->dtype)];
    launch.grid[0] = (uint32_t)oct_size_ceil_div((int64_t)p.squares * SIDE, OCT_CHOICE_THREADS);
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = OCT_CHOICE_THREADS;
    launch.params_bytes = sizeof p;
    octet_status status = oct_cuda_zero(call->on, p.scales, p.at.count, err);
    return status ? status : oct_cuda_launch_kernel(call->on, &launch, err);
}

octet_status oct_cuda_quantize_four_over_six(const oct_cuda_quantize_call *call,
                                             octet_error *err) {
    octet_status status = OCTET_OK;
    for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
        if (!status && call->dst->parts[oct_data_part((octet_use)use)]) {
            status = quantize(call, (octet_use)use, err);
        }
    }
    return status;
}
