/* quantize.h - the parameters of every quantize kernel: where elements come from and codes go.
 */
#ifndef OCT_CUDA_KERNELS_QUANTIZE_H
#define OCT_CUDA_KERNELS_QUANTIZE_H

#include "format/scales.h"

/* A block of threads does a tile of 128 x 128; blocks are numbered along the rows of tiles. */
#define OCT_TILE 128

/* Or a tile of 128 rows that are 512 bytes long; its threads, and its columns. */
#define OCT_SLAB_THREADS 256
#define OCT_SLAB_COLS(element_bytes) (512 / (element_bytes))

/* A block that does several of these has room in shared memory for the next one's elements, two
 * blocks on a multiprocessor; for GPUs on which one block may have so much: kernels/pipe.h. */
#define OCT_NEXT_BYTES (OCT_TILE * 512u)
#define OCT_PIPE_RESIDENT 2
#define OCT_PIPE_LEAST (220 << 10)

/* A tensor's amax is one float, or as many maxima of parts of it: zero where there are fewer.
 */
#define OCT_AMAX_SHARES 512

typedef struct oct_quantize_params {
    const void *source;
    int64_t rows, cols, stride;  /* stride: elements from one row of the source to the next */
    uint8_t *row, *col;          /* codes; NULL: this direction is not wanted */
    void *row_scale, *col_scale; /* of blocks */
    oct_scales row_at, col_at;
    float *sums; /* of the columns of each 128 rows, as column_sums.h says; NULL: not wanted */
    uint32_t across;     /* tiles along a row */
    uint32_t ahead;      /* the tile that comes so much later is asked for early; 0: none is */
    uint8_t wide_source; /* rows of the source may be read 16 bytes at a time */
    uint8_t wide_row;    /* bytes of codes that may be written at a time; 0: one */
    uint8_t wide_col;
    uint8_t
        backward; /* the last tile first: what an amax has read last is still in the cache */
    uint32_t reserved;
} oct_quantize_params;

/* What the bytes of each direction decode to, bf16 without gaps; NULL: not wanted. Patches of 8
 * columns then lie whole in the matrix or outside of it. */
typedef struct oct_copies {
    uint16_t *row, *col;
} oct_copies;

#endif
