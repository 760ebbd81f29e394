/* thin.h - the parameters of the product's kernels for a few rows. */
#ifndef OCT_CUDA_KERNELS_THIN_H
#define OCT_CUDA_KERNELS_THIN_H

#include "cuda/kernels/gemm.h"

#define OCT_THIN_ROWS 16 /* of dst, at most */
#define OCT_THIN_COLS 16 /* of dst that a block computes */
#define OCT_THIN_WARPS 8 /* of a block, which share the length of the product */
#define OCT_THIN_THREADS (32 * OCT_THIN_WARPS)
#define OCT_THIN_RESIDENT 3 /* blocks on a processor at once */

/* Both operands have blocks and run along the product, in storage rows of whole 16 bytes. */
typedef struct oct_thin_params {
    oct_gemm_params gemm;
    uint32_t ahead; /* blocks that ask for bytes of b before their turn */
    uint32_t reserved;
} oct_thin_params;

#endif
