/* forward.c - y = x w^T + b: what is quantized, multiplied, reduced and kept for backward. */
#include "core/fail.h"
#include "linear/plan.h"
#include "quant/layout.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

/* What stays of the input for wgrad: nothing, the argument itself, or a direction of bytes. */
typedef enum keeping { KEEP_NOTHING, KEEP_GIVEN, KEEP_ROW, KEEP_COL } keeping;

static keeping input_keeping(const oct_builder *b, const octet_linear_args *args) {
    const oct_facts *f = &b->facts;
    const octet_quantizer *q = &f->role[OCTET_INPUT];
    if (!f->wgrad) {
        return KEEP_NOTHING;
    }
    if (oct_quantizer_is(&args->input.quantizer) || !oct_quantizer_is(q) ||
        args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION || args->save_original_input ||
        (oct_gathers_input(b) && args->gather == OCTET_GATHER_HIGH_PRECISION)) {
        return KEEP_GIVEN;
    }
    bool rowwise = args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED ||
                   oct_reads_across(b, q) ||
                   (oct_gathers_input(b) && oct_quantizer_one_scale(q));
    return rowwise ? KEEP_ROW : KEEP_COL;
}

/* Backward will quantize a plain argument again, after delayed scaling's scales have moved. */
static void keep_scale(oct_builder *b, const octet_linear_args *args, octet_role role) {
    bool again = b->facts.quantized && args->recipe.override_ != OCTET_OVERRIDE_HIGH_PRECISION;
    if (!again || b->facts.role[role].scheme != OCTET_FP8_DELAYED) {
        return;
    }
    octet_plan_name name =
        role == OCTET_INPUT ? OCTET_NAME_INPUT_SCALE : OCTET_NAME_WEIGHT_SCALE;
    uint8_t copy = oct_tensor(b, name, OCTET_FORM_CAST, OCTET_F32, NULL);
    oct_place(b, copy, OCT_ALL_PARTS, OCTET_PLACE_SAVED);
    octet_step *step = oct_step(b, OCTET_OP_CAST);
    step->a = b->plan->buffers[oct_scale_slot(b, role)].tensor;
    step->dst = copy;
    oct_step_done(b, step);
    oct_save(b, copy, OCT_ALL_PARTS);
}

/* Whether wgrad will quantize an input that was kept as it was given. */
static bool quantizes_input_again(const oct_builder *b, const octet_linear_args *args,
                                  uint8_t given) {
    oct_way way = oct_way_to(b, given, OCTET_USE_COL, oct_wgrad_hadamard(b));
    bool joined = oct_gathers_input(b) && (way != OCT_WAY_READ || args->gather ||
                                           oct_shares_scale(&args->input.quantizer));
    bool by_value = oct_tensor_is_plain(b, given) || way == OCT_WAY_QUANTIZE || joined;
    return b->facts.quantized_back ? by_value : oct_tensor_is_plain(b, given);
}

static void keep_input(oct_builder *b, const octet_linear_args *args, uint8_t given,
                       uint8_t quantized) {
    octet_use want = b->facts.quantized_back ? OCTET_USE_COL : OCTET_USE_VALUES;
    switch (input_keeping(b, args)) {
    case KEEP_GIVEN:
        oct_save(b, given, oct_wanted_parts(b, given, want, oct_wgrad_hadamard(b)));
        if (quantizes_input_again(b, args, given)) {
            keep_scale(b, args, OCTET_INPUT);
        }
        break;
    case KEEP_ROW:
        oct_save(b, quantized, OCT_ROW_PARTS);
        break;
    case KEEP_COL:
        oct_save(b, quantized, OCT_COL_PARTS);
        break;
    case KEEP_NOTHING:
        break;
    }
}

static oct_quantizing input_quantizing(const oct_builder *b, const octet_linear_args *args) {
    keeping keep = input_keeping(b, args);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &b->facts.role[OCTET_INPUT],
                                           true, keep == KEEP_COL);
    how.slot = OCTET_INPUT;
    how.row_place = keep == KEEP_ROW ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    how.col_place = OCTET_PLACE_SAVED;
    return how;
}

