/* quantize.h - a quantize function per scheme, and what they share. */
#ifndef OCT_CUDA_QUANTIZE_H
#define OCT_CUDA_QUANTIZE_H

#include "cuda/device.h"
#include "cuda/kernels/applied.h"
#include "cuda/kernels/mxfp8_folded.h"
#include "cuda/kernels/quantize.h"
#include "format/scheme.h"

/* One call of oct_cuda_quantize. */
typedef struct oct_cuda_quantize_call {
    const oct_cuda_on *on;
    const oct_matrix *dst, *source;
    const oct_cuda_live *live;
} oct_cuda_quantize_call;

/* One tensor, or two of one dtype and format: in one launch, but for FP4. */
octet_status oct_cuda_quantize_per_tensor(const oct_cuda_quantize_call *calls, int count,
                                          octet_error *err);
octet_status oct_cuda_quantize_block(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err);
octet_status oct_cuda_quantize_mxfp8(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err);
octet_status oct_cuda_quantize_nvfp4(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err);
octet_status oct_cuda_quantize_mxfp4(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err);
/* NVFP4 where each block may map its amax to 4 instead of 6. */
octet_status oct_cuda_quantize_four_over_six(const oct_cuda_quantize_call *call,
                                             octet_error *err);

/* The prologue that a cast applies, as its kernel's parameters. */
oct_applied_params oct_cuda_applied_of(const oct_prologue_call *call);

/* The copies that a cast writes itself, as its kernel's parameters; none where it cannot. */
oct_copies oct_cuda_copies(const oct_cuda_quantize_call *call);
/* The same of folded copies. */
oct_folds oct_cuda_folds(const oct_cuda_quantize_call *call);
/* Bytes that no one reads once the copies are there are not written. */
void oct_cuda_leave_out(oct_quantize_params *p, const oct_copies *copies,
                        const oct_cuda_quantize_call *call);
/* The parameters of every kernel that describe dst and source. */
oct_quantize_params oct_cuda_quantize_params(const oct_matrix *dst, const oct_matrix *source);

/* Tiles of 128 x 128 of a matrix. */
uint32_t oct_cuda_tiles(int64_t rows, int64_t cols);
/* Tiles of 128 rows of 512 bytes; p gets how many lie along a row. */
uint32_t oct_cuda_slabs(oct_quantize_params *p, uint8_t dtype);
/* How far ahead of its own a block asks for a tile, where that pays: one a multiprocessor. */
uint32_t oct_cuda_ahead(const oct_cuda_quantize_call *call);
/* Of a launch with a block for each slab: fewer blocks that do several, where there is room. */
void oct_cuda_pipe(oct_cuda_launch *launch, const octet_cuda *cuda);
/* Threads of a tile: a thread has 16 bytes of each of 16 rows. */
uint32_t oct_cuda_tile_threads(uint8_t dtype);

/* The index of F32, BF16 or F16 in a table of kernels' names. */
static inline int oct_dtype_index(uint8_t dtype) {
    return dtype - OCTET_F32;
}

/* Launches one of a scheme's kernels to FP8: by the type of what is cast, then E4M3 or E5M2. */
octet_status oct_cuda_launch_fp8(const oct_cuda_quantize_call *call, oct_cuda_launch *launch,
                                 const char *const names[3][2], octet_error *err);

#endif
