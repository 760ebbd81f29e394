/* chunks.c - products in pieces: scattered, or gathered, while others are made. */
#include "core/fail.h"
#include "format/scheme.h"
#include "linear/planner.h"
#include "quant/quantizer.h"

static octet_status check_count(const char *name, uint32_t count, const char *moved,
                                bool sequence, octet_error *err) {
    if (count > OCTET_MOST_CHUNKS) {
        return oct_fail(err, OCTET_INVALID, "%s is %lu; a product has %d pieces at most", name,
                        (unsigned long)count, OCTET_MOST_CHUNKS);
    }
    if (count > 1 && !sequence) {
        return oct_fail(err, OCTET_INVALID,
                        "%s is %lu without sequence_parallel: nothing is %s, so no "
                        "product is made in pieces; leave it out",
                        name, (unsigned long)count, moved);
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

/* What the columns of a product in chunks must be a multiple of. Each piece reads its own part
 * of the weight. That part begins
 * - with a whole tile, where scales are in the order of tensor cores. Example: MXFP8 on compute
 *   capability 10.0, 128;
 * - with a whole block, where scales are floats. Example: 4 pieces in 128 x 128 blocks, 512;
 * - else on a boundary of 16 bytes: a line has scales of its own, or the tensor has one. */
uint32_t oct_linear_col_multiple(const octet_linear_args *args, const oct_facts *facts) {
    const octet_quantizer *given = &args->weight.quantizer;
    const octet_quantizer *q = oct_quantizer_is(given) ? given : &facts->role[OCTET_WEIGHT];
    bool blocks = oct_quantizer_is(q) && !oct_quantizer_one_scale(q);
    const octet_device *device = &args->input.device;
    bool tiles =
        q->swizzled || oct_target_of(device)->reads_swizzled(device, (octet_scheme)q->scheme);
    uint32_t step = blocks && tiles                     ? OCT_SCALE_TILE
                    : blocks && oct_has_float_scales(q) ? oct_scheme_of(q)->block
                                                        : 16;
    return facts->chunks > 1 ? facts->chunks * step : 1;
}

/* A piece has as many rows of each rank, and whole blocks of rows: those that a scale covers,
 * and tiles of 128 where the caller's scales lie in the order of tensor cores. Examples: 4
 * pieces of MXFP8's rows, 4; of 128 x 128 blocks, 512. Row parallel splits m over the ranks. */
uint32_t oct_linear_piece_multiple(const octet_linear_args *args, const oct_facts *facts) {
    const octet_quantizer *q = oct_linear_joined(args, facts);
    uint32_t rows = q && q->block_rows > 1 ? q->block_rows : 1;
    rows = q && q->swizzled && rows < OCT_SCALE_TILE ? OCT_SCALE_TILE : rows;
    bool row = facts->parallel == OCTET_PARALLEL_ROW;
    return facts->gather_chunks * rows * (row ? facts->tp : 1);
}
