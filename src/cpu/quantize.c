/* quantize.c - every part of a quantized tensor but its amaxes, by the scheme's function. */
#include "cpu/schemes.h"

typedef void (*scheme_fn)(const oct_quantize_call *call, const oct_threads *threads);

static const scheme_fn schemes[OCTET_SCHEMES] = {
    [OCTET_FP8_TENSOR] = oct_quantize_per_tensor,
    [OCTET_FP8_DELAYED] = oct_quantize_per_tensor,
    [OCTET_FP8_BLOCK] = oct_quantize_block,
    [OCTET_MXFP8] = oct_quantize_mxfp8,
    [OCTET_NVFP4] = oct_quantize_fp4,
    [OCTET_MXFP4] = oct_quantize_fp4,
};

/* Scales are a few hundredths of the data: zeroing them whole is cheaper than finding where the
 * padding is. */
static oct_scales clear_scales(const oct_matrix *m, octet_use use) {
    oct_scales scales = oct_scales_of(m, use);
    void *buffer = m->parts[oct_scale_part(use)];
    if (buffer) {
        memset(buffer, 0, (size_t)(scales.count * oct_scale_bytes(&m->quantizer)));
    }
    return scales;
}

void oct_cpu_quantize(const oct_matrix *dst, const oct_matrix *source, const oct_live *live,
                      const oct_threads *threads) {
    oct_quantize_call call = {.dst = dst, .source = source, .live = live};
    call.kernels = oct_cpu_kernels();
    call.apply = live->apply;
    call.away = dst->rows * dst->cols >= OCT_AWAY_BYTES;
    if (dst->quantizer.block_cols) {
        call.row = clear_scales(dst, OCTET_USE_ROW);
        call.col = clear_scales(dst, OCTET_USE_COL);
    }
    schemes[dst->quantizer.scheme](&call, threads);
}
