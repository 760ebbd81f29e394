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
    const oct_prologue_call *apply; /* source is its f(x); NULL: it lies in memory */
    oct_scales row, col;            /* where scales lie; of schemes with blocks */
    bool away;                      /* transposed bytes are too many for a cache to hold */
} oct_quantize_call;

#define OCT_AWAY_BYTES (4 << 20)

/* Scale buffers have been zeroed: a scheme writes what is not padding. */
void oct_quantize_per_tensor(const oct_quantize_call *call, const oct_threads *threads);
void oct_quantize_block(const oct_quantize_call *call, const oct_threads *threads);
void oct_quantize_mxfp8(const oct_quantize_call *call, const oct_threads *threads);
/* NVFP4 and its kin. */
void oct_quantize_fp4(const oct_quantize_call *call, const oct_threads *threads);
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

/* Transposed bytes: out(c, r) = x(r, c). */
static inline void oct_turn(const oct_quantize_call *call, const oct_bytes *out,
                            const oct_bytes *x, int64_t rows, int64_t cols) {
    const oct_kernels *kernels = call->kernels;
    (call->away ? kernels->transpose_away : kernels->transpose)(out, x, rows, cols);
}

/* Does `part` to each small tile of a large one, which x is. */
typedef void (*oct_part_fn)(const void *work, const oct_rect *rect, const oct_tile *x);

typedef struct oct_parts {
    int64_t rows, cols; /* of a part */
    oct_part_fn part;
    const void *work;
} oct_parts;

static inline void oct_each_part(const oct_quantize_call *call, const oct_rect *tile,
                                 const oct_parts *parts) {
    oct_grid grid = {tile->rows, tile->cols, parts->rows, parts->cols};
    for (int64_t i = 0; i < oct_grid_count(&grid); i++) {
        oct_rect rect = oct_grid_within(&grid, tile, i);
        oct_tile x = oct_tile_of(call->source, &rect);
        parts->part(parts->work, &rect, &x);
    }
}

/* ---- elements that are computed ---- */

/* Bytes of a part, at most: few enough that what is computed is cast from the cache. */
#define OCT_APPLIED_BYTES (16 << 10)

/* f(x) of a rectangle, dense in `memory`, which is aligned for floats. */
oct_tile oct_applied_tile(void *memory, const oct_prologue_call *call, const oct_rect *rect);
/* oct_each_part where the source is computed: a part after the other, of at most
 * OCT_APPLIED_BYTES. */
void oct_each_applied(const oct_quantize_call *call, const oct_rect *tile,
                      const oct_parts *parts);

#endif
