/* planner.c - how the plan of a Linear begins, and the shapes of its arguments. */
#include "linear/planner.h"

#include "quant/layout.h"
#include "quant/quantizer.h"

/* Whether a plan has the product that ends in a reduce-scatter: each rank receives its rows of
 * the sum over ranks. With sequence parallelism this is dgrad of a column parallel layer, and
 * fprop of a row parallel one. Only that product is made in chunks of columns.
 * e.g. `parallel=row sequence tp=2 chunks=2`: "fprop output.partial = input x weight, chunk 1
 * of 2"
 * e.g. `parallel=column sequence tp=2 chunks=2`: "dgrad grad_input.partial = grad_output x
 * weight, chunk 1 of 2" */
static bool scatters(const oct_facts *f, octet_plan_kind kind) {
    bool dgrad = kind == OCTET_PLAN_LINEAR_BACKWARD && f->dgrad;
    return f->sequence &&
           (f->parallel == OCTET_PARALLEL_COLUMN ? dgrad : kind == OCTET_PLAN_LINEAR);
}

/* Whether it has a product whose operand ranks gather in chunks: fprop of column parallel, and
 * dgrad of row parallel. Values that are quantized after they were gathered are not cut: blocks
 * of the whole would have rows of several pieces.
 * e.g. `parallel=column sequence tp=2 gather_chunks=2`: "fprop output.piece = input.piece"
 * e.g. `parallel=row sequence tp=2 gather_chunks=2`: "dgrad grad_input.piece =
 * grad_output.piece"
 * e.g. `m=40 recipe=mxfp8 parallel=column sequence tp=2 gather_chunks=2 gather=high_precision`:
 * no "chunk 1" */
static bool gathers_chunks(const octet_linear_args *args, const oct_facts *f,
                           octet_plan_kind kind) {
    bool column = f->parallel == OCTET_PARALLEL_COLUMN;
    bool here =
        column ? kind == OCTET_PLAN_LINEAR : kind == OCTET_PLAN_LINEAR_BACKWARD && f->dgrad;
    const octet_quantizer *role = &f->role[column ? OCTET_INPUT : OCTET_GRAD_OUTPUT];
    bool quantizes = oct_quantizer_is(role) && (column ? f->quantized : f->quantized_back);
    return f->gather_chunks > 1 && here &&
           !(quantizes && args->gather == OCTET_GATHER_HIGH_PRECISION);
}

oct_planner oct_planner_start(oct_builder *b, octet_plan *plan, octet_plan_kind kind,
                              const octet_linear_args *args, octet_error *err) {
    oct_planner p = {.b = b, .args = args, .facts = oct_linear_facts(args)};
    p.sums = p.x = p.stats = p.gamma = p.beta = p.packed = OCTET_ABSENT;
    oct_build_options options = {.kind = kind,
                                 .device = args->input.device,
                                 .extents = p.facts.extents,
                                 .recipe = (octet_recipe_kind)args->recipe.kind,
                                 .dtype = p.facts.dtype,
                                 .ranks = p.facts.tp,
                                 .threads = args->threads,
                                 .slots = kind == OCTET_PLAN_LINEAR ? OCTET_FORWARD_SLOTS
                                                                    : OCTET_BACKWARD_SLOTS,
                                 .raises = args->raise_amax,
                                 .skips = args->skip_amax,
                                 .exact = args->recipe.product == OCTET_MX_EXACT,
                                 .invariant = args->recipe.batch_invariant};
    *b = oct_build_start(plan, &options, err);
    plan->row_multiple = oct_linear_row_multiple(args, &p.facts);
    if (scatters(&p.facts, kind)) {
        plan->chunks = (uint8_t)p.facts.chunks;
        plan->chunk_multiple = oct_linear_col_multiple(args, &p.facts);
    } else if (gathers_chunks(args, &p.facts, kind)) {
        plan->chunks = (uint8_t)p.facts.gather_chunks;
        plan->chunk_multiple = oct_linear_piece_multiple(args, &p.facts);
        plan->by_rows = 1;
    }
    plan->prologue = args->prologue;
    plan->eps = args->eps;
    plan->zero_centered = args->zero_centered;
    return p;
}

