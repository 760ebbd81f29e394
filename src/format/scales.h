/* scales.h - where a direction's scales lie: plain strides, or the order of tensor cores.
 *
 * A direction has lines (rows for rowwise, columns for columnwise) and blocks along them. The
 * scale of (line i, block j) is at oct_scale_at; everything else in the buffer is padding. */
#ifndef OCT_FORMAT_SCALES_H
#define OCT_FORMAT_SCALES_H

#include "core/matrix.h"
#include "core/size.h"

/* Lines of a tile in the order of tensor cores. Byte scales are padded to whole tiles in either
 * order, so that one buffer serves both. */
#define OCT_SCALE_TILE 128

typedef struct oct_scales {
    int64_t lines, blocks; /* blocks: along one line */
    int64_t line_step, block_step;
    int64_t tiles; /* swizzled: tiles of 128 lines by 4 blocks along a line; else 0 */
    int64_t count; /* entries of the buffer, padding included */
    int32_t share; /* 2^share lines have one entry: 128 in square FP8 blocks, else 1 */
    int32_t reserved;
} oct_scales;

static inline bool oct_is_square(const octet_quantizer *q) {
    return q->block_rows > 1;
}

/* In tensor-core order a tile of 128 lines by 4 blocks is 512 entries: 32 lines of 16, each the
 * 4 blocks of 4 lines that lie 32 apart. */
static inline int64_t oct_scale_at(const oct_scales *s, int64_t i, int64_t j) {
    if (s->tiles) {
        return (i / OCT_SCALE_TILE * s->tiles + j / 4) * 512 + i % 32 * 16 +
               i % OCT_SCALE_TILE / 32 * 4 + j % 4;
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

#endif
