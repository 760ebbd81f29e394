/* pipe.h - a block's slabs one after the other, the next one's elements on their way meanwhile.
 *
 * They go to shared memory, where each thread has room for its own patch and no other, so they
 * need no barrier. A launch has no more blocks than fit on the GPU at once, each with as many
 * tiles; where shared memory has no room for that, as many blocks as tiles. */
#ifndef OCT_CUDA_KERNELS_PIPE_H
#define OCT_CUDA_KERNELS_PIPE_H

#include "cuda/kernels/chain.h"
#include "cuda/kernels/dynamic.h"
#include "cuda/kernels/slab.h"

struct oct_next {
    uint4 rows[OCT_PATCH_ROWS][OCT_SLAB_THREADS];
};

static_assert(sizeof(oct_next) == OCT_NEXT_BYTES, "what the host asks for");

template <class T>
static inline bool oct_is_fetched(const oct_patch<T> &p, const oct_quantize_params &q) {
    return p.full && q.wide_source;
}

template <class T>
static inline void oct_fetch(oct_next *next, const oct_patch<T> &p,
                             const oct_quantize_params &q) {
    if (oct_is_fetched(p, q)) {
        const T *from = oct_patch_from(p, q);
#pragma unroll
        for (int r = 0; r < OCT_PATCH_ROWS; r++) {
            oct_fetch16(&next->rows[r][threadIdx.x], from + r * q.stride);
        }
    }
}

/* What was fetched; what was not is loaded now. */
template <class T>
static inline void oct_take(oct_patch<T> &p, const oct_next *next,
                            const oct_quantize_params &q) {
    if (!oct_is_fetched(p, q)) {
        oct_patch_load(p, q);
        return;
    }
    oct_fetched();
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        p.raw[r] = next->rows[r][threadIdx.x];
    }
}

/* The n-th tile of a launch: its tensor, and which of that one's. */
struct oct_tile_place {
    uint32_t second, tile;
};

template <class TWO> static inline oct_tile_place oct_tile_at(const TWO &two, uint32_t n) {
    uint32_t second = n >= two.split, at = second ? n - two.split : n;
    uint32_t tiles = second ? two.tiles - two.split : two.split;
    return {second, two.of[second].q.backward ? tiles - 1u - at : at};
}

/* By a block: every gridDim.x-th tile of one tensor or two. work(patch, params, n) does the
 * n-th; a barrier lies between one and the next. `measured`: an earlier launch of the run has
 * read all of both. */
template <class T, class TWO, class F>
static inline void oct_each_slab(const TWO &two, bool measured, const F &work) {
    OCT_DYNAMIC_SHARED(oct_next, next);
    uint32_t n = blockIdx.x;
    oct_tile_place at = oct_tile_at(two, n);
    oct_patch<T> patch = oct_slab_patch<T>(two.of[at.second].q, at.tile);
    if (!measured) {
        oct_after();
    }
    oct_patch_load(patch, two.of[at.second].q);
    for (;;) {
        uint32_t later = n + gridDim.x;
        oct_tile_place then = oct_tile_at(two, later);
        if (later < two.tiles) {
            const oct_quantize_params &q = two.of[then.second].q;
            oct_fetch(next, oct_slab_patch<T>(q, then.tile), q);
        }
        if (measured && n == blockIdx.x) {
            oct_after();
        }
        work(patch, two.of[at.second], n);
        if (later >= two.tiles) {
            return;
        }
        __syncthreads();
        n = later;
        at = then;
        patch = oct_slab_patch<T>(two.of[at.second].q, at.tile);
        oct_take(patch, next, two.of[at.second].q);
    }
}

#endif
