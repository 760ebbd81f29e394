/* per_tensor.cu - FP8 with one scale per tensor, a block's tiles one after the other. */
#include "cuda/kernels/per_tensor_tile.h"
#include "cuda/kernels/pipe.h"

/* A block takes a scale when it comes to the tensor. */
template <class T, int FORMAT> static inline void quantize_all(const oct_per_tensor_two &two) {
    __shared__ tile_memory<T> memory;
    float scale = 0.0f;
    bool in_second = false;
    auto work = [&](const oct_patch<T> &patch, const oct_per_tensor_params &p, uint32_t n) {
        if (n == blockIdx.x || (n >= two.split && !in_second)) {
            in_second = n >= two.split;
            scale = scale_of(memory.words, p);
        }
        if (p.inverse && (n == 0 || n == two.split) && threadIdx.x == 0) {
            *p.inverse = 1.0f / scale;
        }
        quantize<T, FORMAT>(memory, patch, p, scale);
    };
    oct_each_slab<T>(two, two.measured, work);
}

/* resident: blocks on a multiprocessor, at least, where they do a tile each; as many as
 * registers hold without spilling. */
#if OCT_PTX && (__CUDA_ARCH__ == 900 || (__CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200))
#define RESIDENT(alone) OCT_PIPE_RESIDENT
#else
#define RESIDENT(alone) alone
#endif

#define KERNEL(name, T, format, resident)                                                      \
    extern "C" __global__ void __launch_bounds__(OCT_SLAB_THREADS, RESIDENT(resident))         \
        per_tensor_##name(const __grid_constant__ oct_per_tensor_two p) {                      \
        quantize_all<T, format>(p);                                                            \
    }

#ifdef OCT_TAKES_F32
KERNEL(f32_e4m3, float, OCTET_E4M3, 3)
KERNEL(f32_e5m2, float, OCTET_E5M2, 3)
#endif
#ifdef OCT_TAKES_BF16
KERNEL(bf16_e4m3, oct_bf16, OCTET_E4M3, 3)
KERNEL(bf16_e5m2, oct_bf16, OCTET_E5M2, 3)
#endif
#ifdef OCT_TAKES_F16
KERNEL(f16_e4m3, oct_f16, OCTET_E4M3, 2)
KERNEL(f16_e5m2, oct_f16, OCTET_E5M2, 2)
#endif
