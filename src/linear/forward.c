/* forward.c - y = x w^T + b: what is quantized, multiplied, reduced and saved for backward. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

/* What forward saves of the input for wgrad. */
typedef enum saving {
    SAVE_NOTHING,
    SAVE_GIVEN, /* the argument itself: an alias, no bytes of our own */
    SAVE_ROW,   /* the rowwise bytes that fprop reads, too */
    SAVE_COL    /* columnwise bytes, made by the same cast */
} saving;

static saving input_saving(const oct_planner *p) {
    const octet_linear_args *args = p->args;
    const octet_quantizer *q = &p->facts.role[OCTET_INPUT];
    /* Only wgrad reads the input. Example: the weight is frozen. */
    if (!p->facts.wgrad) {
        return SAVE_NOTHING;
    }
    /* The argument is saved as it came where wgrad cannot use a cast of it:
     * - the caller's tensor is quantized already, and there is nothing better to save;
     * - the recipe leaves the input alone, or there is none, or the call calibrates;
     * - backward runs in high precision, or the caller wants x itself saved. */
    if (oct_quantizer_is(&args->input.quantizer) || !oct_quantizer_is(q) ||
        args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION || args->save_original_input) {
        return SAVE_GIVEN;
    }
    /* The caller wants memory, and backward has x of a prologue anyway. */
    if (oct_saves_no_cast(p)) {
        return SAVE_GIVEN;
    }
    /* The ranks' rows are joined before they are quantized. Wgrad would need the cast of all
     * rows; this rank's rows take less memory, and backward gathers them once more. Example:
     * 40 rows a rank under MXFP8, which are not whole blocks of 32. */
    if (oct_gathers_input(p) && args->gather == OCTET_GATHER_HIGH_PRECISION) {
        return SAVE_GIVEN;
    }
    /* Rowwise bytes serve wgrad, too, so no second cast is made:
     * - backward decodes what forward multiplied, and that was rowwise;
     * - the device's product reads rowwise bytes across. Example: FP8 on a CPU;
     * - shards with one scale are gathered rowwise and turned after that, because their
     *   rows then lie one after the other. */
    bool rowwise = args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED ||
                   oct_reads_across(p->b, q) ||
                   (oct_gathers_input(p) && oct_quantizer_one_scale(q));
    /* Else wgrad, which sums over the rows, needs scales along them. Example: MXFP8. */
    return rowwise ? SAVE_ROW : SAVE_COL;
}

bool oct_saves_own_cast(const oct_planner *p, bool *columnwise) {
    saving save = input_saving(p);
    *columnwise = save == SAVE_COL;
    return save != SAVE_GIVEN;
}

/* Saves the scale that delayed scaling used for a role. Backward will quantize this argument
 * again, and by then the layer's scales may have been updated. */
static void save_scale(oct_planner *p, octet_role role) {
    bool again =
        p->facts.quantized && p->args->recipe.override_ != OCTET_OVERRIDE_HIGH_PRECISION;
    /* Nothing to save: backward does not quantize, or finds the same scale from the values. */
    if (!again || !oct_scheme_of(&p->facts.role[role])->given) {
        return;
    }
    bool input = role == OCTET_INPUT;
    octet_plan_name name = input ? OCTET_NAME_INPUT_SCALE : OCTET_NAME_WEIGHT_SCALE;
    int slot = input ? OCTET_SLOT_INPUT : OCTET_SLOT_WEIGHT;
    uint8_t copy = oct_tensor(p->b, name, OCTET_FORM_CAST, OCTET_F32, NULL);
    oct_place(p->b, copy, OCT_ALL_PARTS, OCTET_PLACE_SAVED);
    octet_step *step = oct_step(p->b, OCTET_OP_CAST);
    step->a = p->b->plan->buffers[oct_scale_slot(p->b, slot)].tensor;
    step->dst = copy;
    oct_step_done(p->b, step);
    oct_save(p->b, copy, OCT_ALL_PARTS);
}

