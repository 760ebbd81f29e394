/* mxfp4.c - blocks of 32 codes of E2M1 with one E8M0 scale: along rows, columns, or squares. */
#include "cuda/kernels/mxfp4.h"

#include "cuda/quantize.h"

/* To nearest, and stochastic. */
static const char *const names[2][3] = {{"mxfp4_f32", "mxfp4_bf16", "mxfp4_f16"},
                                        {"mxfp4_sr_f32", "mxfp4_sr_bf16", "mxfp4_sr_f16"}};

static oct_mxfp4_params params_of(const oct_cuda_quantize_call *call) {
    const octet_quantizer *q = &call->dst->quantizer;
    oct_mxfp4_params p = {.q = oct_cuda_quantize_params(call->dst, call->source)};
    p.q.sums = call->live->sums;
    p.copies = oct_cuda_copies(call);
    oct_cuda_leave_out(&p.q, &p.copies, call);
    p.q.ahead = p.copies.row || p.copies.col ? 0 : oct_cuda_ahead(call);
    p.seed = q->stochastic ? call->live->seed : NULL;
    p.stream = call->live->stream;
    p.row_bytes = oct_line_bytes(call->dst, OCTET_USE_ROW);
    p.col_bytes = oct_line_bytes(call->dst, OCTET_USE_COL);
    p.square = oct_is_square(q);
    p.hadamard = q->hadamard != OCTET_HADAMARD_NONE;
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        p.weights[r] = oct_hadamard_weight(oct_hadamard_signs(q), r);
    }
    return p;
}

static octet_status quantize(const oct_cuda_quantize_call *call, octet_error *err) {
    uint8_t dtype = call->source->dtype;
    oct_mxfp4_params p = params_of(call);
    oct_cuda_launch launch = {.module = OCT_MODULE_mxfp4,
                              .kernel = names[p.seed != NULL][oct_dtype_index(dtype)],
                              .input = dtype,
                              .grid = {oct_cuda_tiles(p.q.rows, p.q.cols), 1, 1},
                              .threads = oct_cuda_tile_threads(dtype),
                              .params = &p,
                              .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(call->on, &launch, err);
}

octet_status oct_cuda_quantize_mxfp4(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err) {
    octet_status status = OCTET_OK;
    for (int i = 0; i < count && !status; i++) {
        status = quantize(&calls[i], err);
    }
    return status;
}
