/* selftest.cu - kernels that test the emulation itself. */
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