/* Whether backward will quantize an input that was saved as it was given. */
static bool quantizes_input_again(const oct_planner *p, uint8_t given) {
    /* A plain tensor, whatever backward does: by the recipe, or to decode it again. */
    if (oct_tensor_is_plain(p->b, given)) {
        return true;
    }
    /* Bytes that are only decoded. */
    if (!p->facts.quantized_back) {
        return false;
    }
    oct_way way = oct_way_to(p->b, given, OCTET_USE_COL, oct_wgrad_hadamard(p));
    /* Bytes from which the columnwise ones cannot be had. Example: an MXFP8 argument that has
     * only its rowwise direction. */
    if (way == OCT_WAY_QUANTIZE) {
        return true;
    }
    /* Shards whose bytes cannot be joined as they are: the direction is missing, values are
     * gathered, or each rank has a scale of its own. */
    return oct_gathers_input(p) && (way != OCT_WAY_READ || p->args->gather ||
                                    oct_shares_scale(&p->args->input.quantizer));
}

static void save_input(oct_planner *p, uint8_t given, uint8_t quantized) {
    octet_use want = p->facts.quantized_back ? OCTET_USE_COL : OCTET_USE_VALUES;
    switch (input_saving(p)) {
    case SAVE_GIVEN:
        /* With a prologue, save_prologue saves x itself, and backward computes f(x) again. */
        if (!p->args->prologue) {
            oct_save(p->b, given, oct_wanted_parts(p->b, given, want, oct_wgrad_hadamard(p)));
        }
        if (quantizes_input_again(p, given)) {
            save_scale(p, OCTET_INPUT);
        }
        break;
    case SAVE_ROW:
        oct_save(p->b, quantized, OCT_ROW_PARTS);
        break;
    case SAVE_COL:
        oct_save(p->b, quantized, OCT_COL_PARTS);
        break;
    case SAVE_NOTHING:
        break;
    }
}

/* The cast of the input: rowwise for fprop, columnwise too where wgrad will read that. The
 * direction that is saved goes into the saved block, the other one into the workspace. */
static oct_quantizing input_quantizing(const oct_planner *p) {
    saving save = input_saving(p);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &p->facts.role[OCTET_INPUT],
                                           true, save == SAVE_COL);
    how.slot = OCTET_SLOT_INPUT;
    how.row_place = save == SAVE_ROW ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    how.col_place = OCTET_PLACE_SAVED;
    return how;
}

/* Bytes travel: 8 or 4 bits an element, where bf16 would be 16. */
static oct_operand gathered_bytes(oct_planner *p, uint8_t x, uint8_t quantized) {
    save_input(p, x, quantized);
    return oct_gathered(p, quantized, OCTET_USE_ROW, OCTET_PLACE_WORK);
}

