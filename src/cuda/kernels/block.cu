/* block.cu - FP8 in blocks of 128, with one fp32 scale each: what lies in memory. */
#include "cuda/kernels/block_tile.h"

#define KERNEL(name, T, format)                                                                \
    extern "C" __global__ void __launch_bounds__(OCT_SLAB_THREADS, 2)                          \
        block_##name(const __grid_constant__ oct_block_two p) {                                \
        oct_after();                                                                           \
        bool second = blockIdx.x >= p.split;                                                   \
        quantize<T, format>(p.of[second], blockIdx.x - (second ? p.split : 0u), oct_lying{});  \
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
