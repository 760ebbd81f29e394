/* delayed.cu - delayed scaling's state: amaxes recorded, the history rolled, scales updated. */
#ifndef _Static_assert
#define _Static_assert static_assert
#endif
#include "cuda/kernels/chain.h"
#include "cuda/kernels/delayed.h"
#include "format/scaling.h"

extern "C" __global__ void delayed_record(const oct_delayed_params p) {
    oct_after();
    int64_t slot = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (slot < p.slots) {
        p.history[slot] = oct_delayed_larger(p.history[slot], p.amax[slot]);
    }
}

#define DEEP 8 /* rows of a thread, read before the first of them is written */
#define WARP 32

/* Where a thread stands: `lanes` threads share a slot, and its rows. */
struct place {
    int64_t slot;
    int lane, lanes;
    bool there; /* the slot exists */
};

static inline place place_of(const oct_delayed_params &p) {
    int column = (int)threadIdx.x & ((1 << p.shift) - 1);
    int64_t slot = ((int64_t)blockIdx.x << p.shift) + column;
    return {slot, (int)threadIdx.x >> p.shift, OCT_DELAYED_THREADS >> p.shift, slot < p.slots};
}

/* Every row takes its successor, the last one `last`; row 0 is left to the caller. A round
 * reads the first row of the next and writes none of it. Gives the largest of what this thread
 * read; NaN where that is nothing. */
static inline float roll(const oct_delayed_params &p, const place &at, float last) {
    bool updates = at.there && last != 0.0f;
    float most = oct_bits_f32(0x7fffffffu);
    for (int64_t base = 0; base < p.length; base += at.lanes * DEEP) {
        float next[DEEP];
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            int64_t row = base + k * at.lanes + at.lane;
            bool inside = at.there && row + 1 < p.length;
            next[k] = inside ? p.history[(row + 1) * p.slots + at.slot] : last;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            int64_t row = base + k * at.lanes + at.lane;
            most = oct_delayed_larger(most, next[k]);
            if (updates && row > 0 && row < p.length) {
                p.history[row * p.slots + at.slot] = next[k];
            }
        }
    }
    return most;
}

/* The largest of a slot, in its first thread. */
static inline float largest(float most, int shift) {
    __shared__ float found[OCT_DELAYED_THREADS / WARP][1 << OCT_DELAYED_SHIFT];
    int wide = 1 << shift;
    for (int apart = wide; apart < WARP; apart *= 2) {
        most = oct_delayed_larger(most, __shfl_xor_sync(0xffffffffu, most, apart));
    }
    if ((int)threadIdx.x % WARP < wide) {
        found[threadIdx.x / WARP][threadIdx.x % WARP] = most;
    }
    __syncthreads();
#pragma unroll
    for (int i = 1; i < OCT_DELAYED_THREADS / WARP; i++) {
        most = oct_delayed_larger(most, found[i][threadIdx.x & (unsigned)(wide - 1)]);
    }
    return most;
}

/* Records, and then updates the slots that have a new amax. Division is IEEE's. */
static inline void update(const oct_delayed_params &p) {
    place at = place_of(p);
    float first = at.there ? p.history[at.slot] : 0.0f;
    if (at.there && p.amax) {
        first = oct_delayed_larger(first, p.amax[at.slot]);
    }
    float reduced = at.there && p.reduced ? p.reduced[at.slot] : 0.0f;
    float last = reduced != 0.0f ? reduced : first;
    float most = largest(roll(p, at, last), p.shift);
    if (at.lane > 0 || !at.there) {
        return;
    }
    p.history[at.slot] = last != 0.0f ? 0.0f : first;
    if (last != 0.0f) {
        p.scale[at.slot] =
            oct_delayed_scale(p.scale[at.slot], p.most_recent ? last : most, p.aim);
    }
}

extern "C" __global__ void __launch_bounds__(OCT_DELAYED_THREADS)
    delayed_update(const oct_delayed_params p) {
    oct_after();
    update(p);
}

/* blockIdx.y says which state. */
extern "C" __global__ void __launch_bounds__(OCT_DELAYED_THREADS)
    delayed_update_many(const __grid_constant__ oct_delayed_many many) {
    oct_after();
    oct_delayed_params p = many.of;
    p.scale = many.scale[blockIdx.y];
    p.history = many.history[blockIdx.y];
    update(p);
}
