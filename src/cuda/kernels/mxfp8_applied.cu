/* mxfp8_applied.cu - the casts of mxfp8.cu, of what a prologue makes of memory. */
#include "cuda/kernels/apply.h"
#include "cuda/kernels/mxfp8_tile.h"

#define KERNEL(name, T, format)                                                                \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads,                        \
                                                 oct_shape<T>::resident)                       \
        mxfp8_applied_##name(const __grid_constant__ oct_mxfp8_applied p) {                    \
        oct_after();                                                                           \
        quantize<T, format>(p.of, blockIdx.x, oct_applying{p.f});                              \
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
