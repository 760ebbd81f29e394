/* zero.cu - zeros in a few short places at once, and a random state that is drawn from. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/zero.h"

#include "format/philox.h"

extern "C" __global__ void __launch_bounds__(OCT_ZERO_THREADS)
    zero_spans(const oct_zero_params p) {
    oct_after();
    const oct_zero_span span = p.spans[blockIdx.x];
    int64_t step = static_cast<int64_t>(gridDim.y) * OCT_ZERO_THREADS;
    for (int64_t i = blockIdx.y * OCT_ZERO_THREADS + threadIdx.x; i < span.words; i += step) {
        span.to[i] = 0;
    }
    if (p.random && blockIdx.x + blockIdx.y + threadIdx.x == 0) {
        p.drawn[0] = p.random[0];
        p.drawn[1] = p.random[1];
        oct_random_advance(p.random);
    }
}
