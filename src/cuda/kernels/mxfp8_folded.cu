/* mxfp8_folded.cu - MXFP8 as mxfp8.cu casts it, folded into blocks of 128 on the way. */
#include "cuda/kernels/mxfp8_folded_tile.h"

#define RESIDENT 4 /* blocks on a multiprocessor, at least: five would spill registers */

#define KERNEL(name, T, format)                                                                \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads, RESIDENT)              \
        mxfp8_folded_##name(const __grid_constant__ oct_mxfp8_folded_two p) {                  \
        oct_after();                                                                           \
        bool second = blockIdx.x >= p.split;                                                   \
        quantize<T, format>(p.of[second], blockIdx.x - (second ? p.split : 0u), oct_lying{});  \
    }

#ifdef OCT_TAKES_BF16
KERNEL(bf16_e4m3, oct_bf16, OCTET_E4M3)
KERNEL(bf16_e5m2, oct_bf16, OCTET_E5M2)
#endif
#ifdef OCT_TAKES_F16
KERNEL(f16_e4m3, oct_f16, OCTET_E4M3)
KERNEL(f16_e5m2, oct_f16, OCTET_E5M2)
#endif
