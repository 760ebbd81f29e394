/* backward.c - dx, dw and db from dy: what is quantized, gathered, multiplied and reduced. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

/* grad_output as each product reads it. */
typedef struct grads {
    oct_operand row;  /* for dgrad */
    oct_operand col;  /* for wgrad */
    oct_joining late; /* columnwise shards that wgrad joins after dgrad's pieces */
} grads;

static const oct_joining nothing = {OCTET_ABSENT, OCTET_ABSENT};

/* Nothing is quantized: one tensor of numbers serves both products. */
static grads plain_grads(oct_planner *p, uint8_t dy, bool delays) {
    octet_place place = delays ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    bool gathers = oct_gathers_grad(p);
    uint8_t values =
        oct_values(p->b, dy, p->facts.dtype, gathers ? OCTET_PLACE_EXCHANGE : place);
    /* Row parallel with sequence: each rank has its rows of dy, and both products need all. */
    oct_operand operand = gathers ? oct_gathered(p, values, OCTET_USE_VALUES, place)
                                  : (oct_operand){values, OCTET_USE_VALUES};
    return (grads){operand, operand, nothing};
}

/* Where a device that sums the columns of some rows at a time puts these sums, to join them at
 * the end. Example: a GPU sums 128 rows in each block of threads, so dy of 1024 rows has 8 rows
 * of sums. OCTET_ABSENT where the device, as a CPU does, sums all rows at once. */
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

/* The sums of dy, which are made once: beside its cast, or by the step that joins them. */
static uint8_t column_sums(oct_planner *p, uint8_t dy) {
    p->sums = p->sums == OCTET_ABSENT ? oct_column_sums(p, dy, OCTET_NAME_GRAD_BIAS) : p->sums;
    return p->sums;
}

/* A step that reads all of dy sums it on the way. What ranks have gathered is not summed: each
 * sums its own rows. */
static uint8_t sums_beside(oct_planner *p, uint8_t dy) {
    bool own = oct_tensor_at(p->b, dy)->form != OCTET_FORM_GATHERED;
    return p->facts.bgrad && own ? column_sums(p, dy) : OCTET_ABSENT;
}

/* A plain tensor with all its rows, quantized by one cast for both products: rowwise for dgrad,
 * which sums over n, and columnwise for wgrad, which sums over the rows. Where the device reads
 * rowwise bytes across (FP8 on a CPU), they serve wgrad, too. What a later wgrad reads is
 * saved. */
static grads quantized_grads(oct_planner *p, uint8_t dy, bool row, bool col, bool delays) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_GRAD_OUTPUT]);
    bool across = col && oct_reads_across(p->b, &q);
    oct_quantizing how =
        oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, row || across, col && !across);
    how.slot = OCTET_SLOT_GRAD_OUTPUT;
    how.row_place = delays && across ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    how.col_place = delays ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    how.sums = sums_beside(p, dy);
    uint8_t made = oct_quantize(p->b, dy, &how);
    return (grads){
        {made, OCTET_USE_ROW}, {made, across ? OCTET_USE_ROW : OCTET_USE_COL}, nothing};
}

/* Row parallel with sequence: each rank quantizes its rows of dy, and bytes are gathered, which
 * travel at half the cost of bf16 or less. Bytes with one scale for the whole tensor travel
 * once, rowwise, and wgrad turns them; with block scales the two directions differ, and each
 * that is needed travels. */