/* Column parallel with sequence: each rank has its rows of x, and multiplies all of them. */
static oct_operand gathered_input(oct_planner *p, uint8_t x) {
    oct_quantizing how = input_quantizing(p);
    const octet_quantizer *given = &p->args->input.quantizer;
    /* The argument's rowwise bytes can be joined as they are: it is quantized, and no scale
     * covers rows of two ranks. Example: MXFP8, yes; FP8 with one scale a tensor, no, because
     * each rank chose its own. */
    bool ready = oct_quantizer_is(given) && given->rowwise && !oct_shares_scale(given);
    bool high_precision = p->args->gather == OCTET_GATHER_HIGH_PRECISION;
    if (ready && !high_precision) {
        return gathered_bytes(p, x, x);
    }
    /* Values are gathered, and quantized after that: because the caller asks for it, or because
     * the recipe has no quantizer for the input of its own. Example: rows that are not whole
     * blocks, whose casts would not be the casts of the joined tensor. */
    if (high_precision || !oct_quantizer_is(&how.quantizer)) {
        uint8_t values = oct_values(p->b, x, p->facts.dtype, OCTET_PLACE_EXCHANGE);
        oct_operand all = oct_gathered(p, values, OCTET_USE_VALUES, OCTET_PLACE_WORK);
        save_input(p, x, x);
        how.quantizer = oct_for_gemm(p->b, how.quantizer);
        return oct_direction(p->b, all.tensor, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    /* Each rank quantizes its rows, by an amax that the ranks agree on, and bytes are gathered.
     * A collective reads them, so they are an exchange, unless they are saved. */
    uint8_t values = oct_values(p->b, x, p->args->input.dtype, OCTET_PLACE_WORK);
    how.row_place = how.row_place == OCTET_PLACE_WORK ? OCTET_PLACE_EXCHANGE : how.row_place;
    how.reduce = true;
    return gathered_bytes(p, x, oct_quantize(p->b, values, &how));
}

static oct_operand forward_input(oct_planner *p, uint8_t x) {
    bool given = oct_quantizer_is(&p->args->input.quantizer);
    oct_quantizing how = input_quantizing(p);
    /* Numbers in high precision: no recipe, calibration, or a recipe that leaves the input
     * alone. A quantized argument is decoded. */
    if (!p->facts.quantized || (!given && !oct_quantizer_is(&how.quantizer))) {
        octet_place place = oct_gathers_input(p) ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK;
        uint8_t values = oct_values(p->b, x, p->facts.dtype, place);
        save_input(p, x, x);
        return oct_gathers_input(p)
                   ? oct_gathered(p, values, OCTET_USE_VALUES, OCTET_PLACE_WORK)
                   : (oct_operand){values, OCTET_USE_VALUES};
    }
    /* Other ranks have the other rows. */
    if (oct_gathers_input(p)) {
        return gathered_input(p, x);
    }
    how.quantizer = oct_for_gemm(p->b, how.quantizer);
    /* The caller quantized x: its rowwise bytes, or if it has none, what they are made from. */
    if (given) {
        save_input(p, x, x);
        return oct_direction(p->b, x, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    /* The usual case: x is bf16, and one cast makes what fprop reads and what wgrad will. */
    uint8_t quantized = oct_quantize(p->b, x, &how);
    save_input(p, x, quantized);
    return (oct_operand){quantized, OCTET_USE_ROW};
}

/* Whether backward applies the prologue again, for wgrad. */
static bool applies_again(const oct_planner *p) {
    return input_saving(p) == SAVE_GIVEN;
}

/* Whether backward reads x and a norm's statistics. Beta's gradient takes neither. */
static bool reads_x(const oct_planner *p) {
    return p->facts.xgrad || p->facts.gamma_grad || applies_again(p);
}

/* f(x), which takes the input's place in all that follows. Where ranks gather values, a
 * collective reads it; where the recipe quantizes it, its cast alone. */
static uint8_t apply_prologue(oct_planner *p) {
    octet_quantizer cast = input_quantizing(p).quantizer;
    bool values = !oct_quantizer_is(&cast) || p->args->gather == OCTET_GATHER_HIGH_PRECISION;
    if (oct_packs_input(p)) {
        oct_plan_packing(p);
    }
    oct_plan_statistics(p, reads_x(p) ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK);
    octet_place place =
        oct_gathers_input(p) && values ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK;
    return oct_plan_prologue(p, place, &cast);
}

/* What the prologue's backward reads, and what it takes to apply it again for wgrad: x, perhaps
 * in 8 bits, a norm's statistics and parameters. */
static void save_prologue(oct_planner *p) {
    bool again = applies_again(p);
    bool packs = oct_packs_input(p);
    const uint8_t tensors[] = {packs ? p->packed : p->x, p->stats, p->gamma, p->beta};
    /* Example: rmsnorm with a frozen gamma: dx reads x, the statistics and gamma. */
    const bool reads[] = {reads_x(p), reads_x(p), p->facts.xgrad || again, again};
    for (int i = 0; i < 4; i++) {
        if (reads[i] && tensors[i] != OCTET_ABSENT) {
            oct_save(p->b, tensors[i], OCT_ALL_PARTS);
        }
    }
}

/* A weight that arrives quantized needs no cache, and one that is never quantized has none. */
bool oct_uses_cache(const oct_planner *p) {
    return p->args->weight_cache != OCTET_CACHE_NONE &&
           !oct_quantizer_is(&p->args->weight.quantizer) &&
           oct_quantizer_is(&p->facts.role[OCTET_WEIGHT]);
}

/* FSDP gathers the weight for each call and frees it again. A cast that is saved would undo
 * that: backward, for which FSDP gathers it once more, quantizes it again. A cached weight is
 * there anyway. */
static bool quantizes_weight_again(const oct_planner *p) {
    /* save=memory likewise: the parameter lives anyway. Not one that was made for the call, nor
     * where backward runs in high precision or rounds the weight at random. */
    bool memory = p->args->save == OCTET_SAVE_MEMORY && !p->args->temporary_weight &&
                  p->args->recipe.override_ != OCTET_OVERRIDE_HIGH_PRECISION &&
                  !p->facts.role[OCTET_WEIGHT].stochastic;
    return (p->args->fsdp || memory) && !oct_uses_cache(p);
}

octet_quantizer oct_weight_quantizer(const oct_planner *p) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_WEIGHT]);
    q.rowwise = oct_quantizer_is(&q);
    /* Dgrad sums over the rows of the weight, so it reads columnwise bytes. They are made here
     * unless backward has no dgrad, does not follow the recipe, quantizes again, or its product
     * reads the rowwise bytes across. */
    q.columnwise = oct_quantizer_is(&q) && p->facts.dgrad && p->facts.quantized_back &&
                   !quantizes_weight_again(p) && !oct_reads_across(p->b, &q);
    return q;
}

/* The caller's cached weight, as an argument. */
static uint8_t cached_weight(oct_planner *p, const octet_quantizer *q) {
    uint8_t cached =
        oct_tensor(p->b, OCTET_NAME_WEIGHT, OCTET_FORM_CACHED, p->args->weight.dtype, q);
    oct_tensor_shape(p->b, cached, oct_dim_of(OCTET_AXIS_N, 1, 1),
                     oct_dim_of(OCTET_AXIS_K, 1, 1));
    oct_place(p->b, cached, OCT_ALL_PARTS, OCTET_PLACE_ARG);
    return cached;
}

/* The cast of the weight. A cached one is an output: the caller holds it for later calls.
 * Else the direction that is saved goes into the saved block. */
static uint8_t cast_weight(oct_planner *p, uint8_t w, const octet_quantizer *q, bool saves) {
    bool cached = oct_uses_cache(p);
    oct_quantizing how = oct_quantizing_of(cached ? OCTET_FORM_CACHED : OCTET_FORM_QUANTIZED, q,
                                           q->rowwise, q->columnwise);
    how.slot = OCTET_SLOT_WEIGHT;
    how.col_place = cached ? OCTET_PLACE_OUT : OCTET_PLACE_SAVED;
    how.row_place = cached                    ? OCTET_PLACE_OUT
                    : saves && !q->columnwise ? OCTET_PLACE_SAVED
                                              : OCTET_PLACE_WORK;
    return oct_quantize(p->b, w, &how);
}

/* A weight that arrives plain and is quantized here, or was by an earlier microbatch. */
static oct_operand quantized_weight(oct_planner *p, uint8_t w) {
    bool high = p->args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION;
    bool again = quantizes_weight_again(p);
    bool saves = p->facts.dgrad && !high && !again;
    bool reads = oct_uses_cache(p) && p->args->weight_cache == OCTET_CACHE_READ;
    octet_quantizer q = oct_weight_quantizer(p);
    uint8_t made = reads ? cached_weight(p, &q) : cast_weight(p, w, &q, saves);
    /* Example: MXFP8 saves the columnwise bytes, FP8 on a CPU the rowwise ones. */
    if (saves) {
        /* Dgrad reads this cast: columnwise bytes if there are any, else rowwise ones, across
         * or decoded. */
        oct_save(p->b, made, q.columnwise ? OCT_COL_PARTS : OCT_ROW_PARTS);
    } else if (p->facts.dgrad) {
        /* Dgrad reads the weight itself, in high precision, or to quantize it again. */
        oct_save(p->b, w, OCT_ALL_PARTS);
        if (again) {
            save_scale(p, OCTET_WEIGHT);
        }
    }
    return (oct_operand){made, OCTET_USE_ROW};
}

static oct_operand forward_weight(oct_planner *p, uint8_t w) {
    bool given = oct_quantizer_is(&p->args->weight.quantizer);
    bool has_role = oct_quantizer_is(&p->facts.role[OCTET_WEIGHT]);
    octet_use want = p->facts.quantized_back ? OCTET_USE_COL : OCTET_USE_VALUES;
    /* The usual case: a bf16 parameter and a recipe that quantizes it. */
    if (!given && has_role) {
        return quantized_weight(p, w);
    }
    /* Else dgrad reads the argument, of a quantized one the direction that serves it best. */
    if (p->facts.dgrad) {
        oct_save(p->b, w, oct_wanted_parts(p->b, w, want, OCTET_HADAMARD_NONE));
    }
    /* No direction serves: dgrad decodes the argument and quantizes it again. */
    if (p->facts.dgrad && p->facts.quantized_back &&
        oct_way_to(p->b, w, OCTET_USE_COL, OCTET_HADAMARD_NONE) == OCT_WAY_QUANTIZE) {
        save_scale(p, OCTET_WEIGHT);
    }
    /* A quantized parameter: its rowwise bytes, or if it has none, what they are made from. */
    if (given && p->facts.quantized) {
        octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_WEIGHT]);
        oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, true, false);
        how.slot = OCTET_SLOT_WEIGHT;
        return oct_direction(p->b, w, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    /* High precision: the weight in the input's dtype. */
    return (oct_operand){oct_values(p->b, w, p->facts.dtype, OCTET_PLACE_WORK),
                         OCTET_USE_VALUES};
}

