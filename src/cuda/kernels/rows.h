/* rows.h - a matrix by rows, a thread 8 columns of 4 rows: how a grid is laid over it. */
#ifndef OCT_CUDA_KERNELS_ROWS_H
#define OCT_CUDA_KERNELS_ROWS_H

#include "core/matrix.h"

#define OCT_ROWS_THREADS 256
#define OCT_ROWS_COLS 8 /* of a thread: 16 bytes of bf16 */
#define OCT_ROWS_DEEP 4 /* rows of a thread: loads in flight */

/* A block is 2^shift threads beside each other and 256 >> shift below each other. Blocks are
 * numbered along the rows. */
typedef struct oct_rows {
    int64_t rows, cols;
    uint32_t across; /* blocks beside each other */
    uint32_t shift;
} oct_rows;

static inline oct_rows oct_rows_of(int64_t rows, int64_t cols) {
    oct_rows r = {rows, cols, 0, 0};
    int64_t threads = (cols + OCT_ROWS_COLS - 1) / OCT_ROWS_COLS;
    while (r.shift < 8 && (int64_t)1 << r.shift < threads) {
        r.shift++;
    }
    r.across = (uint32_t)((threads + ((int64_t)1 << r.shift) - 1) >> r.shift);
    return r;
}

/* Rows of a block. */
static inline int64_t oct_rows_tall(const oct_rows *r) {
    return (int64_t)(OCT_ROWS_THREADS >> r->shift) * OCT_ROWS_DEEP;
}

static inline uint32_t oct_rows_blocks(const oct_rows *r) {
    int64_t tall = oct_rows_tall(r);
    return (uint32_t)((r->rows + tall - 1) / tall * r->across);
}

/* A plain matrix in memory, as kernels see it. */
typedef struct oct_plain {
    void *at;
    int64_t stride; /* elements from one row to the next */
    uint8_t dtype;  /* F32, BF16 or F16 */
    uint8_t wide;   /* rows may be taken 16 bytes at a time */
    uint8_t reserved[6];
} oct_plain;

static inline oct_plain oct_plain_of(const oct_matrix *m) {
    int64_t stride_bytes = m->stride * (m->dtype == OCTET_F32 ? 4 : 2);
    bool one = m->rows <= 1;
    oct_plain plain = {m->parts[0], m->stride, m->dtype, 0, {0}};
    plain.wide = ((uintptr_t)plain.at | (uintptr_t)(one ? 0 : stride_bytes)) % 16 == 0;
    return plain;
}

#if defined(__cplusplus)
/* Where a thread begins; its rows are `step` apart. */
struct oct_rows_at {
    int64_t row, col;
    int step;
    bool full; /* all of its 8 columns exist */
};

static inline oct_rows_at oct_rows_place_of(const oct_rows &r, uint32_t block) {
    oct_rows_at at;
    uint32_t down = block / r.across, beside = block - down * r.across;
    uint32_t lane = threadIdx.x & ((1u << r.shift) - 1u);
    at.step = OCT_ROWS_THREADS >> r.shift;
    at.row = (int64_t)down * (at.step * OCT_ROWS_DEEP) + (threadIdx.x >> r.shift);
    at.col = ((int64_t)(beside << r.shift) + lane) * OCT_ROWS_COLS;
    at.full = at.col + OCT_ROWS_COLS <= r.cols;
    return at;
}

static inline oct_rows_at oct_rows_place(const oct_rows &r) {
    return oct_rows_place_of(r, blockIdx.x);
}
#endif

#endif