static grads gathered_grads(oct_planner *p, uint8_t dy, bool row, bool col, bool delays) {
    octet_quantizer q = p->facts.role[OCTET_GRAD_OUTPUT];
    octet_quantizer given = oct_tensor_at(p->b, dy)->quantizer;
    /* dy arrived quantized, with every direction that is needed, and no scale covers rows of
     * two ranks: its bytes are joined as they are. */
    bool ready = oct_quantizer_is(&given) && !oct_shares_scale(&given) &&
                 (!row || given.rowwise) &&
                 (!col || (given.columnwise && given.hadamard == oct_wgrad_hadamard(p)));
    uint8_t local = dy;
    q = ready ? given : q;
    bool once = oct_quantizer_one_scale(&q);
    /* Else it is quantized here, by an amax that the ranks agree on. */
    if (!ready) {
        oct_quantizing how =
            oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, row || once, col && !once);
        uint8_t values = oct_values(p->b, dy, oct_tensor_at(p->b, dy)->dtype, OCTET_PLACE_WORK);
        how.row_place = how.col_place = OCTET_PLACE_EXCHANGE;
        how.slot = OCTET_SLOT_GRAD_OUTPUT;
        how.reduce = true;
        how.saves_shared = delays;
        how.sums = sums_beside(p, values);
        local = oct_quantize(p->b, values, &how);
    }
    /* Both gathers begin before one of them ends, so that they share a phase. What wgrad reads
     * is saved where wgrad runs later. */
    octet_place place = delays ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    grads made = {{OCTET_ABSENT, OCTET_USE_ROW}, {OCTET_ABSENT, OCTET_USE_COL}, nothing};
    oct_joining rows = nothing, cols = nothing;
    bool cut = p->b->plan->by_rows;
    if (cut) {
        made.row = oct_gathered(p, local, OCTET_USE_ROW, OCTET_PLACE_WORK);
    } else if (row || once) {
        rows = oct_gather_start(p->b, local, OCTET_USE_ROW, once ? place : OCTET_PLACE_WORK);
    }
    if (col && !once) {
        cols = oct_gather_start(p->b, local, OCTET_USE_COL, place);
    }
    /* Dgrad takes the pieces as they come; what wgrad reads is joined after that. */
    if (cut) {
        made.late = cols;
        return made;
    }
    made.row.tensor = oct_gather_finish(p->b, rows);
    made.col.tensor = oct_gather_finish(p->b, cols);
    if (col && once) {
        made.col = made.row;
    }
    return made;
}

/* Bytes with one scale that were gathered rowwise, or a given tensor's, as wgrad reads them.
 * When wgrad is delayed, so is this. */
static oct_operand turned_col(oct_planner *p, oct_operand col) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_GRAD_OUTPUT]);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, false, true);
    how.slot = OCTET_SLOT_GRAD_OUTPUT;
    return oct_direction(p->b, col.tensor, OCTET_USE_COL, &how, oct_wgrad_hadamard(p));
}

/* dy arrived quantized, with all its rows: dgrad reads its rowwise bytes and wgrad its
 * columnwise ones. A direction that it lacks is made from what it has. A later wgrad has dy as
 * it was given. */
