/* mxfp8_folded_applied.cu - the casts of mxfp8_folded.cu, of what a prologue makes of memory.
 */
#include "cuda/kernels/apply.h"
#include "cuda/kernels/mxfp8_folded_tile.h"

#define RESIDENT 4 /* blocks on a multiprocessor, at least: five would spill registers */

#define KERNEL(name, T, format)                                                                \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads, RESIDENT)              \
        mxfp8_folded_applied_##name(const __grid_constant__ oct_mxfp8_folded_applied p) {      \
        oct_after();                                                                           \
        quantize<T, format>(p.of, blockIdx.x, oct_applying{p.f});                              \
    }

#ifdef OCT_TAKES_BF16
KERNEL(bf16_e4m3, oct_bf16, OCTET_E4M3)
KERNEL(bf16_e5m2, oct_bf16, OCTET_E5M2)
#endif
#ifdef OCT_TAKES_F16
KERNEL(f16_e4m3, oct_f16, OCTET_E4M3)
KERNEL(f16_e5m2, oct_f16, OCTET_E5M2)
#endif
