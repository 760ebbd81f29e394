/* swizzle.c - block scales into the order tensor cores read them, and back. */
#include "cpu/scales.h"

#include <string.h>

void oct_cpu_swizzle(const oct_matrix *dst, const oct_matrix *source, octet_use use,
                     bool back) {
    oct_matrix compact = *source, turned = *source;
    compact.quantizer.swizzled = 0;
    turned.quantizer.swizzled = 1;
    oct_scales from = oct_scales_of(back ? &turned : &compact, use);
    oct_scales to = oct_scales_of(back ? &compact : &turned, use);
    const uint8_t *x = source->parts[oct_scale_part(use)];
    uint8_t *out = dst->parts[oct_scale_part(use)];
    memset(out, 0, (size_t)to.count);
    for (int64_t i = 0; i < to.lines; i++) {
        for (int64_t j = 0; j < to.blocks; j++) {
            out[oct_scale_at(&to, i, j)] = x[oct_scale_at(&from, i, j)];
        }
    }
}
