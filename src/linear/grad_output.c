/* grad_output.c - dy in backward: cast and gathered, for dgrad, wgrad and the bias's gradient.
 */
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

static const oct_gathering nothing = {OCTET_ABSENT, OCTET_ABSENT};

/* Nothing is quantized: one tensor of numbers serves both products. */
static oct_grads plain_grads(oct_planner *p, uint8_t dy, bool delays) {
    octet_place place = delays ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    bool gathers = oct_gathers_grad(p);
    uint8_t values =
        oct_values(p->b, dy, p->facts.dtype, gathers ? OCTET_PLACE_EXCHANGE : place);
    /* Row parallel with sequence: each rank has its rows of dy, and both products need all.
     * e.g. `parallel=row sequence tp=2`: "all-gather grad_output -> grad_output.gathered 2
     * dgrad grad_input = grad_output.gathered x weight" */
    oct_operand operand = gathers ? oct_gathered(p, values, OCTET_USE_VALUES, place)
                                  : (oct_operand){values, OCTET_USE_VALUES};
    return (oct_grads){operand, operand, nothing};
}

/* Where a device that sums the columns of some rows at a time puts these sums, to add them up
 * at the end: a GPU sums 128 rows in each block of threads, so dy of 1024 rows has 8 rows of
 * sums. OCTET_ABSENT where the device, as a CPU does, sums all rows at once.
 * e.g. `bias device=cuda:0/90`: "column sums of grad_output -> grad_bias, by way of
 * grad_bias.partial"
 * e.g. `bias`: no "by way of" */
uint8_t oct_column_sums(oct_planner *p, uint8_t tensor, octet_plan_name name) {
    octet_plan_tensor of = *oct_tensor_at(p->b, tensor);
    int summed = p->b->target->summed_rows;
    if (!summed) {
        return OCTET_ABSENT;
    }
    uint8_t sums = oct_tensor(p->b, name, OCTET_FORM_PARTIAL, OCTET_F32, NULL);
    of.rows.div = of.rows.div > UINT16_MAX / summed ? 1 : of.rows.div;
    of.rows.div = (uint16_t)(of.rows.div * summed);
    oct_tensor_shape(p->b, sums, of.rows, of.cols);
    oct_place(p->b, sums, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    return sums;
}

uint8_t oct_grad_sums(oct_planner *p, uint8_t dy) {
    p->sums = p->sums == OCTET_ABSENT ? oct_column_sums(p, dy, OCTET_NAME_GRAD_BIAS) : p->sums;
    return p->sums;
}

/* A step that reads all of dy sums it on the way. What ranks have gathered is not summed: each
 * sums its own rows.
 * e.g. `recipe=mxfp8 bias device=cuda:0/90`: "both folded, column sums to grad_bias.partial"
 * e.g. `m=80 recipe=mxfp8 bias parallel=row sequence tp=2 gather=high_precision
 * device=cuda:0/90`: no "column sums to" */
static uint8_t sums_beside(oct_planner *p, uint8_t dy) {
    bool own = oct_tensor_at(p->b, dy)->form != OCTET_FORM_GATHERED;
    return p->facts.bgrad && own ? oct_grad_sums(p, dy) : OCTET_ABSENT;
}

/* A plain tensor with all its rows, quantized by one cast for both products: rowwise for dgrad,
 * which sums over n, and columnwise for wgrad, which sums over the rows. What a later wgrad
 * reads is saved.
 * e.g. `recipe=mxfp8`: "quantize grad_output -> grad_output.quantized mxfp8:e4m3/1x32+row+col"
 * e.g. `recipe=mxfp8 delay_wgrad`: "grad_output.quantized columnwise data u8 (256, 256) 64.0
 * KiB, stored" */
static oct_grads quantized_grads(oct_planner *p, uint8_t dy, bool delays) {
    bool row = p->facts.dgrad, col = p->facts.wgrad;
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_GRAD_OUTPUT]);
    /* The device reads rowwise bytes across: they serve wgrad, too.
     * e.g. `recipe=current`: "wgrad grad_weight = grad_output.quantized rowwise" */
    bool across = col && oct_reads_across(p->b, &q);
    oct_quantizing how =
        oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, row || across, col && !across);
    how.slot = OCTET_SLOT_GRAD_OUTPUT;
    how.row_place = delays && across ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    how.col_place = delays ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    how.sums = sums_beside(p, dy);
    uint8_t made = oct_quantize(p->b, dy, &how);
    return (oct_grads){
        {made, OCTET_USE_ROW}, {made, across ? OCTET_USE_ROW : OCTET_USE_COL}, nothing};
}