static grads given_grads(oct_planner *p, uint8_t dy, bool col_now) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_GRAD_OUTPUT]);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, true, false);
    how.slot = OCTET_SLOT_GRAD_OUTPUT;
    oct_operand as_given = {dy, OCTET_USE_COL};
    grads made = {as_given, as_given, nothing};
    if (p->facts.dgrad) {
        made.row = oct_direction(p->b, dy, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    made.col = col_now ? turned_col(p, as_given) : as_given;
    return made;
}

static grads grad_operands(oct_planner *p, uint8_t dy) {
    const oct_facts *f = &p->facts;
    const octet_quantizer *role = &f->role[OCTET_GRAD_OUTPUT];
    bool given = !oct_tensor_is_plain(p->b, dy);
    bool delays = f->wgrad && p->args->delay_wgrad;
    bool col_now = f->wgrad && !p->args->delay_wgrad;
    /* High precision: no recipe, a recipe whose backward is not quantized, or one that leaves
     * dy alone. */
    if (!f->quantized_back || (!oct_quantizer_is(role) && !given)) {
        return plain_grads(p, dy, delays);
    }
    /* Ranks have rows of dy, and bytes are gathered. Those that travelled rowwise are turned
     * for a wgrad that runs now. */
    if (oct_gathers_grad(p) && p->args->gather == OCTET_GATHER_QUANTIZED &&
        oct_quantizer_is(role)) {
        grads made = gathered_grads(p, dy, f->dgrad, f->wgrad, delays);
        made.col = col_now && !p->pieces.count ? turned_col(p, made.col) : made.col;
        return made;
    }
    /* Ranks have rows of dy, and values are gathered, because their rows are not whole blocks,
     * or because a quantized dy has no quantizer of its own in the recipe: then both products
     * take the values. */
    if (oct_gathers_grad(p)) {
        bool quantizes = oct_quantizer_is(role);
        uint8_t values = oct_values(p->b, dy, f->dtype, OCTET_PLACE_EXCHANGE);
        oct_operand all =
            oct_gathered(p, values, OCTET_USE_VALUES,
                         delays && !quantizes ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK);
        return quantizes ? quantized_grads(p, all.tensor, f->dgrad, f->wgrad, delays)
                         : (grads){all, all, nothing};
    }
    /* This rank has all rows of dy, quantized by whoever made it, or, as usual, plain. */
    return given ? given_grads(p, dy, col_now)
                 : quantized_grads(p, dy, f->dgrad, f->wgrad, delays);
}

/* What wgrad reads of a dy that ranks gathered in pieces: columnwise bytes, which travelled
 * whole, or all pieces together, of values or of bytes with one scale. */
static oct_operand joined_col(oct_planner *p, const grads *made) {
    bool delays = p->args->delay_wgrad;
    octet_place place = delays ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    oct_operand all = {made->late.whole, OCTET_USE_COL};
    if (all.tensor != OCTET_ABSENT) {
        (void)oct_gather_finish(p->b, made->late);
    } else {
        all = (oct_operand){oct_join_pieces(p->b, &p->pieces, place), p->pieces.use};
    }
    return delays || all.use == OCTET_USE_VALUES ? all : turned_col(p, all);
}

/* The weight that forward saved, as dgrad reads it: dx = dy w sums over the weight's rows. */
static oct_operand dgrad_weight(oct_planner *p) {
    uint8_t w = oct_restored(p->b, OCTET_NAME_WEIGHT);
    uint8_t scale = oct_restored(p->b, OCTET_NAME_WEIGHT_SCALE);
    bool plain = oct_tensor_is_plain(p->b, w);
    octet_quantizer q = p->facts.role[OCTET_WEIGHT];
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, false, true);
    /* Delayed scaling, and the weight is quantized again: by the scale that forward used. */
    if (scale != OCTET_ABSENT) {
        how.restored_scale = oct_buffer_of(p->b, scale);
    }
    /* By the recipe: columnwise bytes, saved, turned, or made from the weight (FSDP). */
    if (p->facts.quantized_back && (!plain || oct_quantizer_is(&q))) {
        how.quantizer = oct_for_gemm(p->b, how.quantizer);
        return oct_direction(p->b, w, OCTET_USE_COL, &how, OCTET_HADAMARD_NONE);
    }
    /* Backward multiplies what forward multiplied, decoded. The weight itself was saved (FSDP),
     * so forward's rowwise cast is repeated. */
    bool decoded = p->args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED;
    if (decoded && plain && oct_quantizer_is(&q)) {
        how.quantizer.rowwise = 1;
        how.quantizer.columnwise = 0;
        w = oct_quantize(p->b, w, &how);
    }
    /* High precision, or decoded: numbers in the dtype of the activations. */
    return (oct_operand){oct_values(p->b, w, p->facts.dtype, OCTET_PLACE_WORK),
                         OCTET_USE_VALUES};
}

/* A product that has begun, and what is to become of it. */
typedef struct dgrad {
    oct_result result;
    oct_tail tail;
} dgrad;