/* Calibration computes in high precision and measures what delayed scaling would have
 * quantized. Recipes that find their scales in the tensor itself have nothing to learn. */
static void calibrate(oct_planner *p, uint8_t x, uint8_t w) {
    const uint8_t tensors[] = {x, w};
    static const int slots[] = {OCTET_SLOT_INPUT, OCTET_SLOT_WEIGHT};
    for (int role = OCTET_INPUT; role <= OCTET_WEIGHT; role++) {
        octet_quantizer q = oct_recipe_role(&p->args->recipe, (octet_role)role);
        if (oct_scheme_of(&q)->given) {
            octet_step *step;
            uint8_t values = oct_values(p->b, tensors[role], p->facts.dtype, OCTET_PLACE_WORK);
            uint8_t amax = oct_amax_slot(p->b, slots[role]);
            step = oct_step(p->b, OCTET_OP_AMAX);
            step->a = values;
            step->amax = amax;
            step->accumulate = p->b->raises;
            oct_step_done(p->b, step);
        }
    }
}

/* The bias as the product adds it. A quantized product with f32 results takes a bf16 bias, as
 * GPUs' epilogues do; every other one takes the bias in its own dtype. */
static uint8_t fused_bias(oct_planner *p, uint8_t bias, bool quantized_gemm) {
    bool narrow = quantized_gemm && p->facts.dtype == OCTET_F32;
    uint8_t tensor = oct_values(
        p->b, bias, narrow ? OCTET_BF16 : oct_tensor_at(p->b, bias)->dtype, OCTET_PLACE_WORK);
    return oct_buffer_of(p->b, tensor);
}

