/* dequantize.c - a plain tensor from the bytes of one direction, on a GPU. */
#include "cuda/kernels/dequantize.h"
#include "core/size.h"
#include "cuda/device.h"
#include "format/hadamard.h"
#include "format/scaling.h"

static uint8_t log2_of(int64_t block) {
    uint8_t shift = 0;
    while (block && (int64_t)1 << shift < block) {
        shift++;
    }
    return shift;
}

static bool one_scale(const octet_quantizer *q) {
    return q->scheme == OCTET_FP8_TENSOR || q->scheme == OCTET_FP8_DELAYED;
}

static oct_decode_params params_of(const oct_matrix *dst, const oct_matrix *source,
                                   octet_use use) {
    const octet_quantizer *q = &source->quantizer;
    bool col = use == OCTET_USE_COL, nibbles = q->scheme == OCTET_NVFP4;
    bool turned = col && q->scheme != OCTET_MXFP8;
    oct_decode_params p = {.shape = oct_rows_of(dst->rows, source->cols),
                           .dst = oct_plain_of(dst),
                           .codes = source->parts[oct_data_part(use)],
                           .length = dst->rows,
                           .scheme = one_scale(q) ? OCTET_FP8_TENSOR : q->scheme,
                           .format = q->format,
                           .row_scaled = q->row_scaled,
                           .by_column = col && !turned};
    p.scale = source->parts[one_scale(q) ? OCTET_PART_SCALE : oct_scale_part(use)];
    p.block_shift = one_scale(q) ? 7 : log2_of(q->block_cols);
    p.line_bytes = nibbles  ? oct_nv_line_bytes(source, use)
                   : turned ? source->rows
                            : source->cols;
    if (!one_scale(q)) {
        p.scales = oct_scales_of(source, use);
    }
    uintptr_t width = (turned ? 16u : 8u) / (nibbles ? 2u : 1u);
    p.wide = ((uintptr_t)p.codes | (uintptr_t)p.line_bytes) % width == 0;
    return p;
}

static octet_status decode(const oct_cuda_on *on, const oct_decode_params *p,
                           const char *kernel, octet_error *err) {
    bool rows = kernel[7] == 'r';
    int64_t tiles = oct_size_ceil_div(p->shape.rows, OCT_DECODE_SIDE) *
                    oct_size_ceil_div(p->shape.cols, OCT_DECODE_SIDE);
    oct_cuda_launch launch = {
        .module = OCT_MODULE_dequantize,
        .kernel = kernel,
        .grid = {rows ? oct_rows_blocks(&p->shape) : (uint32_t)tiles, 1, 1},
        .threads = rows ? OCT_ROWS_THREADS : OCT_DECODE_THREADS,
        .params = p,
        .params_bytes = sizeof *p};
    return oct_cuda_launch_kernel(on, &launch, err);
}

static const char *kernel_of(const oct_matrix *source, octet_use use) {
    bool turned = use == OCTET_USE_COL && source->quantizer.scheme != OCTET_MXFP8;
    return turned ? "decode_turned" : "decode_rows";
}

octet_status oct_cuda_dequantize(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, octet_use use, octet_error *err) {
    const octet_quantizer *q = &source->quantizer;
    oct_decode_params p = params_of(dst, source, use);
    p.amax = source->parts[oct_amax_part(use)];
    p.unit = oct_nv_unit(q);
    if (q->hadamard && use == OCTET_USE_COL) {
        p.signs = oct_hadamard_signs(q);
        p.length = oct_round_up(dst->rows, OCT_HADAMARD_ROWS);
        return decode(on, &p, "decode_transformed", err);
    }
    return decode(on, &p, kernel_of(source, use), err);
}

octet_status oct_cuda_decode(const oct_cuda_on *on, const oct_matrix *dst,
                             const oct_matrix *source, octet_use use, octet_error *err) {
    if (source->quantizer.scheme == OCTET_SCHEME_NONE) {
        return oct_cuda_cast(on, dst, source, err);
    }
    oct_decode_params p = params_of(dst, source, use);
    p.scale = one_scale(&source->quantizer) ? NULL : p.scale;
    return decode(on, &p, kernel_of(source, use), err);
}
