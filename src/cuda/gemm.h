/* gemm.h - a product's operands where they lie, and the kernel that multiplies any of them. */
#ifndef OCT_CUDA_GEMM_H
#define OCT_CUDA_GEMM_H

#include "cuda/device.h"
#include "cuda/kernels/gemm.h"

/* The operand m read through the bytes of `use`; by_rows: the product runs along its rows. */
oct_gemm_operand oct_gemm_operand_of(const oct_matrix *m, octet_use use, bool by_rows);
/* Its outer indices [first, first + count) alone; first begins a block, and a tile of 128 where
 * scales lie in the order of tensor cores. */
void oct_gemm_operand_cut(oct_gemm_operand *o, int64_t first, int64_t count);
/* What an operand of so many columns has been decoded into; rows of the copy may be longer. */
oct_gemm_operand oct_gemm_copy_of(const oct_matrix *copy, int64_t cols, bool by_rows);
/* Whether the copies of the operands are folded, or are to be. */
bool oct_gemm_is_folded(const oct_cuda_gemm_call *call);
/* Whether both operands carry the transform, whose last group of 16 rows is whole: then the
 * product runs over all of them. */
bool oct_gemm_transformed(const oct_cuda_gemm_call *call);
/* The parameters of the kernel that makes a product's factors; without `to` it makes none. */
oct_gemm_alpha_params oct_gemm_alpha_of(const oct_alpha *alpha);
/* A call as a kernel's parameters; its operands are read from their own bytes. */
oct_gemm_params oct_gemm_params_of(const oct_cuda_gemm_call *call);

/* The launch of the project's own kernel: any operands, any shape. */
octet_status oct_gemm_own_launch(oct_cuda_launch *out, oct_gemm_params *params,
                                 octet_error *err);
octet_status oct_gemm_own(const oct_cuda_on *on, const oct_cuda_gemm_call *call,
                          octet_error *err);

/* Whether a product has few rows of a and blocks along it: a kernel of its own reads b once,
 * where it lies. A pure function of its arguments. */
bool oct_gemm_is_thin(const oct_gemm_params *params);
octet_status oct_gemm_thin(const oct_cuda_on *on, const oct_gemm_params *params,
                           octet_error *err);

#endif
