/* scales.h - where a direction's scales lie: plain strides, or the order of tensor cores.
 *
 * A direction has lines (rows for rowwise, columns for columnwise) and blocks along them. The
 * scale of (line i, block j) is at oct_scale_at; everything else in the buffer is padding. */
#ifndef OCT_FORMAT_SCALES_H
#define OCT_FORMAT_SCALES_H

#include "core/matrix.h"
#include "core/size.h"

typedef struct oct_scales {
    int64_t lines, blocks; /* blocks: along one line */
    int64_t line_step, block_step;
    int share;     /* 2^share lines have one entry: 128 in square FP8 blocks, else 1 */
    int64_t tiles; /* swizzled: tiles of 128 lines by 4 blocks along a line; else 0 */
    int64_t count; /* entries of the buffer, padding included */
} oct_scales;

static inline bool oct_is_square(const octet_quantizer *q) {
    return q->block_rows > 1;
}

/* FP8 blocks: 1D block-major, 2D line-block-major. MXFP8 columnwise is stored as the rows lie.
 */
static inline oct_scales oct_scales_of(const oct_matrix *m, octet_use use) {
    const octet_quantizer *q = &m->quantizer;
    bool row = use == OCTET_USE_ROW;
    int64_t lines = row ? m->rows : m->cols, length = row ? m->cols : m->rows;
    int64_t blocks = oct_size_ceil_div(length, q->block_cols);
    int64_t wide = oct_round_up(blocks, 4), tall = oct_round_up(lines, 128);
    oct_scales s = {lines, blocks, wide, 1, 0, 0, wide * tall};
    if (q->scheme == OCTET_FP8_BLOCK && oct_is_square(q)) {
        s.share = 7;
        s.count = wide * oct_size_ceil_div(lines, q->block_rows);
    } else if (q->scheme == OCTET_FP8_BLOCK) {
        s.line_step = 1;
        s.block_step = oct_round_up(lines, 4);
        s.count = s.block_step * blocks;
    } else if (q->scheme == OCTET_MXFP8 && !row) {
        s.line_step = 1;
        s.block_step = tall;
    }
    s.tiles = q->swizzled ? wide / 4 : 0;
    return s;
}

/* In tensor-core order a tile of 128 lines by 4 blocks is 512 entries: 32 lines of 16, each the
 * 4 blocks of 4 lines that lie 32 apart. */
static inline int64_t oct_scale_at(const oct_scales *s, int64_t i, int64_t j) {
    if (s->tiles) {
        return (i / 128 * s->tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
    }
    return (i >> s->share) * s->line_step + j * s->block_step;
}

static inline octet_part oct_data_part(octet_use use) {
    return use == OCTET_USE_ROW ? OCTET_PART_ROW_DATA : OCTET_PART_COL_DATA;
}

static inline octet_part oct_scale_part(octet_use use) {
    return use == OCTET_USE_ROW ? OCTET_PART_ROW_SCALE : OCTET_PART_COL_SCALE;
}

static inline octet_part oct_amax_part(octet_use use) {
    return use == OCTET_USE_ROW ? OCTET_PART_ROW_AMAX : OCTET_PART_COL_AMAX;
}

/* Bytes of one line of NVFP4 codes. The transform keeps all 16 outputs of the last group. */
static inline int64_t oct_nv_line_bytes(const oct_matrix *m, octet_use use) {
    bool row = use == OCTET_USE_ROW;
    int64_t length = row ? m->cols : m->rows;
    return !row && m->quantizer.hadamard ? oct_round_up(length, 16) / 2
                                         : oct_size_ceil_div(length, 2);
}

#endif
