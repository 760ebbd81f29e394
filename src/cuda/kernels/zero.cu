/* zero.cu - zeros in a few short places at once. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/zero.h"

extern "C" __global__ void __launch_bounds__(OCT_ZERO_THREADS)
    zero_spans(const oct_zero_params p) {
    oct_after();
    const oct_zero_span span = p.spans[blockIdx.x];
    int64_t step = static_cast<int64_t>(gridDim.y) * OCT_ZERO_THREADS;
    for (int64_t i = blockIdx.y * OCT_ZERO_THREADS + threadIdx.x; i < span.words; i += step) {
        span.to[i] = 0;
    }
}
