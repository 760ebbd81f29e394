/* forward.c - y = x w^T + b: what is quantized, multiplied, reduced and kept for backward. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

/* What stays of the input for wgrad: nothing, the argument itself, or a direction of bytes. */
typedef enum keeping { KEEP_NOTHING, KEEP_GIVEN, KEEP_ROW, KEEP_COL } keeping;

static keeping input_keeping(const oct_planner *p) {
    const oct_facts *f = &p->facts;
    const octet_quantizer *q = &f->role[OCTET_INPUT];
    if (!f->wgrad) {
        return KEEP_NOTHING;
    }
    if (oct_quantizer_is(&p->args->input.quantizer) || !oct_quantizer_is(q) ||
        p->args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION ||
        p->args->save_original_input ||
        (oct_gathers_input(p) && p->args->gather == OCTET_GATHER_HIGH_PRECISION)) {
        return KEEP_GIVEN;
    }
    bool rowwise = p->args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED ||
                   oct_reads_across(p->b, q) ||
                   (oct_gathers_input(p) && oct_quantizer_one_scale(q));
    return rowwise ? KEEP_ROW : KEEP_COL;
}

/* Backward will quantize a plain argument again, after delayed scaling's scales have moved. */
static void keep_scale(oct_planner *p, octet_role role) {
    bool again =
        p->facts.quantized && p->args->recipe.override_ != OCTET_OVERRIDE_HIGH_PRECISION;
    if (!again || !oct_scheme_of(&p->facts.role[role])->given) {
        return;
    }
    bool input = role == OCTET_INPUT;
    octet_plan_name name = input ? OCTET_NAME_INPUT_SCALE : OCTET_NAME_WEIGHT_SCALE;
    octet_slot slot = input ? OCTET_SLOT_INPUT : OCTET_SLOT_WEIGHT;
    uint8_t copy = oct_tensor(p->b, name, OCTET_FORM_CAST, OCTET_F32, NULL);
    oct_place(p->b, copy, OCT_ALL_PARTS, OCTET_PLACE_SAVED);
    octet_step *step = oct_step(p->b, OCTET_OP_CAST);
    step->a = p->b->plan->buffers[oct_scale_slot(p->b, slot)].tensor;
    step->dst = copy;
    oct_step_done(p->b, step);
    oct_save(p->b, copy, OCT_ALL_PARTS);
}

/* Whether wgrad will quantize an input that was kept as it was given. */
static bool quantizes_input_again(const oct_planner *p, uint8_t given) {
    oct_way way = oct_way_to(p->b, given, OCTET_USE_COL, oct_wgrad_hadamard(p));
    bool joined = oct_gathers_input(p) && (way != OCT_WAY_READ || p->args->gather ||
                                           oct_shares_scale(&p->args->input.quantizer));
    bool by_value = oct_tensor_is_plain(p->b, given) || way == OCT_WAY_QUANTIZE || joined;
    return p->facts.quantized_back ? by_value : oct_tensor_is_plain(p->b, given);
}

static void keep_input(oct_planner *p, uint8_t given, uint8_t quantized) {
    octet_use want = p->facts.quantized_back ? OCTET_USE_COL : OCTET_USE_VALUES;
    switch (input_keeping(p)) {
    case KEEP_GIVEN:
        oct_save(p->b, given, oct_wanted_parts(p->b, given, want, oct_wgrad_hadamard(p)));
        if (quantizes_input_again(p, given)) {
            keep_scale(p, OCTET_INPUT);
        }
        break;
    case KEEP_ROW:
        oct_save(p->b, quantized, OCT_ROW_PARTS);
        break;
    case KEEP_COL:
        oct_save(p->b, quantized, OCT_COL_PARTS);
        break;
    case KEEP_NOTHING:
        break;
    }
}

static oct_quantizing input_quantizing(const oct_planner *p) {
    keeping keep = input_keeping(p);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &p->facts.role[OCTET_INPUT],
                                           true, keep == KEEP_COL);
    how.slot = OCTET_SLOT_INPUT;
    how.row_place = keep == KEEP_ROW ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    how.col_place = OCTET_PLACE_SAVED;
    return how;
}