oct_operand oct_gathered(oct_planner *p, uint8_t tensor, octet_use use, octet_place place) {
    /* In pieces, of which the caller's product takes one after the other.
     * e.g. `parallel=column sequence tp=2 gather_chunks=2`: "all-gather input -> input.piece,
     * chunk 1 of 2" */
    if (p->b->plan->by_rows) {
        p->pieces = oct_gather_pieces(p->b, tensor, use);
        return (oct_operand){p->pieces.at[0], (uint8_t)use};
    }
    uint8_t all = use == OCTET_USE_VALUES ? oct_gather_values(p->b, tensor, place)
                                          : oct_gather_bytes(p->b, tensor, use, place);
    return (oct_operand){all, (uint8_t)use};
}

/* grad_output has the rows of the output. m counts the rows of this rank's input. Without
 * sequence parallelism these are the output's. Column parallel gathers them: the output has tp
 * times as many. Row parallel scatters the output: it has a tp-th of them.
 * e.g. `m=64 parallel=column tp=4`: "grad_output bf16 (64, 256)"
 * e.g. `m=64 parallel=column sequence tp=4`: "grad_output bf16 (256, 256)"
 * e.g. `m=64 parallel=row sequence tp=4`: "grad_output bf16 (16, 256)" */
static octet_dim grad_output_rows(const oct_facts *f) {
    return !f->sequence                           ? oct_dim_of(OCTET_AXIS_M, 1, 1)
           : f->parallel == OCTET_PARALLEL_COLUMN ? oct_axis_times(OCTET_AXIS_M, f->tp)
                                                  : oct_axis_over(OCTET_AXIS_M, f->tp);
}

uint8_t oct_linear_argument(oct_planner *p, octet_plan_name name, const octet_proto *proto) {
    octet_dim rows = oct_dim_of(OCTET_AXIS_M, 1, 1), cols = oct_dim_of(OCTET_AXIS_K, 1, 1);
    if (name == OCTET_NAME_INPUT) {
        /* (m, k), or with a gated prologue (m, 2k) */
        cols = oct_input_columns(p);
    } else if (name == OCTET_NAME_WEIGHT || name == OCTET_NAME_MAIN_GRAD) {
        /* (n, k) */
        rows = oct_dim_of(OCTET_AXIS_N, 1, 1);
    } else if (name == OCTET_NAME_BIAS || name == OCTET_NAME_BIAS_MAIN_GRAD) {
        /* (n), as a matrix of one row */
        rows = oct_dim_of(OCTET_AXIS_ONE, 1, 1);
        cols = oct_dim_of(OCTET_AXIS_N, 1, 1);
    } else if (name == OCTET_NAME_GAMMA || name == OCTET_NAME_BETA) {
        /* (k), likewise */
        rows = oct_dim_of(OCTET_AXIS_ONE, 1, 1);
    } else if (name == OCTET_NAME_GRAD_OUTPUT) {
        /* (rows of the output, n) */
        rows = grad_output_rows(&p->facts);
        cols = oct_dim_of(OCTET_AXIS_N, 1, 1);
    }
    return oct_argument(p->b, name, proto, rows, cols);
}

uint8_t oct_written_argument(oct_planner *p, octet_plan_name name, const octet_proto *of,
                             uint8_t dtype) {
    octet_proto proto = *of;
    proto.dtype = dtype ? dtype : OCTET_F32;
    proto.quantizer = oct_quantizer_default(OCTET_SCHEME_NONE);
    uint8_t tensor = oct_linear_argument(p, name, &proto);
    p->b->plan->args[p->b->plan->buffers[oct_buffer_of(p->b, tensor)].port].is_mutable = 1;
    return tensor;
}
