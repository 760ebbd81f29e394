/* alpha.h - the factors of a product, for the GEMM library to read on the device. */
#ifndef OCT_CUDA_KERNELS_ALPHA_H
#define OCT_CUDA_KERNELS_ALPHA_H

#include "cuda/kernels/gemm.h"

/* Rounded once. By one thread. */
static __device__ __forceinline__ void oct_make_alpha(const oct_gemm_alpha_params &p) {
    double factor = p.unit * (p.a ? static_cast<double>(*p.a) : 1.0);
    p.out[0] = static_cast<float>(factor * (p.b ? static_cast<double>(*p.b) : 1.0));
    p.out[1] = p.beta;
}

#endif