/* dx = dy w; with a prologue it is the gradient of f(x). */
static dgrad start_dgrad(oct_planner *p, oct_operand dy) {
    const oct_facts *f = &p->facts;
    bool column = f->parallel == OCTET_PARALLEL_COLUMN;
    oct_operand w = dgrad_weight(p);
    oct_result result = {OCTET_NAME_GRAD_INPUT,
                         f->dtype,
                         oct_tensor_at(p->b, dy.tensor)->rows,
                         oct_dim_of(OCTET_AXIS_K, 1, 1),
                         OCTET_COLLECTIVE_NONE,
                         OCTET_ABSENT,
                         NULL,
                         OCTET_SLOT_GRAD_INPUT};
    oct_product product = {OCTET_DGRAD,
                           dy,
                           w,
                           OCTET_ABSENT,
                           OCTET_ABSENT,
                           false,
                           f->quantized_back && p->args->recipe.split_dgrad};
    /* Column parallel: each rank has a part of the sum over n. With sequence each rank receives
     * its rows of dx. Example: 4096 outputs on 4 ranks: each sums over 1024. */
    if (column) {
        result.collective = f->sequence ? OCTET_REDUCE_SCATTER : OCTET_ALL_REDUCE_SUM;
    }
    result.quantizer = p->args->quantize_grad_input ? &f->role[OCTET_GRAD_INPUT] : NULL;
    octet_plan_form form = p->args->prologue ? OCTET_FORM_PROLOGUE : oct_form_of(&result);
    if (p->pieces.count) {
        result.rows = oct_all_rows(p->b, oct_tensor_at(p->b, p->pieces.local)->rows);
        return (dgrad){result, oct_produce_pieces(p->b, &product, &result, &p->pieces, form)};
    }
    oct_tail tail = oct_produce_start(p->b, &product, &result, form);
    return (dgrad){result, tail};
}

/* dx in chunks that are scattered is put together at the very end: the last of them travels
 * beside wgrad. Behind it comes the prologue's backward. */
static void finish_dgrad(oct_planner *p, const dgrad *dx, bool at_end) {
    /* Called twice, before wgrad and at the end; one of the two calls is the right one. */
    if (at_end != (p->b->plan->chunks > 1 && !p->b->plan->by_rows)) {
        return;
    }
    if (at_end) {
        oct_next_phase(p->b);
    }
    if (p->args->prologue) {
        oct_plan_prologue_grad(p, oct_produce_join(p->b, &dx->tail, &dx->result), &dx->result);
    } else {
        oct_produce_finish(p->b, &dx->tail, &dx->result);
    }
}

/* Where the gradient of the bias goes: the caller's main_grad, or an output. */
static uint8_t bias_grad_result(oct_planner *p) {
    if (p->args->bias_main_grad) {
        return oct_written_argument(p, OCTET_NAME_BIAS_MAIN_GRAD, &p->args->bias,
                                    p->args->bias_main_grad_dtype);
    }
    uint8_t sum =
        oct_tensor(p->b, OCTET_NAME_GRAD_BIAS, OCTET_FORM_GIVEN, p->args->bias.dtype, NULL);
    oct_tensor_shape(p->b, sum, oct_dim_of(OCTET_AXIS_ONE, 1, 1),
                     oct_dim_of(OCTET_AXIS_N, 1, 1));
    oct_place(p->b, sum, OCT_ALL_PARTS, OCTET_PLACE_OUT);
    return sum;
}

/* Column sums of dy as it arrived: under row-parallel sequence shards, of this rank's rows. */
static void plan_bias_grad(oct_planner *p, uint8_t dy) {
    uint8_t values = oct_values(p->b, dy, oct_tensor_at(p->b, dy)->dtype, OCTET_PLACE_WORK);
    uint8_t sum = bias_grad_result(p);
    octet_step *step = oct_step(p->b, OCTET_OP_BIAS_GRAD);
    step->a = values;
    step->dst = sum;
    step->sums = column_sums(p, dy);
    step->accumulate = p->args->bias_main_grad == OCTET_MAIN_GRAD_ADD;
    oct_step_done(p->b, step);
}

