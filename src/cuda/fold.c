/* fold.c - MXFP8 in blocks of 128, from its bytes. */
#include "cuda/kernels/fold.h"

#include "cuda/device.h"
#include "format/scheme.h"

octet_status oct_cuda_fold(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, octet_use use, octet_error *err) {
    bool turned = dst->quantizer.columnwise;
    octet_use to = turned ? OCTET_USE_COL : OCTET_USE_ROW;
    const uint8_t *codes = source->parts[oct_data_part(use)];
    oct_fold_params p = {.codes = codes,
                         .rows = source->rows,
                         .cols = source->cols,
                         .scale = source->parts[oct_scale_part(use)],
                         .scales = oct_scales_of(source, use),
                         .to = dst->parts[oct_data_part(to)],
                         .to_scale = dst->parts[oct_scale_part(to)],
                         .lines = turned ? dst->cols : dst->rows,
                         .pitch = turned ? dst->rows : dst->cols,
                         .across = (uint32_t)oct_size_ceil_div(dst->cols, OCT_FOLD_SIDE),
                         .by_column = use == OCTET_USE_COL,
                         .turned = turned};
    p.wide = ((uintptr_t)codes | (uintptr_t)source->cols) % 16 == 0;
    oct_cuda_launch launch = {
        .module = OCT_MODULE_fold,
        .kernel = source->quantizer.format == OCTET_E5M2 ? "fold_e5m2" : "fold_e4m3",
        .grid = {p.across * (uint32_t)oct_size_ceil_div(dst->rows, OCT_FOLD_SIDE), 1, 1},
        .threads = OCT_FOLD_THREADS,
        .params = &p,
        .params_bytes = sizeof p};
    return oct_cuda_launch_kernel(on, &launch, err);
}
