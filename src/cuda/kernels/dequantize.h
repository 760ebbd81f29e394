/* dequantize.h - the parameters of the dequantize kernels. */
#ifndef OCT_CUDA_KERNELS_DEQUANTIZE_H
#define OCT_CUDA_KERNELS_DEQUANTIZE_H

#include "cuda/kernels/rows.h"
#include "format/scales.h"

#define OCT_DECODE_SIDE 128 /* of a tile of transposed codes */
#define OCT_DECODE_THREADS 256

/* Where rows are streamed into bf16, a warp has 256 columns of 8 rows; blocks are numbered
 * along rows in x, down in y. */
#define OCT_STREAM_DEEP 8
#define OCT_STREAM_THREADS 256
#define OCT_STREAM_COLS 256
#define OCT_STREAM_ROWS (OCT_STREAM_THREADS / 32 * OCT_STREAM_DEEP)

/* Where nibbles are turned into bf16, a block has 128 columns of 256 rows; likewise. */
#define OCT_TURN_THREADS 128
#define OCT_TURN_COLS 128
#define OCT_TURN_ROWS 256

typedef struct oct_decode_params {
    oct_rows shape; /* of dst */
    oct_plain dst;
    const uint8_t *codes;
    int64_t line_bytes; /* from one line of codes to the next */
    int64_t length;     /* transposed: elements of a line that are decoded */
    const void *scale;  /* the tensor's, or the blocks' */
    oct_scales scales;
    const float *amax;    /* above block scales; NULL: this factor is left out */
    float unit;           /* of it: fl32(1 / (6 Emax)) */
    uint32_t signs;       /* of the transform to undo */
    uint8_t scale_format; /* octet_dtype of the blocks'; NONE: one scale, the tensor's */
    uint8_t format;       /* of a code */
    uint8_t block_shift;  /* log2 of the elements of a line that share a scale */
    uint8_t row_scaled;   /* an amax for each line */
    uint8_t by_column;    /* lines are columns, though the codes lie in rows */
    uint8_t wide;         /* lines may be read 8 (codes of 4 bits: 4) or, transposed, 16 (8)
                           * bytes at a time */
    uint8_t reserved[2];
} oct_decode_params;

#endif
