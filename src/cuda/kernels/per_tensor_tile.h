/* per_tensor_tile.h - a tile of FP8 with one scale a tensor, rows and columns from one read.
 *
 * Codes are those of src/cpu/per_tensor.c, bit for bit. */
#ifndef OCT_CUDA_KERNELS_PER_TENSOR_TILE_H
#define OCT_CUDA_KERNELS_PER_TENSOR_TILE_H

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

#endif