static void forward_output(oct_planner *p, oct_operand x, oct_operand w, uint8_t bias) {
    const oct_facts *f = &p->facts;
    bool row_parallel = f->parallel == OCTET_PARALLEL_ROW;
    bool quantized_gemm = x.use != OCTET_USE_VALUES || w.use != OCTET_USE_VALUES;
    oct_result result = {OCTET_NAME_OUTPUT,
                         f->output_dtype,
                         oct_tensor_at(p->b, x.tensor)->rows,
                         oct_dim_of(OCTET_AXIS_N, 1, 1),
                         OCTET_COLLECTIVE_NONE,
                         OCTET_ABSENT,
                         NULL,
                         OCTET_SLOT_OUTPUT};
    oct_product product = {OCTET_FPROP,
                           x,
                           w,
                           OCTET_ABSENT,
                           OCTET_ABSENT,
                           false,
                           f->quantized && p->args->recipe.split_fprop};
    /* Row parallel: each rank has a part of the sum over k. The bias comes after the ranks are
     * added up, or it would be added once for each of them. With sequence each rank receives
     * its rows of y. */
    if (row_parallel) {
        result.collective = f->sequence ? OCTET_REDUCE_SCATTER : OCTET_ALL_REDUCE_SUM;
        result.late_bias = f->adds_bias ? oct_buffer_of(p->b, bias) : OCTET_ABSENT;
    } else if (f->adds_bias) {
        /* The product adds it on the way. */
        product.bias = fused_bias(p, bias, quantized_gemm);
    }
    result.quantizer = p->args->quantize_output ? &f->role[OCTET_OUTPUT] : NULL;
    if (p->pieces.count) {
        result.rows = oct_all_rows(p->b, oct_tensor_at(p->b, p->pieces.local)->rows);
        oct_tail tail =
            oct_produce_pieces(p->b, &product, &result, &p->pieces, oct_form_of(&result));
        oct_produce_finish(p->b, &tail, &result);
        return;
    }
    oct_produce(p->b, &product, &result);
}

