/* choose_gather.c - what of a shard is gathered: bytes, or the tensor they came from. */
#include "core/fail.h"
#include "linear/args.h"
#include "quant/proto.h"
#include "quant/quantizer.h"

/* Rows that one scale covers in the bytes that are joined along the rows; 1 where none does.
 * Examples: 128 x 128 blocks, 128; MXFP8 columnwise, 32; MXFP8 rowwise, 1. A scale for the
 * whole tensor counts as 1: ranks agree on it. */
static int64_t rows_per_block(const octet_quantizer *q, bool columnwise) {
    /* Blocks with several rows cover them in both directions. */
    if (q->block_rows > 1) {
        return q->block_rows;
    }
    /* Blocks of one row lie along the rows in columnwise bytes. */
    return columnwise && q->block_cols ? q->block_cols : 1;
}

const octet_quantizer *oct_gathered_quantizer(const octet_linear_args *args,
                                              const oct_facts *facts) {
    bool column = facts->parallel == OCTET_PARALLEL_COLUMN;
    const octet_quantizer *q = column && oct_quantizer_is(&args->input.quantizer)
                                   ? &args->input.quantizer
                                   : &facts->role[column ? OCTET_INPUT : OCTET_GRAD_OUTPUT];
    /* Column parallel joins the input, as the caller quantized it or as the recipe does. Row
     * parallel joins grad_output, in a backward that follows the recipe.
     * e.g. `recipe=mxfp8 parallel=column sequence tp=2`: "all-gather input.quantized"
     * e.g. `recipe=mxfp8 parallel=row sequence tp=2`: "all-gather grad_output.quantized"
     * e.g. `recipe=mxfp8:override=dequantized parallel=row sequence tp=2`: "all-gather
     * grad_output -> grad_output.gathered" */
    bool joins = facts->sequence && oct_quantizer_is(q) && (column || facts->quantized_back);
    return joins ? q : NULL;
}

octet_gather oct_linear_gather(const octet_linear_args *args, const oct_facts *facts) {
    bool column = facts->parallel == OCTET_PARALLEL_COLUMN;
    const octet_quantizer *q = oct_gathered_quantizer(args, facts);
    /* This rank's rows of what is joined: x has m, and dy of row parallel a share of m. */
    int64_t rows = column ? facts->extents.m : facts->extents.m / facts->tp;
    bool columnwise = facts->wgrad && facts->quantized_back;
    /* Casts of shards are the cast of the whole only if no block has rows of two ranks. With 48
     * rows a rank and blocks of 32 the second block of rank 0 would end in rank 1, so values
     * are gathered, and quantized after that. Without wgrad no block lies along the rows. e.g.
     * `m=48 recipe=mxfp8 parallel=column sequence tp=2 gather=high_precision`: "quantize
     * input.gathered -> input.quantized"
     * e.g. `m=48 recipe=mxfp8 parallel=column sequence tp=2 grad=x`: "all-gather
     * input.quantized rowwise data" */
    return q && rows % rows_per_block(q, columnwise) ? OCTET_GATHER_HIGH_PRECISION
                                                     : OCTET_GATHER_QUANTIZED;
}

uint32_t oct_linear_row_multiple(const octet_linear_args *args, const oct_facts *facts) {
    bool column = facts->parallel == OCTET_PARALLEL_COLUMN;
    const octet_quantizer *q = oct_gathered_quantizer(args, facts);
    bool columnwise = facts->wgrad && facts->quantized_back;
    bool bytes = q && args->gather == OCTET_GATHER_QUANTIZED;
    int64_t rows = bytes ? rows_per_block(q, columnwise) : 1;
    /* Row parallel splits m over the ranks, and each share must be whole blocks: 2 x 32 rows
     * for MXFP8 on 2 ranks. Without bytes to join, the ranks must still share m equally. e.g.
     * `m=64 recipe=mxfp8 parallel=row sequence tp=2`: "grad_output bf16 (32, 256)" */
    return (uint32_t)(facts->sequence && !column ? rows * facts->tp : rows);
}

octet_status octet_linear_choose_gather(octet_gather *out, const octet_linear_args *args,
                                        octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need(args, "args", err);
    if (status) {
        return status;
    }
    /* A call that its gather alone makes invalid is asking just that. */
    octet_linear_args asked = *args;
    oct_facts facts;
    asked.gather = OCTET_GATHER_HIGH_PRECISION;
    status = oct_linear_check(&asked, &facts, err);
    if (!status) {
        *out = oct_linear_gather(args, &facts);
    }
    return status;
}
