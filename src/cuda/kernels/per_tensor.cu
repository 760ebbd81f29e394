/* per_tensor.cu - FP8 with one scale per tensor, rows and columns from one read.
 *
 * Codes are those of src/cpu/per_tensor.c, bit for bit. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/slab.h"

#include "cuda/kernels/per_tensor.h"

static_assert(OCT_AMAX_SHARES == 2 * OCT_SLAB_THREADS, "a thread has two shares of an amax");

/* Over the block, by way of a word for each warp. */
static inline uint32_t block_max(uint32_t *words, uint32_t most) {
    most = oct_warp_max(most);
    if (threadIdx.x % OCT_WARP == 0) {
        words[threadIdx.x / OCT_WARP] = most;
    }
    __syncthreads();
    return oct_warp_max(words[threadIdx.x % OCT_SLAB_WARPS]);
}

/* Shares of the amax are joined while the tile is on its way. */
static inline float scale_of(uint32_t *words, const oct_per_tensor_params &p) {
    if (p.scale) {
        return *p.scale;
    }
    float amax;
    if (p.shares) {
        uint2 two = oct_stream8(p.shares + 2 * threadIdx.x);
        amax = oct_bits_f32(block_max(words, oct_max_bits(two.x, two.y)));
    } else {
        amax = *p.amax;
    }
    return oct_scale_of(amax, &p.rule);
}

template <class T, int FORMAT>
static inline void quantize(const oct_per_tensor_params &p, uint32_t tile, uint32_t tiles) {
    __shared__ oct_slab_turned<T> turned;
    __shared__ oct_tile_leaves<oct_slab<T>::cols> leaves;
    __shared__ uint32_t words[OCT_SLAB_WARPS];
    oct_patch<T> patch = oct_slab_patch<T>(p.q, p.q.backward ? tiles - 1u - tile : tile);
    bool measured = p.shares != nullptr; /* by the launch before, which has read all of it */
    if (!measured) {
        oct_after();
    }
    oct_patch_load(patch, p.q);
    if (measured) {
        oct_after();
    }
    float scale = scale_of(words, p);
    if (p.inverse && tile == 0 && threadIdx.x == 0) {
        *p.inverse = 1.0f / scale;
    }
    if (p.new_amax) {
        uint32_t most = oct_warp_max(oct_patch_max(patch));
        if (threadIdx.x % OCT_WARP == 0) {
            words[threadIdx.x / OCT_WARP] = most;
        }
    }
    if (p.q.sums) {
        oct_leaves_put(leaves, patch);
    }
    oct_slab_encode<T, FORMAT>(turned, patch, p.q, scale);
    __syncthreads();
    if (p.q.sums) {
        oct_leaves_store(leaves, patch, p.q);
    }
    if (p.q.col) {
        oct_slab_store(turned, patch, p.q);
    }
    if (p.new_amax && threadIdx.x == 0) {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < OCT_SLAB_WARPS; i++) {
            most = oct_max_bits(most, words[i]);
        }
        oct_record(p.new_amax, most);
    }
}

/* Each tensor has code of its own, so that what it is told is read where it is needed and takes
 * no registers. resident: blocks on a multiprocessor, at least; as many as registers hold
 * without spilling. */
#define KERNEL(name, T, format, resident)                                                      \
    extern "C" __global__ void __launch_bounds__(OCT_SLAB_THREADS, resident)                   \
        per_tensor_##name(const __grid_constant__ oct_per_tensor_two p) {                      \
        if (blockIdx.x < p.split) {                                                            \
            quantize<T, format>(p.of[0], blockIdx.x, p.split);                                 \
        } else {                                                                               \
            quantize<T, format>(p.of[1], blockIdx.x - p.split, gridDim.x - p.split);           \
        }                                                                                      \
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
