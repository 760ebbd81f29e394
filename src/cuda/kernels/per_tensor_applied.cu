/* per_tensor_applied.cu - the casts of per_tensor.cu, of what a prologue makes of memory. */
#include "cuda/kernels/apply.h"
#include "cuda/kernels/chain.h"
#include "cuda/kernels/per_tensor_tile.h"

/* A tile to a block. */
template <class T, int FORMAT>
static inline void quantize_one(const oct_per_tensor_applied &p) {
    __shared__ tile_memory<T> memory;
    oct_after();
    oct_patch<T> patch = oct_slab_patch<T>(p.of.q, blockIdx.x);
    oct_patch_apply(patch, p.f);
    float scale = scale_of(memory.words, p.of);
    if (p.of.inverse && blockIdx.x == 0 && threadIdx.x == 0) {
        *p.of.inverse = 1.0f / scale;
    }
    quantize<T, FORMAT>(memory, patch, p.of, scale);
}

#define KERNEL(name, T, format)                                                                \
    extern "C" __global__ void __launch_bounds__(OCT_SLAB_THREADS, 2)                          \
        per_tensor_applied_##name(const __grid_constant__ oct_per_tensor_applied p) {          \
        quantize_one<T, format>(p);                                                            \
    }

#ifdef OCT_TAKES_F32
KERNEL(f32_e4m3, float, OCTET_E4M3)
KERNEL(f32_e5m2, float, OCTET_E5M2)
#endif
#ifdef OCT_TAKES_BF16
KERNEL(bf16_e4m3, oct_bf16, OCTET_E4M3)
KERNEL(bf16_e5m2, oct_bf16, OCTET_E5M2)
#endif
#ifdef OCT_TAKES_F16
KERNEL(f16_e4m3, oct_f16, OCTET_E4M3)
KERNEL(f16_e5m2, oct_f16, OCTET_E5M2)
#endif