/* This rank's rows of dy in bytes, where a collective can read them. */
static uint8_t shard_of(oct_planner *p, uint8_t dy, bool delays) {
    bool row = p->facts.dgrad, col = p->facts.wgrad;
    octet_quantizer given = oct_tensor_at(p->b, dy)->quantizer;
    /* dy arrived quantized, with every direction that is needed, and no scale covers rows of
     * two ranks: its bytes are joined as they are.
     * e.g. `recipe=mxfp8 qdy=mxfp8:e4m3 parallel=row sequence tp=2`: "all-gather grad_output
     * rowwise data -> grad_output.gathered rowwise data" */
    bool ready = oct_quantizer_is(&given) && !oct_shares_scale(&given) &&
                 (!row || given.rowwise) &&
                 (!col || (given.columnwise && given.hadamard == oct_wgrad_hadamard(p)));
    if (ready) {
        return dy;
    }
    /* Else it is quantized here, by an amax that the ranks agree on.
     * e.g. `recipe=current parallel=row sequence tp=2`: "all-reduce max grad_output.amax" */
    octet_quantizer q = p->facts.role[OCTET_GRAD_OUTPUT];
    bool once = oct_quantizer_one_scale(&q);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, row || once, col && !once);
    uint8_t values = oct_values(p->b, dy, oct_tensor_at(p->b, dy)->dtype, OCTET_PLACE_WORK);
    how.row_place = how.col_place = OCTET_PLACE_EXCHANGE;
    how.slot = OCTET_SLOT_GRAD_OUTPUT;
    how.reduce = true;
    how.saves_shared = delays;
    how.sums = sums_beside(p, values);
    return oct_quantize(p->b, values, &how);
}

/* Row parallel with sequence: each rank quantizes its rows of dy, and bytes are gathered, which
 * travel at half the cost of bf16 or less. Bytes with one scale for the whole tensor travel
 * once, rowwise, and are transposed for wgrad; with block scales the two directions differ, and
 * each that is needed travels.
 * e.g. `recipe=current parallel=row sequence tp=2 device=cuda:0/90`: "transpose
 * grad_output.gathered rowwise -> grad_output.requantized"
 * e.g. `recipe=mxfp8 parallel=row sequence tp=2`: "all-gather grad_output.quantized columnwise
 * data -> grad_output.gathered columnwise data" */
static oct_grads gathered_grads(oct_planner *p, uint8_t dy, bool delays) {
    bool row = p->facts.dgrad, col = p->facts.wgrad;
    uint8_t local = shard_of(p, dy, delays);
    bool once = oct_quantizer_one_scale(&oct_tensor_at(p->b, local)->quantizer);
    /* Both gathers begin before one of them ends, so that they share a phase. What wgrad reads
     * is saved where wgrad runs later. */
    octet_place place = delays ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    oct_grads made = {{OCTET_ABSENT, OCTET_USE_ROW}, {OCTET_ABSENT, OCTET_USE_COL}, nothing};
    oct_gathering rows = nothing, cols = nothing;
    bool cut = p->b->plan->by_rows;
    /* Rows for dgrad, in pieces where the plan cuts them; columns for wgrad, always whole.
     * e.g. `m=512 recipe=mxfp8 parallel=row sequence tp=2 gather_chunks=2`: "all-gather
     * grad_output.quantized rowwise data -> grad_output.piece rowwise data, chunk 1 of 2" */
    if (cut) {
        made.row = oct_gathered(p, local, OCTET_USE_ROW, OCTET_PLACE_WORK);
    } else if (row || once) {
        /* Bytes with one scale travel so for wgrad alone, too.
         * e.g. `recipe=current parallel=row sequence tp=2 grad=w`: "all-gather
         * grad_output.quantized rowwise data" */
        rows = oct_gather_start(p->b, local, OCTET_USE_ROW, once ? place : OCTET_PLACE_WORK);
    }
    /* e.g. `recipe=mxfp8 parallel=row sequence tp=2 grad=w`: "all-gather grad_output.quantized
     * columnwise data", no "grad_output.quantized rowwise" */
    if (col && !once) {
        cols = oct_gather_start(p->b, local, OCTET_USE_COL, place);
    }
    /* Dgrad takes the pieces as they come; what wgrad reads is put together after that:
     * oct_wgrad_operand. */
    if (cut) {
        made.late = cols;
        return made;
    }
    made.row.tensor = oct_gather_finish(p->b, rows);
    made.col.tensor = oct_gather_finish(p->b, cols);
    /* One scale: what travelled serves both products.
     * e.g. `recipe=current parallel=row sequence tp=2`: "wgrad grad_weight =
     * grad_output.gathered rowwise" */
    if (col && once) {
        made.col = made.row;
    }
    return made;
}

/* Bytes with one scale that were gathered rowwise, or a given tensor's, as wgrad reads them.
 * When wgrad is delayed, so is this.
 * e.g. `recipe=current parallel=row sequence tp=2 delay_wgrad device=cuda:0/90`: "1 transpose
 * grad_output.gathered rowwise -> grad_output.requantized 2 wgrad" */
static oct_operand transposed(oct_planner *p, oct_operand col) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_GRAD_OUTPUT]);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, false, true);
    how.slot = OCTET_SLOT_GRAD_OUTPUT;
    return oct_direction(p->b, col.tensor, OCTET_USE_COL, &how, oct_wgrad_hadamard(p));
}

/* dy arrived quantized, with all its rows: dgrad reads its rowwise bytes and wgrad its
 * columnwise ones. A direction that it lacks is made from what it has. A later wgrad has dy as
 * it was given.
 * e.g. `recipe=mxfp8 qdy=mxfp8:e4m3+row`: "quantize grad_output.dequantized ->
 * grad_output.requantized mxfp8:e4m3/1x32+col" */
