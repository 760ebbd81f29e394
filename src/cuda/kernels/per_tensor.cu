/* per_tensor.cu - FP8 with one scale per tensor, rows and columns from one read.
 *
 * Codes are those of src/cpu/per_tensor.c, bit for bit. */
#include "cuda/kernels/slab.h"

#include "cuda/kernels/per_tensor.h"

template <class T, int FORMAT>
static inline void quantize(const oct_per_tensor_params &p, uint32_t tile, uint32_t tiles) {
    __shared__ oct_slab_turned<T> turned;
    __shared__ uint32_t shares[OCT_SLAB_WARPS];
    oct_patch<T> patch = oct_slab_patch<T>(p.q, p.q.backward ? tiles - 1u - tile : tile);
    oct_slab_load(patch, p.q);
    float scale = p.scale ? *p.scale : oct_scale_of(*p.amax, &p.rule);
    if (p.inverse && tile == 0 && threadIdx.x == 0) {
        *p.inverse = 1.0f / scale;
    }
    if (p.new_amax) {
        uint32_t most = oct_warp_max(oct_patch_max(patch));
        if (threadIdx.x % OCT_WARP == 0) {
            shares[threadIdx.x / OCT_WARP] = most;
        }
    }
    oct_slab_encode<T, FORMAT>(turned, patch, p.q, scale);
    __syncthreads();
    if (p.q.col && p.q.wide_col) {
        oct_slab_store(turned, patch, p.q);
    }
    if (p.new_amax && threadIdx.x == 0) {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < OCT_SLAB_WARPS; i++) {
            most = oct_max_bits(most, shares[i]);
        }
        oct_record(p.new_amax, most);
    }
}

/* resident: blocks on a multiprocessor, at least; as many as registers hold without spilling.
 */
#define KERNEL(name, T, format, resident)                                                      \
    extern "C" __global__ void __launch_bounds__(OCT_SLAB_THREADS, resident)                   \
        per_tensor_##name(oct_per_tensor_params p) {                                           \
        quantize<T, format>(p, blockIdx.x, gridDim.x);                                         \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(OCT_SLAB_THREADS, 2)                          \
        per_tensor_two_##name(const __grid_constant__ oct_per_tensor_two p) {                  \
        bool second = blockIdx.x >= p.split;                                                   \
        quantize<T, format>(p.of[second], blockIdx.x - (second ? p.split : 0u),                \
                            second ? gridDim.x - p.split : p.split);                           \
    }

KERNEL(f32_e4m3, float, OCTET_E4M3, 3)
KERNEL(f32_e5m2, float, OCTET_E5M2, 3)
KERNEL(bf16_e4m3, oct_bf16, OCTET_E4M3, 3)
KERNEL(bf16_e5m2, oct_bf16, OCTET_E5M2, 3)
KERNEL(f16_e4m3, oct_f16, OCTET_E4M3, 2)
KERNEL(f16_e5m2, oct_f16, OCTET_E5M2, 2)
