/* sums.cu - around a product of the GEMM library's: its factor before, dst from its sums after.
 */
#include "cuda/kernels/alpha.h"
#include "cuda/kernels/chain.h"
#include "cuda/kernels/finish.h"

/* Columns of a row that a thread finishes, a block's width apart; their sums are on their way
 * together. */
#define FINISH_DEEP 4

static __device__ __forceinline__ void finish_four(const oct_gemm_finish_params &p,
                                                   const oct_finish &f, int64_t i,
                                                   int64_t first) {
    float sums[FINISH_DEEP];
    int64_t row = p.first + i;
#pragma unroll
    for (int k = 0; k < FINISH_DEEP; k++) {
        int64_t col = first + k * OCT_GEMM_THREADS;
        sums[k] = col < p.gemm.b.outer ? p.sums[i * p.pitch + col] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < FINISH_DEEP; k++) {
        int64_t col = first + k * OCT_GEMM_THREADS;
        if (col < p.gemm.b.outer) {
            float value = oct_finished(p.gemm, f, sums[k], row, col);
            oct_store_plain(p.gemm.dst, row * p.gemm.stride + col, p.gemm.dtype, value);
        }
    }
}

/* dst from sums that another product left in memory. */
extern "C" __global__ void __launch_bounds__(OCT_GEMM_THREADS)
    gemm_finish(oct_gemm_finish_params p) {
    oct_after();
    oct_finish f = oct_finish_of(p.gemm);
    for (int64_t i = blockIdx.x; i < p.count; i += gridDim.x) {
        for (int64_t col = threadIdx.x; col < p.gemm.b.outer;
             col += FINISH_DEEP * OCT_GEMM_THREADS) {
            finish_four(p, f, i, col);
        }
    }
}

extern "C" __global__ void gemm_alpha(oct_gemm_alpha_params p) {
    oct_after();
    oct_make_alpha(p);
}
