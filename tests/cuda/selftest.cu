/* selftest.cu - kernels that test the emulation itself. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/dynamic.h"
#include "selftest.h"

/* Sums a block's numbers by shuffles and shared memory, then by a tree in dynamic memory. */
extern "C" __global__ void __launch_bounds__(256) selftest_sums(const selftest_params p) {
    __shared__ unsigned warps[32];
    OCT_DYNAMIC_SHARED(unsigned, tree);
    unsigned thread = threadIdx.x, lane = thread % 32;
    unsigned value = p.numbers[blockIdx.x * blockDim.x + thread];
    unsigned sum = value;
    for (int by = 16; by > 0; by /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, by);
    }
    if (lane == 0) {
        warps[thread / 32] = sum;
    }
    tree[thread] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (thread < half) {
            tree[thread] += tree[thread + half];
        }
        __syncthreads();
    }
    unsigned total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; w++) {
        total += warps[w];
    }
    if (thread == 0) {
        p.sums[2 * blockIdx.x] = total;
        p.sums[2 * blockIdx.x + 1] = tree[0];
        atomicAdd(p.total, total);
        atomicMax(p.largest, total);
    }
}

/* Writes each thread's view of its warp's shuffles, votes and reductions. */
extern "C" __global__ void selftest_warp(const selftest_params p) {
    unsigned lane = threadIdx.x % 32, value = p.numbers[threadIdx.x];
    unsigned *out = p.sums + 8 * threadIdx.x;
    out[0] = __shfl_sync(0xffffffffu, value, static_cast<int>(lane + 1));
    out[1] = __shfl_up_sync(0xffffffffu, value, 3);
    out[2] = __shfl_down_sync(0xffffffffu, value, 5, 8);
    out[3] = __ballot_sync(0xffffffffu, value & 1u);
    out[4] = __reduce_max_sync(0xffffffffu, value);
    out[5] = static_cast<unsigned>(__any_sync(0xffffffffu, value == p.numbers[7]));
    out[6] = static_cast<unsigned>(__syncthreads_count(value & 2u));
    __syncwarp();
    out[7] = __byte_perm(value, 0x80706050u, 0x7104);
}

/* Kernels with one mistake each, and without it where `numbers` is not NULL. */

/* A value of another warp, without a barrier between. */
extern "C" __global__ void selftest_no_barrier(const selftest_params p) {
    oct_after();
    __shared__ unsigned values[256];
    values[threadIdx.x] = threadIdx.x;
    if (p.numbers) {
        __syncthreads();
    }
    p.sums[blockIdx.x * blockDim.x + threadIdx.x] = values[(threadIdx.x + 32) % 256];
}

/* A value of another lane: a shuffle does not order memory. */
extern "C" __global__ void selftest_no_warp_sync(const selftest_params p) {
    oct_after();
    __shared__ unsigned values[256];
    values[threadIdx.x] = threadIdx.x;
    unsigned lane = __shfl_xor_sync(0xffffffffu, threadIdx.x, 1);
    if (p.numbers) {
        __syncwarp();
    }
    p.sums[blockIdx.x * blockDim.x + threadIdx.x] = values[lane];
}

/* The second use of memory, before all have read what the first one left. */
extern "C" __global__ void selftest_no_second_barrier(const selftest_params p) {
    oct_after();
    __shared__ unsigned value;
    for (unsigned i = 0; i < 2; i++) {
        if (threadIdx.x == 0) {
            value = i;
        }
        __syncthreads();
        p.sums[blockIdx.x * blockDim.x + threadIdx.x] = value;
        if (p.numbers) {
            __syncthreads();
        }
    }
}

/* Every block adds to one number. */
extern "C" __global__ void selftest_no_atomic(const selftest_params p) {
    oct_after();
    if (threadIdx.x == 0 && p.numbers) {
        atomicAdd(p.total, 1u);
    } else if (threadIdx.x == 0) {
        *p.total += 1;
    }
}

/* It writes before it waits. */
extern "C" __global__ void selftest_no_wait(const selftest_params p) {
    if (p.numbers) {
        oct_after();
    }
    p.sums[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    oct_after();
}

/* It reads what the launch before it, selftest_no_wait, has written, and then waits. */
extern "C" __global__ void selftest_late_wait(const selftest_params p) {
    if (p.numbers) {
        oct_after();
    }
    unsigned read = p.sums[blockIdx.x * blockDim.x + threadIdx.x];
    oct_after();
    p.sums[blockIdx.x * blockDim.x + threadIdx.x] = read + 1;
}
