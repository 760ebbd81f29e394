/* scales.h - scales of one byte, written where they lie. */
#ifndef OCT_CPU_SCALES_H
#define OCT_CPU_SCALES_H

#include <string.h>

#include "cpu/parallel.h"
#include "format/scheme.h"

/* Scales of one byte, of consecutive blocks of a line. */
static inline void oct_put_line(uint8_t *scales, const oct_scales *s, const int64_t at[2],
                                const uint8_t *codes, int64_t count) {
    if (s->tiles == 0 && s->block_step == 1) {
        memcpy(scales + oct_scale_at(s, at[0], at[1]), codes, (size_t)count);
        return;
    }
    for (int64_t j = 0; j < count; j++) {
        scales[oct_scale_at(s, at[0], at[1] + j)] = codes[j];
    }
}

/* The same of consecutive lines, at one block. */
static inline void oct_put_lines(uint8_t *scales, const oct_scales *s, const int64_t at[2],
                                 const uint8_t *codes, int64_t count) {
    if (s->tiles == 0 && s->line_step == 1) {
        memcpy(scales + oct_scale_at(s, at[0], at[1]), codes, (size_t)count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        scales[oct_scale_at(s, at[0] + i, at[1])] = codes[i];
    }
}

#endif
