/* scheme.h - what a scheme is: one row of traits.
 *
 * Everything outside a scheme's kernels asks the row, never which scheme it is. */
#ifndef OCT_FORMAT_SCHEME_H
#define OCT_FORMAT_SCHEME_H

#include "format/hadamard.h"
#include "format/scales.h"

/* Fields of a quantizer that mean something to a scheme, as bits. */
enum {
    OCT_TAKES_BLOCKS = 1,     /* of a row, or squares */
    OCT_TAKES_SCALING = 2,    /* pow2 and eps */
    OCT_TAKES_TRANSFORM = 4,  /* of columnwise bytes */
    OCT_TAKES_STOCHASTIC = 8, /* rounding */
    OCT_TAKES_FACTOR = 16,    /* how an amax and block scales share their work */
    OCT_TAKES_SWIZZLED = 32   /* scales in the order of tensor cores */
};

typedef struct oct_scheme {
    uint8_t formats[2];   /* octet_dtype of an element, the default first; NONE: no other */
    uint8_t scale_format; /* octet_dtype of a scale */
    uint8_t pow2;         /* the default of a quantizer's */
    uint16_t block;       /* elements of a line that share a scale; 0: there are no blocks */
    uint8_t takes;        /* OCT_TAKES_... */
    bool one_scale;       /* for all of a tensor */
    bool given_scale;     /* the scale is the caller's live state */
    bool packed;          /* two codes a byte */
    bool as_rows;         /* columnwise bytes and scales lie as the rows do, else transposed */
    bool amax;            /* block scales count under an fp32 amax, a part of the tensor */
    bool split;           /* products have no fast accumulation */
} oct_scheme;

/* The rows, in the order of octet_scheme: ROW(with, name, word, takes, traits...). */
#define OCT_SCHEME_ROWS(ROW, with)                                                             \
    ROW(with, FP8_TENSOR, "fp8-tensor", OCT_TAKES_SCALING,                                     \
        .formats = {OCTET_E4M3, OCTET_E5M2}, .scale_format = OCTET_F32, .one_scale = true)     \
    ROW(with, FP8_DELAYED, "fp8-delayed", 0, .formats = {OCTET_E4M3, OCTET_E5M2},              \
        .scale_format = OCTET_F32, .one_scale = true, .given_scale = true)                     \
    ROW(with, FP8_BLOCK, "fp8-block", OCT_TAKES_BLOCKS | OCT_TAKES_SCALING,                    \
        .formats = {OCTET_E4M3, OCTET_E5M2}, .block = 128, .scale_format = OCTET_F32,          \
        .pow2 = 1, .split = true)                                                              \
    ROW(with, MXFP8, "mxfp8", OCT_TAKES_BLOCKS | OCT_TAKES_SWIZZLED,                           \
        .formats = {OCTET_E4M3, OCTET_E5M2}, .block = 32, .scale_format = OCTET_E8M0,          \
        .as_rows = true)                                                                       \
    ROW(with, NVFP4, "nvfp4",                                                                  \
        OCT_TAKES_BLOCKS | OCT_TAKES_TRANSFORM | OCT_TAKES_STOCHASTIC | OCT_TAKES_FACTOR |     \
            OCT_TAKES_SWIZZLED,                                                                \
        .formats = {OCTET_E2M1}, .block = 16, .scale_format = OCTET_E4M3, .packed = true,      \
        .amax = true, .split = true)                                                           \
    ROW(with, MXFP4, "mxfp4",                                                                  \
        OCT_TAKES_BLOCKS | OCT_TAKES_TRANSFORM | OCT_TAKES_STOCHASTIC | OCT_TAKES_SWIZZLED,    \
        .formats = {OCTET_E2M1}, .block = 32, .scale_format = OCTET_E8M0, .packed = true,      \
        .split = true)

/* By octet_scheme. */
extern const oct_scheme oct_schemes[OCTET_SCHEMES];
extern const char *const oct_scheme_words[OCTET_SCHEMES + 1];

/* A scheme that is none has the traits of none: values are asked before they are checked. */
static inline const oct_scheme *oct_scheme_of(const octet_quantizer *q) {
    return &oct_schemes[q->scheme < OCTET_SCHEMES ? q->scheme : OCTET_SCHEME_NONE];
}

/* Whether each block has a scale of one byte. */
static inline bool oct_has_byte_scales(const octet_quantizer *q) {
    const oct_scheme *scheme = oct_scheme_of(q);
    return scheme->block && scheme->scale_format != OCTET_F32;
}

/* Whether each block has a float for a scale. */
static inline bool oct_has_float_scales(const octet_quantizer *q) {
    const oct_scheme *scheme = oct_scheme_of(q);
    return scheme->block && scheme->scale_format == OCTET_F32;
}

static inline int64_t oct_scale_bytes(const octet_quantizer *q) {
    return oct_scheme_of(q)->scale_format == OCTET_F32 ? (int64_t)sizeof(float) : 1;
}

/* Whether the bytes of a direction lie transposed. */
static inline bool oct_is_turned(const octet_quantizer *q, octet_use use) {
    return use == OCTET_USE_COL && !oct_scheme_of(q)->as_rows;
}

/* Bytes of one line of codes, a row's or a column's. The transform keeps all 16 outputs of the
 * last group. */
static inline int64_t oct_line_bytes(const oct_matrix *m, octet_use use) {
    bool row = use == OCTET_USE_ROW;
    int64_t length = row ? m->cols : m->rows;
    if (!row && m->quantizer.hadamard) {
        length = oct_round_up(length, OCT_HADAMARD_ROWS);
    }
    return oct_scheme_of(&m->quantizer)->packed ? oct_size_ceil_div(length, 2) : length;
}

/* Float scales: 1D block-major, 2D line-block-major. Bytes: line-major, or as the rows lie. */
static inline oct_scales oct_scales_of(const oct_matrix *m, octet_use use) {
    const octet_quantizer *q = &m->quantizer;
    bool row = use == OCTET_USE_ROW, floats = oct_has_float_scales(q);
    int64_t lines = row ? m->rows : m->cols, length = row ? m->cols : m->rows;
    int64_t blocks = oct_size_ceil_div(length, q->block_cols);
    int64_t wide = oct_round_up(blocks, 4), tall = oct_round_up(lines, OCT_SCALE_TILE);
    oct_scales s = {lines, blocks, wide, 1, 0, wide * tall, 0, 0};
    if (floats && oct_is_square(q)) {
        s.share = 7;
        s.count = wide * oct_size_ceil_div(lines, q->block_rows);
    } else if (floats) {
        s.line_step = 1;
        s.block_step = oct_round_up(lines, 4);
        s.count = s.block_step * blocks;
    } else if (!row && !oct_is_turned(q, use)) {
        s.line_step = 1;
        s.block_step = tall;
    }
    s.tiles = q->swizzled ? wide / 4 : 0;
    return s;
}

#endif
