/* pieces.c - chunks of every rank's rows: their scales taken from shards, and their elements
 * put where they belong. */
#include <string.h>

#include "cpu/parallel.h"
#include "cpu/scales.h"

#define BYTES_AT_ONCE (64 << 10)

static void take_scales(const oct_matrix *dst, const oct_matrix *source,
                        const oct_chunk *chunk) {
    oct_scales from = oct_scales_of(source, OCTET_USE_ROW);
    oct_scales to = oct_scales_of(dst, OCTET_USE_ROW);
    size_t size = (size_t)oct_scale_bytes(&source->quantizer);
    const uint8_t *x = source->parts[OCTET_PART_ROW_SCALE];
    uint8_t *out = dst->parts[OCTET_PART_ROW_SCALE];
    int64_t rows = dst->rows / chunk->ranks;
    memset(out, 0, (size_t)to.count * size);
    for (int64_t k = 0; k < dst->rows * from.blocks; k++) {
        int64_t line = k / from.blocks, block = k % from.blocks;
        int64_t rank = line / rows, row = chunk->index * rows + line % rows;
        int64_t at = rank * from.count + oct_scale_at(&from, row, block);
        memcpy(out + (size_t)oct_scale_at(&to, line, block) * size, x + (size_t)at * size,
               size);
    }
}

void oct_cpu_take(const oct_matrix *dst, const oct_matrix *source, const oct_chunk *chunk) {
    const float *amaxes = source->parts[OCTET_PART_ROW_AMAX];
    float *to = dst->parts[OCTET_PART_ROW_AMAX];
    int64_t rows = dst->rows / chunk->ranks;
    if (source->parts[OCTET_PART_ROW_SCALE]) {
        take_scales(dst, source, chunk);
    }
    for (int64_t rank = 0; amaxes && rows && rank < chunk->ranks; rank++) {
        memcpy(to + rank * rows, amaxes + rank * source->rows + chunk->index * rows,
               (size_t)rows * sizeof *to);
    }
}

/* A run of `bytes` for each rank. */
typedef struct joining {
    char *to;
    const char *from;
    int64_t bytes, parts; /* parts of a run, BYTES_AT_ONCE each or less */
    const oct_chunk *chunk;
} joining;

static void join_task(void *arg, int64_t begin, int64_t end) {
    const joining *j = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t rank = i / j->parts, first = i % j->parts * BYTES_AT_ONCE;
        int64_t run = rank * j->chunk->chunks + j->chunk->index;
        memcpy(j->to + run * j->bytes + first, j->from + rank * j->bytes + first,
               (size_t)oct_min(BYTES_AT_ONCE, j->bytes - first));
    }
}

void oct_cpu_join(const oct_matrix *dst, const oct_matrix *source, const oct_chunk *chunk,
                  const oct_threads *threads) {
    bool plain = source->parts[OCTET_PART_VALUES] != NULL;
    octet_part part = plain ? OCTET_PART_VALUES : OCTET_PART_ROW_DATA;
    int64_t line = plain ? source->cols * octet_dtype_bits((octet_dtype)source->dtype) / 8
                         : oct_line_bytes(source, OCTET_USE_ROW);
    joining j = {.to = dst->parts[part],
                 .from = source->parts[part],
                 .bytes = source->rows / chunk->ranks * line,
                 .chunk = chunk};
    j.parts = oct_size_ceil_div(j.bytes, BYTES_AT_ONCE);
    oct_parallel(threads, chunk->ranks * j.parts, join_task, &j);
}
