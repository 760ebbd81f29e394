/* quantizer.h - the quantizer's tables, for the layers that print or nest one. */
#ifndef OCT_QUANT_QUANTIZER_H
#define OCT_QUANT_QUANTIZER_H

#include "core/fields.h"
#include "format/scheme.h"

extern const octet_field oct_quantizer_fields[];
extern const char *const oct_hadamard_words[4];
extern const char *const oct_four_over_six_words[4];

/* The scheme's defaults: first format, row blocks, both usages. */
octet_quantizer oct_quantizer_default(octet_scheme scheme);

/* The scheme's square block when two_d, else its row block. */
void oct_quantizer_set_block(octet_quantizer *quantizer, bool two_d);

/* A quantizer's text inside a larger one: columns are the larger text's. */
octet_status oct_quantizer_parse_span(octet_quantizer *out, oct_span text, octet_error *err);
void oct_quantizer_write(oct_writer *writer, const octet_quantizer *quantizer);

static inline bool oct_quantizer_is(const octet_quantizer *quantizer) {
    return quantizer->scheme != OCTET_SCHEME_NONE;
}

/* One scale for the whole tensor, whoever chooses it. */
static inline bool oct_quantizer_one_scale(const octet_quantizer *quantizer) {
    return oct_scheme_of(quantizer)->one_scale;
}

#endif
