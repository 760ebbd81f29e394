/* delayed.cu - delayed scaling's state: amaxes recorded, the history rolled, scales moved. */
#ifndef _Static_assert
#define _Static_assert static_assert
#endif
#include "cuda/kernels/delayed.h"
#include "format/scaling.h"

extern "C" __global__ void delayed_record(const oct_delayed_params p) {
    int64_t slot = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (slot < p.slots) {
        p.history[slot] = oct_delayed_larger(p.history[slot], p.amax[slot]);
    }
}

#define DEEP 4 /* rows of a thread, read before the first of them is written */

/* Rows 1 to length - 1 take their successor's place; the last row takes `last`. Gives the
 * largest of what this thread read; NaN where that is nothing. */
static inline float roll(const oct_delayed_params &p, int64_t slot, bool moves, float last) {
    int lane = (int)threadIdx.x / OCT_DELAYED_SLOTS;
    float most = oct_bits_f32(0x7fffffffu);
    for (int64_t base = 1; base < p.length; base += OCT_DELAYED_LANES * DEEP) {
        float next[DEEP];
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            int64_t row = base + k * OCT_DELAYED_LANES + lane;
            next[k] =
                moves && row + 1 < p.length ? p.history[(row + 1) * p.slots + slot] : last;
            if (moves && row < p.length) {
                most = oct_delayed_larger(most, next[k]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            int64_t row = base + k * OCT_DELAYED_LANES + lane;
            if (moves && row < p.length) {
                p.history[row * p.slots + slot] = next[k];
            }
        }
        __syncthreads();
    }
    return most;
}

/* A slot without a new amax does not move. Division is IEEE's. */
extern "C" __global__ void __launch_bounds__(OCT_DELAYED_THREADS)
    delayed_update(const oct_delayed_params p) {
    __shared__ float found[OCT_DELAYED_LANES][OCT_DELAYED_SLOTS];
    int column = (int)threadIdx.x % OCT_DELAYED_SLOTS;
    int lane = (int)threadIdx.x / OCT_DELAYED_SLOTS;
    int64_t slot = (int64_t)blockIdx.x * OCT_DELAYED_SLOTS + column;
    bool there = slot < p.slots;
    float last = there && p.amax ? p.amax[slot] : 0.0f;
    last = there && last == 0.0f ? p.history[slot] : last;
    bool moves = there && last != 0.0f;
    float second = moves && p.length > 1 ? p.history[p.slots + slot] : last;
    __syncthreads();
    float most = roll(p, slot, moves, last);
    found[lane][column] = lane == 0 ? oct_delayed_larger(most, second) : most;
    __syncthreads();
    if (lane == 0 && moves) {
        float amax = last;
        for (int i = 0; i < OCT_DELAYED_LANES && !p.most_recent; i++) {
            amax = oct_delayed_larger(amax, found[i][column]);
        }
        p.history[slot] = 0.0f;
        p.scale[slot] = oct_delayed_scale(p.scale[slot], amax, p.aim);
    }
}

/* The next step of stochastic rounding. */
extern "C" __global__ void random_advance(const oct_advance_params p) {
    p.random[1] = (int64_t)((uint64_t)p.random[1] + p.by);
}
