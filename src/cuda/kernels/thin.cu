/* thin.cu - the product of a few rows with a quantized matrix, read once where it lies.
 *
 * Such a product takes as long as reading b does. So b's codes go from memory to registers and
 * become f16 there, which tensor cores multiply: b's lines are the rows of their fragments, a's
 * lines the columns. The four lanes that share a line hold codes that lie side by side, not
 * those that a fragment names: a is held in the same order, and a sum has any. Warps of a block
 * share the length of the product; their sums are added in order, so a product gives the same
 * bytes each time.
 *
 * Sums of FP8's blocks are multiplied by both scales and added in fp32. FP4's codes are
 * multiplied by their scales as f16, exactly. The bound is that of gemm.cu. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/thin.h"
#include "cuda/kernels/thin_fp4.h"
#include "cuda/kernels/thin_fp8.h"
#include "cuda/kernels/thin_mx.h"

#define PITCH (OCT_THIN_COLS + 1) /* of sums in shared memory */

/* A batch of 16 lines is 32 times 128 bytes. The cache has them when they are loaded, which may
 * be after a wait; who writes them until then writes them there. */
static __device__ __forceinline__ void ask_ahead(const oct_gemm_operand &o, int64_t first) {
    int64_t outer = first + threadIdx.x % 32 / 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int batch = static_cast<int>(threadIdx.x) / 32 + i * OCT_THIN_WARPS;
        int skip = batch * OCT_THIN_BATCH + static_cast<int>(threadIdx.x) % 2 * 128;
        if (outer < o.outer && skip < oct_thin_bytes(o)) {
            oct_ask_for(o.data + outer * o.pitch + skip);
        }
    }
}

/* A thread for each element of dst. */
template <class Work>
static __device__ __forceinline__ void finish(const oct_gemm_params &g, const oct_finish &how,
                                              const float *sums, int64_t first) {
    int at = static_cast<int>(threadIdx.x) % OCT_THIN_COLS;
    int64_t row = threadIdx.x / OCT_THIN_COLS, col = first + at;
    if (row >= g.a.outer || col >= g.b.outer) {
        return;
    }
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < OCT_THIN_WARPS; warp++) {
        sum += sums[(warp * Work::rows + row) * PITCH + at];
    }
    oct_store_plain(g.dst, row * g.stride + col, g.dtype,
                    oct_finished(g, how, sum * Work::unit, row, col));
}

template <class Work> static __device__ __forceinline__ void product(const oct_thin_params &p) {
    __shared__ float sums[OCT_THIN_WARPS * Work::rows * PITCH];
    __shared__ oct_finish how;
    const oct_gemm_params &g = p.gemm;
    int64_t first = static_cast<int64_t>(blockIdx.x) * OCT_THIN_COLS;
    if (blockIdx.x < p.ahead) {
        ask_ahead(g.b, first);
    }
    oct_after();
    if (threadIdx.x == OCT_THIN_THREADS - 1) { /* on its way while the others load */
        how = oct_finish_of(g);
    }
    Work work;
    work.begin(g, first);
    int warp = static_cast<int>(threadIdx.x) / 32;
    int left = oct_thin_bytes(g.b) - warp * OCT_THIN_BATCH;
    for (; left > 0; left -= OCT_THIN_WARPS * OCT_THIN_BATCH) {
        work.add_batch(g, left);
    }
    work.end();
    work.put(sums + warp * Work::rows * PITCH, PITCH);
    __syncthreads();
    if (threadIdx.x < Work::rows * OCT_THIN_COLS) {
        finish<Work>(g, how, sums, first);
    }
}

/* The last number is that of dst's rows, at most. */
extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, OCT_THIN_RESIDENT)
    thin_fp8_128_8(oct_thin_params p) {
    product<oct_thin_fp8<oct_thin_128, 1>>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, 2)
    thin_fp8_128_16(oct_thin_params p) {
    product<oct_thin_fp8<oct_thin_128, 2>>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, OCT_THIN_RESIDENT)
    thin_mx_1(oct_thin_params p) {
    product<oct_thin_mx<1>>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, 2) thin_mx_2(oct_thin_params p) {
    product<oct_thin_mx<2>>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, 2) thin_mx_4(oct_thin_params p) {
    product<oct_thin_mx<4>>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, OCT_THIN_RESIDENT)
    thin_fp8_32_8(oct_thin_params p) {
    product<oct_thin_fp8<oct_thin_32, 1>>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, 2)
    thin_fp8_32_16(oct_thin_params p) {
    product<oct_thin_fp8<oct_thin_32, 2>>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, OCT_THIN_RESIDENT)
    thin_fp4_8(oct_thin_params p) {
    product<oct_thin_fp4<1>>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_THIN_THREADS, 2)
    thin_fp4_16(oct_thin_params p) {
    product<oct_thin_fp4<2>>(p);
}
