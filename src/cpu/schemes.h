/* schemes.h - a quantize function per scheme, and the call they share. */
#ifndef OCT_CPU_SCHEMES_H
#define OCT_CPU_SCHEMES_H

#include "cpu/kernels.h"
#include "cpu/scales.h"

/* One call of oct_cpu_quantize, as every task sees it. */
typedef struct oct_quantize_call {
    const oct_matrix *dst, *source;
    const oct_live *live;
    const oct_kernels *kernels;
    oct_scales row, col; /* where scales lie; of schemes with blocks */
    bool away;           /* transposed bytes are too many for a cache to keep */
} oct_quantize_call;

#define OCT_AWAY_BYTES (4 << 20)

/* Scale buffers have been zeroed: a scheme writes what is not padding. */
void oct_quantize_per_tensor(const oct_quantize_call *call, const oct_threads *threads);
void oct_quantize_block(const oct_quantize_call *call, const oct_threads *threads);
void oct_quantize_mxfp8(const oct_quantize_call *call, const oct_threads *threads);
void oct_quantize_nvfp4(const oct_quantize_call *call, const oct_threads *threads);
/* NVFP4 where each block may map its amax to 4 instead of 6. */
void oct_quantize_four_over_six(const oct_quantize_call *call, const oct_threads *threads);

/* The E4M3, E5M2 or E2M1 of a call. */
static inline octet_dtype oct_call_format(const oct_quantize_call *call) {
    return (octet_dtype)call->dst->quantizer.format;
}

/* Row-major bytes (rows, cols) of a data part, from an element on. */
static inline oct_bytes oct_data_at(const oct_matrix *m, octet_part part, const oct_rect *at) {
    uint8_t *data = m->parts[part];
    return (oct_bytes){data ? data + at->row * m->cols + at->col : NULL, m->cols};
}

/* Transposed bytes (cols, rows): the line of a column, from a row on. */
static inline oct_bytes oct_turned_at(const oct_matrix *m, octet_part part,
                                      const oct_rect *at) {
    uint8_t *data = m->parts[part];
    return (oct_bytes){data ? data + at->col * m->rows + at->row : NULL, m->rows};
}

/* Lines that will be read or written soon. Those of a transposed buffer are cache lines far
 * from each other, which no prefetcher foresees. */
static inline void oct_expect_lines(const oct_bytes *at, int64_t lines, int64_t bytes) {
#if defined(__GNUC__)
    for (int64_t i = 0; at->at && i < lines; i++) {
        for (int64_t b = 0; b < bytes; b += 64) {
            __builtin_prefetch(at->at + i * at->stride + b);
        }
    }
#else
    (void)at, (void)lines, (void)bytes;
#endif
}

/* Transposed bytes: lines to be written soon, and writing them. */
static inline void oct_expect_turned(const oct_quantize_call *call, const oct_bytes *out,
                                     int64_t lines, int64_t bytes) {
    if (!call->away) {
        oct_expect_lines(out, lines, bytes);
    }
}

static inline void oct_turn(const oct_quantize_call *call, const oct_bytes *out,
                            const oct_bytes *x, int64_t rows, int64_t cols) {
    const oct_kernels *kernels = call->kernels;
    (call->away ? kernels->transpose_away : kernels->transpose)(out, x, rows, cols);
}

/* Source rows that will be read soon: where a tile is read more than once, nothing else would
 * be fetched meanwhile. */
static inline void oct_expect_source(const oct_matrix *source, const oct_rect *rect) {
    oct_tile tile = oct_tile_of(source, rect);
    oct_bytes rows = {tile.at, tile.stride * oct_plain_bytes(tile.dtype)};
    oct_expect_lines(&rows, tile.rows, tile.cols * oct_plain_bytes(tile.dtype));
}

/* Does `part` to each small tile of a large one. */
typedef void (*oct_part_fn)(const void *work, const oct_rect *rect);

typedef struct oct_parts {
    int64_t rows, cols; /* of a part */
    oct_part_fn part;
    const oct_matrix *source; /* to fetch the next part of ahead; NULL: it is in the cache */
} oct_parts;

static inline void oct_each_part(const oct_rect *tile, const oct_parts *parts,
                                 const void *work) {
    oct_grid grid = {tile->rows, tile->cols, parts->rows, parts->cols};
    int64_t count = oct_grid_count(&grid);
    for (int64_t i = 0; i < count; i++) {
        oct_rect rect = oct_grid_within(&grid, tile, i);
        if (parts->source && i + 1 < count) {
            oct_rect next = oct_grid_within(&grid, tile, i + 1);
            oct_expect_source(parts->source, &next);
        }
        parts->part(work, &rect);
    }
}

#endif