octet_status oct_plan_forward(octet_plan *plan, const octet_linear_args *args,
                              octet_error *err) {
    oct_builder b;
    oct_planner p = oct_planner_start(&b, plan, OCTET_PLAN_LINEAR, args, err);
    uint8_t bias = OCTET_ABSENT;
    uint8_t x = oct_linear_argument(&p, OCTET_NAME_INPUT, &args->input);
    uint8_t w = oct_linear_argument(&p, OCTET_NAME_WEIGHT, &args->weight);
    if (oct_has(&args->bias)) {
        bias = oct_linear_argument(&p, OCTET_NAME_BIAS, &args->bias);
    }
    if (args->prologue) {
        p.x = x;
        if (oct_has(&args->gamma)) {
            p.gamma = oct_linear_argument(&p, OCTET_NAME_GAMMA, &args->gamma);
        }
        if (oct_has(&args->beta)) {
            p.beta = oct_linear_argument(&p, OCTET_NAME_BETA, &args->beta);
        }
        x = apply_prologue(&p);
        save_prologue(&p);
    }
    oct_operand left = forward_input(&p, x);
    oct_operand right = forward_weight(&p, w);
    forward_output(&p, left, right, bias);
    /* The caller adds the bias, so the argument is handed back. */
    if (args->return_bias) {
        oct_output_alias(&b, bias);
    }
    if (args->calibrate) {
        calibrate(&p, x, w);
    }
    oct_fill_amaxes(&b);
    return oct_build_finish(&b);
}

octet_status octet_plan_linear(octet_plan *out, const octet_linear_args *args,
                               octet_error *err) {
    octet_plan plan;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need_size(out->size, sizeof *out, "octet_plan", err);
    status = status ? status : octet_linear_check(args, err);
    status = status ? status : oct_plan_forward(&plan, args, err);
    status = status ? status : oct_plan_check_chunks(&plan, &plan.extents, err);
    if (!status) {
        *out = plan;
    }
    return status;
}

octet_status octet_linear_cache_quantizer(octet_quantizer *out, const octet_linear_args *args,
                                          octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_linear_check(args, err);
    if (status) {
        return status;
    }
    octet_linear_args cached = *args;
    cached.weight_cache = OCTET_CACHE_WRITE;
    oct_builder b = {.device = args->input.device,
                     .target = oct_target_of(&args->input.device)};
    oct_planner p = {.b = &b, .args = &cached, .facts = oct_linear_facts(&cached)};
    *out = oct_uses_cache(&p) ? oct_weight_quantizer(&p)
                              : oct_quantizer_default(OCTET_SCHEME_NONE);
    return OCTET_OK;
}

octet_status octet_linear_parameter_quantizer(octet_quantizer *out,
                                              const octet_linear_args *args, octet_error *err) {
    octet_status status = octet_linear_cache_quantizer(out, args, err);
    if (!status) {
        out->swizzled = 0;
    }
    return status;
}