/* Whether wgrad reads a tensor that forward saved. Of a prologue it reads the cast of f(x), or
 * all that it takes to apply it again; what only dx needs is used up here. */
static bool wgrad_reads(const oct_planner *p, uint8_t tensor) {
    const octet_plan_tensor *t = oct_tensor_at(p->b, tensor);
    bool parameter = t->name == OCTET_NAME_STATISTICS || t->name == OCTET_NAME_GAMMA ||
                     t->name == OCTET_NAME_BETA;
    bool input = t->name == OCTET_NAME_INPUT || t->name == OCTET_NAME_INPUT_SCALE;
    /* Example: rmsnorm under MXFP8: wgrad reads the cast of f(x), and x is for dx alone. */
    if (p->args->prologue && (tensor == p->x || tensor == p->packed || parameter)) {
        return oct_prologue_again(p);
    }
    return input;
}

/* Wgrad runs later: passes on what forward saved of the input, and saves dy as wgrad will read
 * it. */
static void save_for_wgrad(oct_planner *p, oct_operand dy) {
    for (int i = 0; i < p->b->plan->restored_count; i++) {
        uint8_t tensor = p->b->plan->buffers[p->b->plan->restored[i]].tensor;
        if (wgrad_reads(p, tensor)) {
            p->b->plan->saved[p->b->plan->saved_count++] = p->b->plan->restored[i];
        }
    }
    oct_save(p->b, dy.tensor,
             oct_wanted_parts(p->b, dy.tensor, (octet_use)dy.use, oct_wgrad_hadamard(p)));
}

octet_status oct_plan_backward(octet_plan *plan, const octet_plan *forward,
                               const octet_linear_backward_args *args, octet_error *err) {
    const octet_linear_args *call = &args->forward;
    oct_builder b;
    oct_planner p = oct_planner_start(&b, plan, OCTET_PLAN_LINEAR_BACKWARD, call, err);
    uint8_t dy = oct_linear_argument(&p, OCTET_NAME_GRAD_OUTPUT, &args->grad_output);
    oct_restore(&b, forward);
    dgrad dx = {.tail = {.joined = OCTET_ABSENT}};
    oct_prologue_restore(&p);
    /* Only the bias wants a gradient, or nothing does: dy is not quantized. */
    if (p.facts.dgrad || p.facts.wgrad) {
        grads operands = grad_operands(&p, dy);
        /* dx first: a collective that sums it over the ranks runs beside wgrad. */
        if (p.facts.dgrad) {
            dx = start_dgrad(&p, operands.row);
            finish_dgrad(&p, &dx, false);
        }
        /* Pieces of dy that arrived one by one become one operand of wgrad. */
        if (p.facts.wgrad && p.pieces.count) {
            operands.col = joined_col(&p, &operands);
        }
        /* dw in a plan of its own, later (pipeline parallelism), or now. */
        if (p.facts.wgrad && call->delay_wgrad) {
            save_for_wgrad(&p, operands.col);
        } else if (p.facts.wgrad) {
            oct_plan_wgrad(&p, operands.col);
        }
    }
    if (p.facts.bgrad) {
        plan_bias_grad(&p, dy);
    }
    if (p.facts.dgrad) {
        finish_dgrad(&p, &dx, true);
    }
    oct_fill_amaxes(&b);
    return oct_build_finish(&b);
}

octet_status octet_plan_linear_backward(octet_plan *out, const octet_linear_backward_args *args,
                                        octet_error *err) {
    octet_plan forward, plan;
    oct_facts facts;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need_size(out->size, sizeof *out, "octet_plan", err);
    status = status ? status : oct_linear_backward_check(args, &facts, err);
    status = status ? status : oct_plan_forward(&forward, &args->forward, err);
    status = status ? status : oct_plan_backward(&plan, &forward, args, err);
    status = status ? status : oct_plan_check_chunks(&plan, &plan.extents, err);
    if (!status) {
        *out = plan;
    }
    return status;
}
