/* zero.c - zeros in a few short places, by one launch.
 *
 * A GPU that changes from a kernel to a fill and back waits some microseconds each time. */
#include "cuda/kernels/zero.h"

#include "core/size.h"
#include "cuda/device.h"

#define BLOCK_WORDS (16 * OCT_ZERO_THREADS) /* for a block to write before there is another */
#define BLOCKS 64                           /* that share a span, at most */

octet_status oct_cuda_zero_spans(const oct_cuda_on *on, const oct_cuda_span *spans, int count,
                                 octet_error *err) {
    oct_zero_params params = {.spans = {{NULL, 0}}};
    int64_t most = 0;
    for (int i = 0; i < count; i++) {
        params.spans[i] = (oct_zero_span){spans[i].to, spans[i].bytes / 4};
        most = params.spans[i].words > most ? params.spans[i].words : most;
    }
    int64_t blocks = oct_size_ceil_div(most, BLOCK_WORDS);
    oct_cuda_launch launch = {
        .module = OCT_MODULE_zero,
        .kernel = "zero_spans",
        .grid = {(uint32_t)count, (uint32_t)(blocks < BLOCKS ? blocks : BLOCKS), 1},
        .threads = OCT_ZERO_THREADS,
        .params = &params,
        .params_bytes = sizeof params};
    return oct_cuda_launch_kernel(on, &launch, err);
}
