/* layout.h - dimension expressions, for the layers that build or evaluate them. */
#ifndef OCT_QUANT_LAYOUT_H
#define OCT_QUANT_LAYOUT_H

#include "octet.h"

static inline octet_dim oct_dim_of(octet_axis axis, int div, int align) {
    return (octet_dim){(uint8_t)axis, 0, 1, (uint16_t)div, (uint16_t)align};
}

/* octet_layout_make for a quantizer that is known to be valid. */
void oct_layout_fill(octet_layout *out, const octet_quantizer *quantizer);

/* octet_dim_eval without words: false on overflow. dim is valid, extents are not negative. */
bool oct_dim_number(int64_t *out, const octet_dim *dim, const octet_extents *extents);

#endif
