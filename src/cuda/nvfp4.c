/* nvfp4.c - blocks of 16 with one E4M3 scale under an fp32 amax. */
#include "cuda/kernels/nvfp4.h"

#include "cuda/gemm.h"
#include "cuda/quantize.h"

/* Nearest and stochastic, without copies and with them; fp32 has none. */
static const char *const names[2][2][3] = {
    {{"nvfp4_f32", "nvfp4_bf16", "nvfp4_f16"},
     {"nvfp4_sr_f32", "nvfp4_sr_bf16", "nvfp4_sr_f16"}},
    {{"nvfp4_f32", "nvfp4_copied_bf16", "nvfp4_copied_f16"},
     {"nvfp4_sr_f32", "nvfp4_copied_sr_bf16", "nvfp4_copied_sr_f16"}},
};
static const char *const squares[3] = {"nvfp4_squares_f32", "nvfp4_squares_bf16",
                                       "nvfp4_squares_f16"};

/* Squares to nearest have one scale for all their elements, in both directions. */
static const char *kernel_of(const oct_nvfp4_params *p, uint8_t dtype) {
    bool copied = p->copies.row || p->copies.col, one = p->square && !p->seed;
    int index = oct_dtype_index(dtype);
    return one && !p->hadamard && !p->row_scaled ? squares[index]
                                                 : names[copied][p->seed != NULL][index];
}

static oct_nvfp4_params params_of(const oct_cuda_quantize_call *call) {
    const oct_matrix *dst = call->dst;
    const octet_quantizer *q = &dst->quantizer;
    oct_nvfp4_params p = {.q = oct_cuda_quantize_params(dst, call->source)};
    p.q.backward = 1;
    p.q.ahead = oct_cuda_ahead(call);
    p.copies = oct_cuda_copies(call);
    oct_cuda_leave_out(&p.q, &p.copies, call);
    p.row_amax = dst->parts[OCTET_PART_ROW_AMAX];
    p.col_amax = dst->parts[OCTET_PART_COL_AMAX];
    p.seed = q->stochastic ? call->live->seed : NULL;
    p.stream = call->live->stream;
    p.row_bytes = oct_line_bytes(dst, OCTET_USE_ROW);
    p.col_bytes = oct_line_bytes(dst, OCTET_USE_COL);
    p.aim = oct_nv_aim(q);
    p.square = oct_is_square(q);
    p.row_scaled = q->row_scaled;
    p.hadamard = q->hadamard != OCTET_HADAMARD_NONE;
    p.measured = call->live->measured;
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        p.weights[r] = oct_hadamard_weight(oct_hadamard_signs(q), r);
    }
    for (int i = 0; call->live->alphas && i < 2; i++) {
        p.alphas[i] = oct_gemm_alpha_of(&call->live->alphas[i]);
    }
    return p;
}

static octet_status quantize(const oct_cuda_quantize_call *call, octet_error *err) {
    const octet_quantizer *q = &call->dst->quantizer;
    if (q->four_over_six) {
        return oct_cuda_quantize_four_over_six(call, err);
    }
    oct_nvfp4_params p = params_of(call);
    oct_cuda_launch launch = {.module = OCT_MODULE_nvfp4, .params = &p};
    launch.input = call->source->dtype;
    launch.kernel = kernel_of(&p, call->source->dtype);
    launch.grid[0] = oct_cuda_tiles(p.q.rows, p.q.cols);
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = oct_cuda_tile_threads(call->source->dtype);
    launch.shared_bytes = OCT_NV_SHARED_BYTES(launch.threads, p.row_scaled);
    launch.params_bytes = sizeof p;
    return oct_cuda_launch_kernel(call->on, &launch, err);
}

octet_status oct_cuda_quantize_nvfp4(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err) {
    octet_status status = OCTET_OK;
    for (int i = 0; i < count && !status; i++) {
        status = quantize(&calls[i], err);
    }
    return status;
}
