/* chunks.c - products in chunks: one is scattered, or gathered, while another is multiplied. */
#include "core/fail.h"
#include "format/scheme.h"
#include "linear/planner.h"
#include "quant/quantizer.h"

#define CHUNK_START 16 /* elements: a boundary of 16 bytes in FP8, and in what is wider */

static octet_status check_count(const char *name, uint32_t count, const char *verb,
                                bool sequence, octet_error *err) {
    if (count > OCTET_MOST_CHUNKS) {
        return oct_fail(err, OCTET_INVALID, "%s is %lu; a product has %d chunks at most", name,
                        (unsigned long)count, OCTET_MOST_CHUNKS);
    }
    if (count > 1 && !sequence) {
        return oct_fail(err, OCTET_INVALID,
                        "%s is %lu without sequence_parallel: nothing is %s, so no "
                        "product is made in chunks; leave it out",
                        name, (unsigned long)count, verb);
    }
    return OCTET_OK;
}

octet_status oct_linear_check_chunks(const octet_linear_args *args, octet_error *err) {
    bool sequence = args->sequence_parallel != 0;
    octet_status status = check_count("chunks", args->chunks, "scattered", sequence, err);
    return status
               ? status
               : check_count("gather_chunks", args->gather_chunks, "gathered", sequence, err);
}

/* What the columns of a product in chunks must be a multiple of. Each chunk reads its own part
 * of the weight. That part begins
 * - with a whole tile, where scales are in the order of tensor cores: 4 chunks, 512;
 *   e.g. `n=512 recipe=mxfp8 parallel=row sequence tp=2 chunks=4 device=cuda:0/100`: "chunk 4
 * of 4"
 * - with a whole block, where scales are floats: 4 chunks in 128 x 128 blocks, 512;
 *   e.g. `n=512 recipe=block parallel=row sequence tp=2 chunks=4`: "chunk 4 of 4"
 * - else on CHUNK_START: a row has scales of its own, or the tensor has one.
 *   e.g. `n=64 recipe=mxfp8 parallel=row sequence tp=2 chunks=4`: "chunk 4 of 4" */
uint32_t oct_linear_col_multiple(const octet_linear_args *args, const oct_facts *facts) {
    const octet_quantizer *given = &args->weight.quantizer;
    const octet_quantizer *q = oct_quantizer_is(given) ? given : &facts->role[OCTET_WEIGHT];
    bool blocks = oct_quantizer_is(q) && !oct_quantizer_one_scale(q);
    const octet_device *device = &args->input.device;
    bool tiles =
        q->swizzled || oct_target_of(device)->reads_swizzled(device, (octet_scheme)q->scheme);
    uint32_t start = blocks && tiles                     ? OCT_SCALE_TILE
                     : blocks && oct_has_float_scales(q) ? oct_scheme_of(q)->block
                                                         : CHUNK_START;
    return facts->chunks > 1 ? facts->chunks * start : 1;
}

/* A piece has as many rows of each rank, and whole blocks of rows: those that a scale covers,
 * and tiles of 128 where the caller's scales lie in the order of tensor cores. Row parallel
 * splits m over the ranks. For 4 chunks m is a multiple of 4 where scales are of one row, and
 * of 512 in 128 x 128 blocks.
 * e.g. `m=68 recipe=mxfp8 parallel=column sequence tp=2 gather_chunks=4 grad=x`: "chunk 4 of 4"
 * e.g. `m=512 recipe=block+x.2d parallel=column sequence tp=2 gather_chunks=4`: "chunk 4 of 4"
 */
uint32_t oct_linear_piece_multiple(const octet_linear_args *args, const oct_facts *facts) {
    const octet_quantizer *q = oct_gathered_quantizer(args, facts);
    uint32_t rows = q && q->block_rows > 1 ? q->block_rows : 1;
    rows = q && q->swizzled && rows < OCT_SCALE_TILE ? OCT_SCALE_TILE : rows;
    bool row = facts->parallel == OCTET_PARALLEL_ROW;
    return facts->gather_chunks * rows * (row ? facts->tp : 1);
}
