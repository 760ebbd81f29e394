/* mxfp8_folded.h - the parameters of the MXFP8 kernels that fold what they cast. */
#ifndef OCT_CUDA_KERNELS_MXFP8_FOLDED_H
#define OCT_CUDA_KERNELS_MXFP8_FOLDED_H

#include "cuda/kernels/applied.h"
#include "cuda/kernels/quantize.h"
#include "format/scaling.h"

/* What the bytes of each direction are folded to, FP8 in blocks of 128 without gaps; codes
 * NULL: not wanted. Rows and columns are whole 16, so patches of 16 rows of 8 columns lie whole
 * in the matrix or outside of it. */
typedef struct oct_folds {
    uint8_t *row, *col; /* columns lie turned: 16 codes of one together */
    float *row_scale, *col_scale;
} oct_folds;

typedef struct oct_mxfp8_folded_params {
    oct_quantize_params q;
    oct_folds folds;
    uint8_t square; /* blocks of 32 x 32 */
    uint8_t reserved[7];
} oct_mxfp8_folded_params;

/* One tensor or two in a launch: the first `split` blocks of threads are the first one's. */
typedef struct oct_mxfp8_folded_two {
    oct_mxfp8_folded_params of[2];
    uint32_t split, reserved;
} oct_mxfp8_folded_two;

/* One tensor that is f(x): its source is not read. */
typedef struct oct_mxfp8_folded_applied {
    oct_mxfp8_folded_params of;
    oct_applied_params f;
} oct_mxfp8_folded_applied;

#endif
