/* quantize.c - every part of a quantized tensor but its amaxes, by the scheme's function. */
#include "cuda/quantize.h"

typedef octet_status (*scheme_fn)(const oct_cuda_quantize_call *calls, int count,
                                  octet_error *err);

static const scheme_fn schemes[OCTET_SCHEMES] = {
    [OCTET_FP8_TENSOR] = oct_cuda_quantize_per_tensor,
    [OCTET_FP8_DELAYED] = oct_cuda_quantize_per_tensor,
    [OCTET_FP8_BLOCK] = oct_cuda_quantize_block,
    [OCTET_MXFP8] = oct_cuda_quantize_mxfp8,
    [OCTET_NVFP4] = oct_cuda_quantize_nvfp4,
};

uint32_t oct_cuda_tiles(int64_t rows, int64_t cols) {
    return (uint32_t)(oct_size_ceil_div(rows, OCT_TILE) * oct_size_ceil_div(cols, OCT_TILE));
}

uint32_t oct_cuda_slabs(oct_quantize_params *p, uint8_t dtype) {
    int64_t cols = OCT_SLAB_COLS(dtype == OCTET_F32 ? 4 : 2);
    int64_t across = oct_size_ceil_div(p->cols, cols);
    p->across = (uint32_t)(across ? across : 1);
    return (uint32_t)(oct_size_ceil_div(p->rows, OCT_TILE) * across);
}

uint32_t oct_cuda_tile_threads(uint8_t dtype) {
    return dtype == OCTET_F32 ? 256 : 128;
}

/* The largest unit, from `most` down to `least`, at whose multiples lines that are `bytes` long
 * begin; 0 where there is none. */
static uint8_t unit_of(const void *data, int64_t bytes, unsigned most, unsigned least) {
    for (unsigned unit = most; unit >= least; unit /= 2) {
        if ((uintptr_t)data % unit == 0 && bytes % unit == 0) {
            return (uint8_t)unit;
        }
    }
    return 0;
}

/* What a patch's codes of one line may be written by. */
static uint8_t codes_unit(const oct_matrix *dst, octet_use use) {
    const octet_quantizer *q = &dst->quantizer;
    const void *data = dst->parts[oct_data_part(use)];
    if (q->scheme == OCTET_NVFP4) {
        return unit_of(data, oct_nv_line_bytes(dst, use), 8, 8);
    }
    if (use == OCTET_USE_ROW || q->scheme == OCTET_MXFP8) {
        return unit_of(data, dst->cols, 8, 8);
    }
    return unit_of(data, dst->rows, 16, 4);
}

oct_quantize_params oct_cuda_quantize_params(const oct_matrix *dst, const oct_matrix *source) {
    oct_quantize_params p = {.source = source->parts[0], .rows = source->rows};
    int64_t size = source->dtype == OCTET_F32 ? 4 : 2;
    int64_t across = oct_size_ceil_div(source->cols, OCT_TILE);
    p.cols = source->cols;
    p.stride = source->stride;
    p.row = dst->parts[OCTET_PART_ROW_DATA];
    p.col = dst->parts[OCTET_PART_COL_DATA];
    p.row_scale = dst->parts[OCTET_PART_ROW_SCALE];
    p.col_scale = dst->parts[OCTET_PART_COL_SCALE];
    if (dst->quantizer.block_cols) {
        p.row_at = oct_scales_of(dst, OCTET_USE_ROW);
        p.col_at = oct_scales_of(dst, OCTET_USE_COL);
    }
    p.across = (uint32_t)(across ? across : 1);
    p.wide_source = unit_of(p.source, p.stride * size, 16, 16) != 0;
    p.wide_row = codes_unit(dst, OCTET_USE_ROW);
    p.wide_col = codes_unit(dst, OCTET_USE_COL);
    return p;
}

octet_status oct_cuda_quantize(const oct_cuda_on *on, const oct_matrix *dst,
                               const oct_matrix *source, const oct_cuda_live *live,
                               octet_error *err) {
    oct_cuda_quantize_call call = {on, dst, source, live};
    return schemes[dst->quantizer.scheme](&call, 1, err);
}

static bool is_alike(const oct_cuda_quantizing *a, const oct_cuda_quantizing *b) {
    const octet_quantizer *p = &a->dst->quantizer, *q = &b->dst->quantizer;
    return schemes[p->scheme] == schemes[q->scheme] && p->format == q->format &&
           a->source->dtype == b->source->dtype;
}

octet_status oct_cuda_quantize_two(const oct_cuda_on *on, const oct_cuda_quantizing two[2],
                                   octet_error *err) {
    oct_cuda_quantize_call calls[2];
    for (int i = 0; i < 2; i++) {
        const oct_cuda_quantizing *of = &two[1 - i];
        calls[i] = (oct_cuda_quantize_call){on, of->dst, of->source, &of->live};
    }
    if (is_alike(&two[0], &two[1])) {
        return schemes[two[0].dst->quantizer.scheme](calls, 2, err);
    }
    octet_status status = schemes[two[1].dst->quantizer.scheme](&calls[0], 1, err);
    return status ? status : schemes[two[0].dst->quantizer.scheme](&calls[1], 1, err);
}
