/* fold.h - the parameters of the kernels that fold MXFP8 into blocks of 128. */
#ifndef OCT_CUDA_KERNELS_FOLD_H
#define OCT_CUDA_KERNELS_FOLD_H

#include "format/scales.h"

#define OCT_FOLD_SIDE 128 /* of a block's tile */
#define OCT_FOLD_THREADS 256

/* Lines of `to` are rows of the codes, or columns where they are turned. What is behind a line
 * of codes is 0 in `to`, and so are its lines beyond theirs and their scales. */
typedef struct oct_fold_params {
    const uint8_t *codes; /* they lie as the rows do, without gaps */
    int64_t rows, cols;   /* of them */
    const uint8_t *scale;
    oct_scales scales;
    uint8_t *to;
    float *to_scale;   /* a row of them for each block, with a place for each line */
    int64_t lines;     /* of `to` */
    int64_t pitch;     /* bytes from one line of `to` to the next: whole 16 */
    uint32_t across;   /* tiles along a row of codes */
    uint8_t by_column; /* scales are those of columns */
    uint8_t turned;
    uint8_t wide; /* rows of codes may be read 16 bytes at a time */
    uint8_t reserved;
} oct_fold_params;

#endif
