/* bias.c - a bias added to every row, and its gradient, on a GPU. */
#include "cuda/kernels/bias.h"
#include "core/size.h"
#include "cuda/device.h"

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

octet_status oct_cuda_bias_grad(const oct_cuda_on *on, const oct_matrix *dst,
                                const oct_matrix *source, const float *tiles,
                                octet_error *err) {
    static const char *const kernels[OCTET_DTYPES] = {
        [OCTET_F32] = "bias_grad_f32",
        [OCTET_BF16] = "bias_grad_bf16",
        [OCTET_F16] = "bias_grad_f16",
    };
    oct_matrix from = *source;
    if (tiles) {
        from = (oct_matrix){.dtype = OCTET_F32, .cols = source->cols, .stride = source->cols};
        from.parts[0] = (void *)(uintptr_t)tiles;
    }
    oct_bias_grad_params p = {oct_plain_of(dst), oct_plain_of(&from), source->rows,
                              source->cols, 0};
    uintptr_t pair = from.dtype == OCTET_F32 ? 8 : 4;
    p.paired = (uintptr_t)p.source.at % pair == 0 && from.stride % 2 == 0;
    oct_cuda_launch launch = {
        .module = OCT_MODULE_bias,
        .kernel = tiles ? "bias_grad_tiles" : kernels[source->dtype],
        .grid = {(uint32_t)oct_size_ceil_div(source->cols, OCT_GRAD_COLS), 1, 1},
        .threads = OCT_GRAD_THREADS,
        .params = &p,
        .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(on, &launch, err);
}
