/* chunks.c - a product in pieces, each of which is scattered while the next is made. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/quantizer.h"

octet_status oct_linear_check_chunks(const octet_linear_args *args, octet_error *err) {
    if (args->chunks > OCTET_MOST_CHUNKS) {
        return oct_fail(err, OCTET_INVALID, "chunks is %lu; a product has %d pieces at most",
                        (unsigned long)args->chunks, OCTET_MOST_CHUNKS);
    }
    if (args->chunks > 1 && !args->sequence_parallel) {
        return oct_fail(err, OCTET_INVALID,
                        "chunks is %lu without sequence_parallel: nothing is scattered, so no "
                        "product is made in pieces; leave it out",
                        (unsigned long)args->chunks);
    }
    return OCTET_OK;
}

/* A piece begins with a block of the weight, on a boundary of 16 bytes; scales in the order of
 * tensor cores lie in tiles of 128. Example: 4 pieces of a weight in 128 x 128 blocks: 512. */
uint32_t oct_linear_col_multiple(const octet_linear_args *args, const oct_facts *facts) {
    const octet_quantizer *given = &args->weight.quantizer;
    const octet_quantizer *q = oct_quantizer_is(given) ? given : &facts->role[OCTET_WEIGHT];
    bool blocks = oct_quantizer_is(q) && !oct_quantizer_one_scale(q);
    const octet_device *device = &args->input.device;
    bool tiles =
        q->swizzled || oct_target_of(device)->reads_swizzled(device, (octet_scheme)q->scheme);
    bool wide = blocks && (tiles || q->scheme == OCTET_FP8_BLOCK);
    return facts->chunks > 1 ? facts->chunks * (wide ? 128 : 16) : 1;
}