/* Sequence parallel, column: every rank multiplies all rows. */
static oct_operand gathered_input(oct_builder *b, const octet_linear_args *args, uint8_t x) {
    oct_quantizing how = input_quantizing(b, args);
    const octet_quantizer *given = &args->input.quantizer;
    bool ready = oct_quantizer_is(given) && given->rowwise && !oct_shares_scale(given);
    if (args->gather == OCTET_GATHER_HIGH_PRECISION || !oct_quantizer_is(&how.quantizer)) {
        if (ready && !args->gather) {
            keep_input(b, args, x, x);
            return (oct_operand){oct_gather_bytes(b, x, OCTET_USE_ROW, OCTET_PLACE_WORK),
                                 OCTET_USE_ROW};
        }
        uint8_t values = oct_values(b, x, b->facts.dtype, OCTET_PLACE_EXCHANGE);
        uint8_t all = oct_gather_values(b, values, OCTET_PLACE_WORK);
        keep_input(b, args, x, x);
        how.quantizer = oct_for_gemm(b, how.quantizer);
        return oct_direction(b, all, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    uint8_t local = x;
    if (!ready) {
        uint8_t values = oct_values(b, x, args->input.dtype, OCTET_PLACE_WORK);
        how.row_place =
            how.row_place == OCTET_PLACE_WORK ? OCTET_PLACE_EXCHANGE : how.row_place;
        how.reduce = true;
        local = oct_quantize(b, values, &how);
    }
    keep_input(b, args, x, local);
    return (oct_operand){oct_gather_bytes(b, local, OCTET_USE_ROW, OCTET_PLACE_WORK),
                         OCTET_USE_ROW};
}

static oct_operand forward_input(oct_builder *b, const octet_linear_args *args, uint8_t x) {
    bool given = oct_quantizer_is(&args->input.quantizer);
    oct_quantizing how = input_quantizing(b, args);
    if (b->facts.quantized && oct_gathers_input(b) &&
        (given || oct_quantizer_is(&how.quantizer))) {
        return gathered_input(b, args, x);
    }
    if (!b->facts.quantized || (!given && !oct_quantizer_is(&how.quantizer))) {
        octet_place place = oct_gathers_input(b) ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK;
        uint8_t values = oct_values(b, x, b->facts.dtype, place);
        keep_input(b, args, x, x);
        if (oct_gathers_input(b)) {
            values = oct_gather_values(b, values, OCTET_PLACE_WORK);
        }
        return (oct_operand){values, OCTET_USE_VALUES};
    }
    how.quantizer = oct_for_gemm(b, how.quantizer);
    if (given) {
        keep_input(b, args, x, x);
        return oct_direction(b, x, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    uint8_t quantized = oct_quantize(b, x, &how);
    keep_input(b, args, x, quantized);
    return (oct_operand){quantized, OCTET_USE_ROW};
}

bool oct_uses_cache(const oct_builder *b, const octet_linear_args *args) {
    return args->weight_cache != OCTET_CACHE_NONE &&
           !oct_quantizer_is(&args->weight.quantizer) &&
           oct_quantizer_is(&b->facts.role[OCTET_WEIGHT]);
}

octet_quantizer oct_weight_quantizer(const oct_builder *b, const octet_linear_args *args) {
    octet_quantizer q = oct_for_gemm(b, b->facts.role[OCTET_WEIGHT]);
    bool again = args->fsdp && !oct_uses_cache(b, args);
    q.rowwise = oct_quantizer_is(&q);
    q.columnwise = oct_quantizer_is(&q) && b->facts.dgrad && b->facts.quantized_back &&
                   !again && !oct_reads_across(b, &q);
    return q;
}

/* A weight that arrives plain and is quantized here, or was by an earlier microbatch. */
static oct_operand quantized_weight(oct_builder *b, const octet_linear_args *args, uint8_t w) {
    bool cached = oct_uses_cache(b, args);
    bool high = args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION;
    bool again = args->fsdp && !cached;
    bool keeps = b->facts.dgrad && !high && !again;
    octet_quantizer q = oct_weight_quantizer(b, args);
    oct_quantizing how = oct_quantizing_of(cached ? OCTET_FORM_CACHED : OCTET_FORM_QUANTIZED,
                                           &q, q.rowwise, q.columnwise);
    how.slot = OCTET_WEIGHT;
    how.col_place = cached ? OCTET_PLACE_OUT : OCTET_PLACE_SAVED;
    how.row_place = cached                   ? OCTET_PLACE_OUT
                    : keeps && !q.columnwise ? OCTET_PLACE_SAVED
                                             : OCTET_PLACE_WORK;
    uint8_t made;
    if (cached && args->weight_cache == OCTET_CACHE_READ) {
        made = oct_tensor(b, OCTET_NAME_WEIGHT, OCTET_FORM_CACHED, args->weight.dtype, &q);
        oct_tensor_shape(b, made, oct_dim_of(OCTET_AXIS_N, 1, 1),
                         oct_dim_of(OCTET_AXIS_K, 1, 1));
        oct_place(b, made, OCT_ALL_PARTS, OCTET_PLACE_ARG);
    } else {
        made = oct_quantize(b, w, &how);
    }
    if (keeps) {
        oct_save(b, made, q.columnwise ? OCT_COL_PARTS : OCT_ROW_PARTS);
    } else if (b->facts.dgrad) {
        oct_save(b, w, OCT_ALL_PARTS);
        if (again) {
            keep_scale(b, args, OCTET_WEIGHT);
        }
    }
    return (oct_operand){made, OCTET_USE_ROW};
}

static oct_operand forward_weight(oct_builder *b, const octet_linear_args *args, uint8_t w) {
    bool given = oct_quantizer_is(&args->weight.quantizer);
    bool has_role = oct_quantizer_is(&b->facts.role[OCTET_WEIGHT]);
    octet_use want = b->facts.quantized_back ? OCTET_USE_COL : OCTET_USE_VALUES;
    if (!given && has_role) {
        return quantized_weight(b, args, w);
    }
    if (b->facts.dgrad) {
        oct_save(b, w, oct_wanted_parts(b, w, want, OCTET_HADAMARD_NONE));
    }
    if (b->facts.dgrad && b->facts.quantized_back &&
        oct_way_to(b, w, OCTET_USE_COL, OCTET_HADAMARD_NONE) == OCT_WAY_QUANTIZE) {
        keep_scale(b, args, OCTET_WEIGHT);
    }
    if (given && b->facts.quantized) {
        octet_quantizer q = oct_for_gemm(b, b->facts.role[OCTET_WEIGHT]);
        oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, true, false);
        how.slot = OCTET_WEIGHT;
        return oct_direction(b, w, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    return (oct_operand){oct_values(b, w, b->facts.dtype, OCTET_PLACE_WORK), OCTET_USE_VALUES};
}

/* Calibration measures what delayed scaling would have quantized. */
static void calibrate(oct_builder *b, const octet_linear_args *args, uint8_t x, uint8_t w) {
    const uint8_t tensors[] = {x, w};
    for (int role = OCTET_INPUT; role <= OCTET_WEIGHT; role++) {
        octet_quantizer q = oct_recipe_role(&args->recipe, (octet_role)role);
        if (q.scheme == OCTET_FP8_DELAYED) {
            octet_step *step;
            uint8_t values = oct_values(b, tensors[role], b->facts.dtype, OCTET_PLACE_WORK);
            uint8_t amax = oct_amax_slot(b, role);
            step = oct_step(b, OCTET_OP_AMAX);
            step->a = values;
            step->amax = amax;
            step->accumulate = b->raises;
            oct_step_done(b, step);
        }
    }
}

/* The epilogue of a quantized GEMM adds bf16 to f32 results. */
static uint8_t fused_bias(oct_builder *b, uint8_t bias, bool quantized_gemm) {
    bool narrow = quantized_gemm && b->facts.dtype == OCTET_F32;
    uint8_t tensor = oct_values(b, bias, narrow ? OCTET_BF16 : oct_tensor_at(b, bias)->dtype,
                                OCTET_PLACE_WORK);
    return oct_buffer_of(b, tensor);
}

static void forward_output(oct_builder *b, const octet_linear_args *args, oct_operand x,
                           oct_operand w, uint8_t bias) {
    const oct_facts *f = &b->facts;
    bool row_parallel = f->parallel == OCTET_PARALLEL_ROW;
    bool quantized_gemm = x.use != OCTET_USE_VALUES || w.use != OCTET_USE_VALUES;
    oct_result result = {OCTET_NAME_OUTPUT,
                         f->output_dtype,
                         oct_tensor_at(b, x.tensor)->rows,
                         oct_dim_of(OCTET_AXIS_N, 1, 1),
                         OCTET_COLLECTIVE_NONE,
                         OCTET_ABSENT,
                         NULL,
                         OCTET_OUTPUT};
    oct_product product = {OCTET_FPROP,
                           x,
                           w,
                           OCTET_ABSENT,
                           OCTET_ABSENT,
                           false,
                           f->quantized && args->recipe.split_fprop};
    if (row_parallel) {
        result.collective = f->sequence ? OCTET_REDUCE_SCATTER : OCTET_ALL_REDUCE_SUM;
        result.late_bias = f->adds_bias ? oct_buffer_of(b, bias) : OCTET_ABSENT;
    } else if (f->adds_bias) {
        product.bias = fused_bias(b, bias, quantized_gemm);
    }
    result.quantizer = args->quantize_output ? &f->role[OCTET_OUTPUT] : NULL;
    oct_produce(b, &product, &result);
}

octet_status oct_plan_forward(octet_plan *plan, const octet_linear_args *args,
                              octet_error *err) {
    oct_builder b = oct_build_start(plan, OCTET_PLAN_LINEAR, args, err);
    uint8_t bias = OCTET_ABSENT;
    uint8_t x = oct_argument(&b, OCTET_NAME_INPUT, &args->input);
    uint8_t w = oct_argument(&b, OCTET_NAME_WEIGHT, &args->weight);
    if (oct_has(&args->bias)) {
        bias = oct_argument(&b, OCTET_NAME_BIAS, &args->bias);
    }
    oct_operand left = forward_input(&b, args, x);
    oct_operand right = forward_weight(&b, args, w);
    forward_output(&b, args, left, right, bias);
    if (args->return_bias) {
        oct_output_alias(&b, bias);
    }
    if (args->calibrate) {
        calibrate(&b, args, x, w);
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
    oct_builder b = {.facts = oct_linear_facts(&cached), .device = args->input.device};
    *out = oct_uses_cache(&b, &cached) ? oct_weight_quantizer(&b, &cached)
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
