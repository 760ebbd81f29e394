/* plain.h - elements that are not quantized: F32, BF16 and F16 in rows. */
#ifndef OCT_CPU_PLAIN_H
#define OCT_CPU_PLAIN_H

#include "cpu/cpu.h"
#include "cpu/parallel.h"
#include "format/bf16.h"
#include "format/f16.h"

/* A rectangle of a plain matrix. Kernels write through it where they say so. */
typedef struct oct_tile {
    void *at;
    int64_t stride; /* elements from one row to the next */
    int64_t rows, cols;
    octet_dtype dtype;
} oct_tile;

static inline int64_t oct_plain_bytes(octet_dtype dtype) {
    return dtype == OCTET_F32 ? 4 : 2;
}

static inline void *oct_plain_at(const void *base, int64_t index, octet_dtype dtype) {
    /* As a number: the base of nothing is NULL, and null plus zero is undefined. */
    return (void *)((uintptr_t)base + (uintptr_t)(index * oct_plain_bytes(dtype)));
}

static inline void *oct_tile_row(const oct_tile *tile, int64_t row) {
    return oct_plain_at(tile->at, row * tile->stride, tile->dtype);
}

/* Exact. By memcpy: encodings of floats are read as floats, too. */
static inline float oct_plain_load(const void *row, int64_t index, octet_dtype dtype) {
    const void *at = oct_plain_at(row, index, dtype);
    if (dtype == OCTET_F32) {
        float value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    uint16_t code;
    memcpy(&code, at, sizeof code);
    return dtype == OCTET_BF16 ? oct_bf16_decode(code) : oct_f16_decode(code);
}

/* Nearest, ties to even, Inf past the largest value. */
static inline void oct_plain_store(void *row, int64_t index, float value, octet_dtype dtype) {
    void *at = oct_plain_at(row, index, dtype);
    if (dtype == OCTET_F32) {
        memcpy(at, &value, sizeof value);
    } else {
        uint16_t code = dtype == OCTET_BF16 ? oct_bf16_encode(value) : oct_f16_encode(value);
        memcpy(at, &code, sizeof code);
    }
}

/* Part of a plain matrix. */
static inline oct_tile oct_tile_of(const oct_matrix *m, const oct_rect *at) {
    octet_dtype dtype = (octet_dtype)m->dtype;
    void *first = oct_plain_at(m->parts[0], at->row * m->stride + at->col, dtype);
    return (oct_tile){first, m->stride, at->rows, at->cols, dtype};
}

/* The tile's rows one after the other in `memory`. Rows a power of two apart fall into few sets
 * of a cache; what is read more than once is better read from a copy. */
static inline oct_tile oct_dense_copy(void *memory, const oct_tile *tile) {
    oct_tile dense = {memory, tile->cols, tile->rows, tile->cols, tile->dtype};
    for (int64_t r = 0; r < tile->rows; r++) {
        memcpy(oct_tile_row(&dense, r), oct_tile_row(tile, r),
               (size_t)(tile->cols * oct_plain_bytes(tile->dtype)));
    }
    return dense;
}

#endif
