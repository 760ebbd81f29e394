/* run_cuda.c - steps as calls of the CUDA device, on the caller's stream. */
#include "cuda/cuda.h"
#include "linear/run_work.h"

static octet_status do_zero(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_zero(on, work->to, work->to_bytes, err);
}

static octet_status do_cast(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_cast(on, &work->dst, &work->a, err);
}

static octet_status do_amax(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return work->step->dst == OCTET_ABSENT ? oct_cuda_amax(on, work->amax, &work->a, err)
                                           : oct_cuda_amax_parts(on, &work->dst, &work->a, err);
}

static octet_status do_quantize(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    bool stored = work->step->scale != OCTET_ABSENT;
    oct_cuda_live live = {.scale = work->scale,
                          .amax = stored ? NULL : work->amax,
                          .new_amax = stored ? work->amax : NULL,
                          .random = work->random};
    return oct_cuda_quantize(on, &work->dst, &work->a, &live, err);
}

static octet_status do_dequantize(const oct_work *work, const oct_cuda_on *on,
                                  octet_error *err) {
    return oct_cuda_dequantize(on, &work->dst, &work->a, (octet_use)work->step->a_use, err);
}

static octet_status do_transpose(const oct_work *work, const oct_cuda_on *on,
                                 octet_error *err) {
    return oct_cuda_transpose(on, &work->dst, &work->a, (octet_use)work->step->a_use, err);
}

static octet_status do_swizzle(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_swizzle(on, &work->dst, &work->a, (octet_use)work->step->a_use, err);
}

static octet_status do_assemble(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_assemble(on, &work->dst, &work->a, work->ranks, err);
}

static octet_status do_gemm(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    const octet_step *step = work->step;
    oct_cuda_gemm_call call = {.gemm = (octet_gemm)step->gemm,
                               .dst = work->dst,
                               .a = work->a,
                               .b = work->b,
                               .a_use = (octet_use)step->a_use,
                               .b_use = (octet_use)step->b_use,
                               .a_copy = work->a_copy,
                               .b_copy = work->b_copy,
                               .bias = work->bias,
                               .accumulate = step->accumulate,
                               .split = step->split,
                               .native = step->native,
                               .scratch = work->scratch,
                               .scratch_bytes = work->scratch_bytes};
    return oct_cuda_gemm(on, &call, err);
}

static octet_status do_add_bias(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_add_bias(on, &work->dst, &work->a, &work->bias, err);
}

static octet_status do_bias_grad(const oct_work *work, const oct_cuda_on *on,
                                 octet_error *err) {
    return oct_cuda_bias_grad(on, &work->dst, &work->a, err);
}

static octet_status (*const ops[OCTET_OPS])(const oct_work *, const oct_cuda_on *,
                                            octet_error *) = {
    [OCTET_OP_ZERO] = do_zero,
    [OCTET_OP_CAST] = do_cast,
    [OCTET_OP_AMAX] = do_amax,
    [OCTET_OP_QUANTIZE] = do_quantize,
    [OCTET_OP_DEQUANTIZE] = do_dequantize,
    [OCTET_OP_TRANSPOSE] = do_transpose,
    [OCTET_OP_SWIZZLE] = do_swizzle,
    [OCTET_OP_ASSEMBLE] = do_assemble,
    [OCTET_OP_GEMM] = do_gemm,
    [OCTET_OP_ADD_BIAS] = do_add_bias,
    [OCTET_OP_BIAS_GRAD] = do_bias_grad,
};

octet_status oct_work_cuda(const oct_work *work, const octet_exec *exec, octet_error *err) {
    oct_cuda_on on = {exec->cuda, exec->stream};
    return ops[work->step->op](work, &on, err);
}
