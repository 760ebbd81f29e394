/* bias.c - a bias added to every row, and its gradient, on a GPU. */
#include "cuda/kernels/bias.h"
#include "core/size.h"
#include "cuda/quantize.h"

octet_status oct_cuda_add_bias(const oct_cuda_on *on, const oct_matrix *dst,
                               const oct_matrix *source, const oct_vector *bias,
                               octet_error *err) {
    oct_matrix row = {.dtype = bias->dtype, .rows = 1, .cols = source->cols};
    row.parts[0] = (void *)(uintptr_t)bias->at;
    oct_add_bias_params p = {oct_rows_of(source->rows, source->cols), oct_plain_of(dst),
                             oct_plain_of(source), oct_plain_of(&row)};
    oct_cuda_launch launch = {.module = OCT_MODULE_bias,
                              .kernel = "add_bias",
                              .grid = {oct_rows_blocks(&p.shape), 1, 1},
                              .threads = OCT_ROWS_THREADS,
                              .params = &p,
                              .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(on, &launch, err);
}

octet_status oct_cuda_sum_columns(const oct_cuda_on *on, float *sums, const oct_matrix *source,
                                  octet_error *err) {
    static const char *const kernels[] = {"sum_columns_f32", "sum_columns_bf16",
                                          "sum_columns_f16"};
    oct_matrix nothing = {.dtype = source->dtype};
    oct_quantize_params p = oct_cuda_quantize_params(&nothing, source);
    p.sums = sums;
    oct_cuda_launch launch = {.module = OCT_MODULE_bias,
                              .kernel = kernels[oct_dtype_index(source->dtype)],
                              .grid = {oct_cuda_slabs(&p, source->dtype), 1, 1},
                              .threads = OCT_SLAB_THREADS,
                              .params = &p,
                              .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(on, &launch, err);
}

octet_status oct_cuda_bias_grad(const oct_cuda_on *on, const oct_cuda_joining *joining,
                                octet_error *err) {
    const oct_matrix *dst = joining->dst;
    oct_bias_grad_params p = {.dst = oct_plain_of(dst),
                              .sums = joining->sums,
                              .rows = joining->rows,
                              .cols = dst->cols,
                              .accumulate = joining->accumulate};
    p.paired = (uintptr_t)p.sums % 8 == 0 && dst->cols % 2 == 0;
    oct_cuda_launch launch = {
        .module = OCT_MODULE_bias,
        .kernel = "bias_grad",
        .grid = {(uint32_t)oct_size_ceil_div(dst->cols, OCT_GRAD_COLS), 1, 1},
        .threads = OCT_GRAD_THREADS,
        .params = &p,
        .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(on, &launch, err);
}