/* Sequence parallel, column: every rank multiplies all rows. */
static oct_operand gathered_input(oct_planner *p, uint8_t x) {
    oct_quantizing how = input_quantizing(p);
    const octet_quantizer *given = &p->args->input.quantizer;
    bool ready = oct_quantizer_is(given) && given->rowwise && !oct_shares_scale(given);
    if (p->args->gather == OCTET_GATHER_HIGH_PRECISION || !oct_quantizer_is(&how.quantizer)) {
        if (ready && !p->args->gather) {
            keep_input(p, x, x);
            return (oct_operand){oct_gather_bytes(p->b, x, OCTET_USE_ROW, OCTET_PLACE_WORK),
                                 OCTET_USE_ROW};
        }
        uint8_t values = oct_values(p->b, x, p->facts.dtype, OCTET_PLACE_EXCHANGE);
        uint8_t all = oct_gather_values(p->b, values, OCTET_PLACE_WORK);
        keep_input(p, x, x);
        how.quantizer = oct_for_gemm(p->b, how.quantizer);
        return oct_direction(p->b, all, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    uint8_t local = x;
    if (!ready) {
        uint8_t values = oct_values(p->b, x, p->args->input.dtype, OCTET_PLACE_WORK);
        how.row_place =
            how.row_place == OCTET_PLACE_WORK ? OCTET_PLACE_EXCHANGE : how.row_place;
        how.reduce = true;
        local = oct_quantize(p->b, values, &how);
    }
    keep_input(p, x, local);
    return (oct_operand){oct_gather_bytes(p->b, local, OCTET_USE_ROW, OCTET_PLACE_WORK),
                         OCTET_USE_ROW};
}

static oct_operand forward_input(oct_planner *p, uint8_t x) {
    bool given = oct_quantizer_is(&p->args->input.quantizer);
    oct_quantizing how = input_quantizing(p);
    if (p->facts.quantized && oct_gathers_input(p) &&
        (given || oct_quantizer_is(&how.quantizer))) {
        return gathered_input(p, x);
    }
    if (!p->facts.quantized || (!given && !oct_quantizer_is(&how.quantizer))) {
        octet_place place = oct_gathers_input(p) ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK;
        uint8_t values = oct_values(p->b, x, p->facts.dtype, place);
        keep_input(p, x, x);
        if (oct_gathers_input(p)) {
            values = oct_gather_values(p->b, values, OCTET_PLACE_WORK);
        }
        return (oct_operand){values, OCTET_USE_VALUES};
    }
    how.quantizer = oct_for_gemm(p->b, how.quantizer);
    if (given) {
        keep_input(p, x, x);
        return oct_direction(p->b, x, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    uint8_t quantized = oct_quantize(p->b, x, &how);
    keep_input(p, x, quantized);
    return (oct_operand){quantized, OCTET_USE_ROW};
}

bool oct_uses_cache(const oct_planner *p) {
    return p->args->weight_cache != OCTET_CACHE_NONE &&
           !oct_quantizer_is(&p->args->weight.quantizer) &&
           oct_quantizer_is(&p->facts.role[OCTET_WEIGHT]);
}

octet_quantizer oct_weight_quantizer(const oct_planner *p) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_WEIGHT]);
    bool again = p->args->fsdp && !oct_uses_cache(p);
    q.rowwise = oct_quantizer_is(&q);
    q.columnwise = oct_quantizer_is(&q) && p->facts.dgrad && p->facts.quantized_back &&
                   !again && !oct_reads_across(p->b, &q);
    return q;
}

/* A weight that arrives plain and is quantized here, or was by an earlier microbatch. */
static oct_operand quantized_weight(oct_planner *p, uint8_t w) {
    bool cached = oct_uses_cache(p);
    bool high = p->args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION;
    bool again = p->args->fsdp && !cached;
    bool keeps = p->facts.dgrad && !high && !again;
    octet_quantizer q = oct_weight_quantizer(p);
    oct_quantizing how = oct_quantizing_of(cached ? OCTET_FORM_CACHED : OCTET_FORM_QUANTIZED,
                                           &q, q.rowwise, q.columnwise);
    how.slot = OCTET_SLOT_WEIGHT;
    how.col_place = cached ? OCTET_PLACE_OUT : OCTET_PLACE_SAVED;
    how.row_place = cached                   ? OCTET_PLACE_OUT
                    : keeps && !q.columnwise ? OCTET_PLACE_SAVED
                                             : OCTET_PLACE_WORK;
    uint8_t made;
    if (cached && p->args->weight_cache == OCTET_CACHE_READ) {
        made =
            oct_tensor(p->b, OCTET_NAME_WEIGHT, OCTET_FORM_CACHED, p->args->weight.dtype, &q);
        oct_tensor_shape(p->b, made, oct_dim_of(OCTET_AXIS_N, 1, 1),
                         oct_dim_of(OCTET_AXIS_K, 1, 1));
        oct_place(p->b, made, OCT_ALL_PARTS, OCTET_PLACE_ARG);
    } else {
        made = oct_quantize(p->b, w, &how);
    }
    if (keeps) {
        oct_save(p->b, made, q.columnwise ? OCT_COL_PARTS : OCT_ROW_PARTS);
    } else if (p->facts.dgrad) {
        oct_save(p->b, w, OCT_ALL_PARTS);
        if (again) {
            keep_scale(p, OCTET_WEIGHT);
        }
    }
    return (oct_operand){made, OCTET_USE_ROW};
}

static oct_operand forward_weight(oct_planner *p, uint8_t w) {
    bool given = oct_quantizer_is(&p->args->weight.quantizer);
    bool has_role = oct_quantizer_is(&p->facts.role[OCTET_WEIGHT]);
    octet_use want = p->facts.quantized_back ? OCTET_USE_COL : OCTET_USE_VALUES;
    if (!given && has_role) {
        return quantized_weight(p, w);
    }
    if (p->facts.dgrad) {
        oct_save(p->b, w, oct_wanted_parts(p->b, w, want, OCTET_HADAMARD_NONE));
    }
    if (p->facts.dgrad && p->facts.quantized_back &&
        oct_way_to(p->b, w, OCTET_USE_COL, OCTET_HADAMARD_NONE) == OCT_WAY_QUANTIZE) {
        keep_scale(p, OCTET_WEIGHT);
    }
    if (given && p->facts.quantized) {
        octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_WEIGHT]);
        oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, true, false);
        how.slot = OCTET_SLOT_WEIGHT;
        return oct_direction(p->b, w, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    return (oct_operand){oct_values(p->b, w, p->facts.dtype, OCTET_PLACE_WORK),
                         OCTET_USE_VALUES};
}

/* Calibration measures what delayed scaling would have quantized. */
static void calibrate(oct_planner *p, uint8_t x, uint8_t w) {
    const uint8_t tensors[] = {x, w};
    static const octet_slot slots[] = {OCTET_SLOT_INPUT, OCTET_SLOT_WEIGHT};
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

/* The epilogue of a quantized GEMM adds bf16 to f32 results. */
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
    if (row_parallel) {
        result.collective = f->sequence ? OCTET_REDUCE_SCATTER : OCTET_ALL_REDUCE_SUM;
        result.late_bias = f->adds_bias ? oct_buffer_of(p->b, bias) : OCTET_ABSENT;
    } else if (f->adds_bias) {
        product.bias = fused_bias(p, bias, quantized_gemm);
    }
    result.quantizer = p->args->quantize_output ? &f->role[OCTET_OUTPUT] : NULL;
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
    oct_operand left = forward_input(&p, x);
    oct_operand right = forward_weight(&p, w);
    forward_output(&p, left, right, bias);
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
