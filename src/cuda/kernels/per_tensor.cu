/* per_tensor.cu - FP8 with one scale per tensor, rows and columns from one read.
 *
 * Codes are those of src/cpu/per_tensor.c, bit for bit. */
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/pipe.h"
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

/* Shares of the amax are joined while a tile is on its way. */
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

template <class T> struct tile_memory {
    oct_slab_turned<T> turned;
    oct_tile_leaves<oct_slab<T>::cols> leaves;
    uint32_t words[OCT_SLAB_WARPS];
};

template <class T, int FORMAT>
static inline void quantize(tile_memory<T> &memory, const oct_patch<T> &patch,
                            const oct_per_tensor_params &p, float scale) {
    if (p.new_amax) {
        uint32_t most = oct_warp_max(oct_patch_max(patch));
        if (threadIdx.x % OCT_WARP == 0) {
            memory.words[threadIdx.x / OCT_WARP] = most;
        }
    }
    if (p.q.sums) {
        oct_leaves_put(memory.leaves, patch);
    }
    oct_slab_encode<T, FORMAT>(memory.turned, patch, p.q, scale);
    __syncthreads();
    if (p.q.sums) {
        oct_leaves_store(memory.leaves, patch, p.q);
    }
    if (p.q.col) {
        oct_slab_store(memory.turned, patch, p.q);
    }
    if (p.new_amax && threadIdx.x == 0) {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < OCT_SLAB_WARPS; i++) {
            most = oct_max_bits(most, memory.words[i]);
        }
        oct_record(p.new_amax, most);
    }
}

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
