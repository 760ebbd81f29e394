/* moves.h - the parameters of the kernels that move bytes. */
#ifndef OCT_CUDA_KERNELS_MOVES_H
#define OCT_CUDA_KERNELS_MOVES_H

#include "cuda/kernels/rows.h"
#include "format/scales.h"

typedef struct oct_cast_params {
    oct_rows shape;
    oct_plain dst, source;
} oct_cast_params;

/* A float that goes along with the bytes: a scale or an amax; `to` NULL: none. */
typedef struct oct_float_move {
    float *to;
    const float *from;
} oct_float_move;

#define OCT_CUDA_PADDINGS 5 /* in one launch, at most */

#define OCT_TURN_SIDE 128 /* of a block's tile */
#define OCT_TURN_THREADS 256

/* to(element, line) = from(line, element). */
typedef struct oct_turn_params {
    const uint8_t *from;
    uint8_t *to;
    int64_t lines, length;        /* of from, in elements */
    int64_t from_bytes, to_bytes; /* of one line */
    uint32_t across;              /* tiles along a line of from */
    uint8_t wide_from, wide_to;   /* lines may be taken 16 bytes at a time */
    uint8_t reserved[2];
    oct_float_move floats[2];
} oct_turn_params;

/* Which scale of the source the one of (line, block) is. */
typedef enum oct_scale_way {
    OCT_SCALE_SAME,       /* the same line and block: only the order differs */
    OCT_SCALE_TURNED,     /* of square blocks: that of (block, line) */
    OCT_SCALE_JOIN_LINES, /* shards one below the other */
    OCT_SCALE_JOIN_BLOCKS /* shards one after the other along the lines */
} oct_scale_way;

#define OCT_SCALES_THREADS 256

typedef struct oct_scales_params {
    const void *from;
    void *to;
    oct_scales from_at, to_at;
    int64_t side; /* of a square block */
    int64_t ranks;
    uint8_t way;   /* oct_scale_way */
    uint8_t bytes; /* of one scale: 1 or 4 */
    uint8_t wide;  /* four of `to` may be written at once */
    uint8_t reserved[5];
} oct_scales_params;

/* Lines of `length` bytes into lines of whole 16 bytes. What is behind a line is 0, and so are
 * lines of `to` beyond `lines`. */
typedef struct oct_pad_params {
    oct_rows shape; /* of `to`, in pairs of bytes: a thread has 16 */
    const uint8_t *from;
    uint8_t *to;
    int64_t lines, length;
    int64_t from_pitch, pitch; /* bytes from one line to the next */
    uint32_t block;            /* its first one; those of the next padding follow */
    uint8_t wide;              /* from is on a boundary of 16 bytes */
    uint8_t reserved[3];
} oct_pad_params;

/* Those beyond the last have no blocks. */
typedef struct oct_pad_all {
    oct_pad_params of[OCT_CUDA_PADDINGS];
} oct_pad_all;

#define OCT_JOIN_THREADS 256

/* Lines of `bytes` from each rank, one after the other. */
typedef struct oct_join_params {
    const uint8_t *from;
    uint8_t *to;
    int64_t lines, ranks;
    int64_t bytes;    /* of a shard's line */
    int64_t rows;     /* nibbles: elements of a shard's line */
    int64_t to_bytes; /* nibbles: of a line of `to` */
    uint8_t wide;     /* 16 bytes at a time */
    uint8_t reserved[7];
} oct_join_params;

#endif