static oct_grads given_grads(oct_planner *p, uint8_t dy, bool col_now) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_GRAD_OUTPUT]);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, true, false);
    how.slot = OCTET_SLOT_GRAD_OUTPUT;
    oct_operand as_given = {dy, OCTET_USE_COL};
    oct_grads made = {as_given, as_given, nothing};
    /* e.g. `recipe=mxfp8 qdy=mxfp8:e4m3+col`: "quantize grad_output.dequantized ->
     * grad_output.requantized mxfp8:e4m3/1x32+row" */
    if (p->facts.dgrad) {
        made.row = oct_direction(p->b, dy, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    made.col = col_now ? transposed(p, as_given) : as_given;
    return made;
}

oct_grads oct_grad_operands(oct_planner *p, uint8_t dy) {
    const oct_facts *f = &p->facts;
    const octet_quantizer *role = &f->role[OCTET_GRAD_OUTPUT];
    bool given_bytes = !oct_tensor_is_plain(p->b, dy);
    bool delays = f->wgrad && p->args->delay_wgrad;
    bool col_now = f->wgrad && !p->args->delay_wgrad;
    /* High precision: no recipe, a recipe whose backward is not quantized, or one that leaves
     * dy alone.
     * e.g. `recipe=mxfp8:override=high_precision`: "dgrad grad_input = grad_output x weight"
     * e.g. `recipe=custom:weight=mxfp8:e4m3`: "dgrad grad_input = grad_output x
     * weight.quantized columnwise" */
    if (!f->quantized_back || (!oct_quantizer_is(role) && !given_bytes)) {
        return plain_grads(p, dy, delays);
    }
    /* Ranks have rows of dy, and bytes are gathered. Those that travelled rowwise are
     * transposed for a wgrad that runs now.
     * e.g. `recipe=mxfp8 parallel=row sequence tp=2`: "dgrad grad_input = grad_output.gathered
     * rowwise" */
    if (oct_gathers_grad(p) && p->args->gather == OCTET_GATHER_QUANTIZED &&
        oct_quantizer_is(role)) {
        oct_grads made = gathered_grads(p, dy, delays);
        made.col = col_now && !p->pieces.count ? transposed(p, made.col) : made.col;
        return made;
    }
    /* Ranks have rows of dy, and values are gathered, because their rows are not whole blocks,
     * or because a quantized dy has no quantizer of its own in the recipe: then both products
     * take the values.
     * e.g. `m=80 recipe=mxfp8 parallel=row sequence tp=2 gather=high_precision`: "quantize
     * grad_output.gathered -> grad_output.quantized mxfp8:e4m3/1x32+row+col"
     * e.g. `recipe=custom:weight=mxfp8:e4m3 qdy=mxfp8:e4m3 parallel=row sequence tp=2`:
     * "all-gather grad_output.dequantized -> grad_output.gathered" */
    if (oct_gathers_grad(p)) {
        bool quantizes = oct_quantizer_is(role);
        uint8_t values = oct_values(p->b, dy, f->dtype, OCTET_PLACE_EXCHANGE);
        oct_operand all =
            oct_gathered(p, values, OCTET_USE_VALUES,
                         delays && !quantizes ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK);
        return quantizes ? quantized_grads(p, all.tensor, delays)
                         : (oct_grads){all, all, nothing};
    }
    /* This rank has all rows of dy, quantized by whoever made it, or, as usual, plain.
     * e.g. `recipe=mxfp8 qdy=mxfp8:e4m3`: "dgrad grad_input = grad_output rowwise"
     * e.g. `recipe=mxfp8`: "dgrad grad_input = grad_output.quantized rowwise" */
    return given_bytes ? given_grads(p, dy, col_now) : quantized_grads(p, dy, delays);
}

oct_operand oct_wgrad_operand(oct_planner *p, const oct_grads *made) {
    bool delays = p->args->delay_wgrad;
    octet_place place = delays ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    oct_operand all = {made->late.whole, OCTET_USE_COL};
    /* Nothing was gathered in pieces. */
    if (!p->pieces.count) {
        return made->col;
    }
    if (all.tensor != OCTET_ABSENT) {
        /* Columnwise bytes, which travelled whole beside the rowwise pieces.
         * e.g. `m=512 recipe=mxfp8 parallel=row sequence tp=2 gather_chunks=2`: "assemble
         * grad_output.stacked -> grad_output.gathered 14 wgrad" */
        (void)oct_gather_finish(p->b, made->late);
    } else {
        /* All pieces together, of values or of bytes with one scale.
         * e.g. `parallel=row sequence tp=2 gather_chunks=2`: "join grad_output.piece ->
         * grad_output.gathered, chunk 2 of 2 9 wgrad" */
        all = (oct_operand){oct_join_pieces(p->b, &p->pieces, place), p->pieces.use};
    }
    return delays || all.use == OCTET_USE_VALUES ? all : transposed(p, all);
}
