/* amax.h - the parameters of the amax kernels. */
#ifndef OCT_CUDA_KERNELS_AMAX_H
#define OCT_CUDA_KERNELS_AMAX_H

#include "cuda/kernels/quantize.h"
#include "format/hadamard.h"

#define OCT_FLAT_THREADS 256
#define OCT_FLAT_LOADS 8    /* of 16 bytes, in flight in a thread */
#define OCT_FLAT_RESIDENT 4 /* blocks on a multiprocessor at once */

/* Rows without gaps are one long row, walked from its beginning by all blocks together, a chunk
 * each at a time. */
typedef struct oct_amax_flat_params {
    const void *source;
    int64_t count;
    float *out, *copy; /* raised; copy: the same amax; may be NULL */
    float *shares;     /* or OCT_AMAX_SHARES maxima, every one of them written; else NULL */
    uint32_t first;    /* the block that has the first chunk */
    uint32_t raises; /* out may hold anything and is raised as delayed scaling does; no copy */
} oct_amax_flat_params;

/* One tensor or two in a launch, the second after the first. */
typedef struct oct_amax_flat_two {
    oct_amax_flat_params of[2];
} oct_amax_flat_two;

typedef struct oct_amax_tiles_params {
    oct_quantize_params q; /* the source's fields, and `across` */
    float *row, *col;      /* may be NULL */
    uint8_t by_line;       /* one for each row and column instead of the tensor's */
    uint8_t hadamard;      /* col is that of the transformed columns */
    uint8_t reserved[6];
    float weights[OCT_HADAMARD_ROWS];
} oct_amax_tiles_params;

#endif
