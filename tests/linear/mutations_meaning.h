/* mutations_meaning.h - plans that are sound in themselves but do something else than asked. */
#ifndef OCTET_MUTATIONS_MEANING_H
#define OCTET_MUTATIONS_MEANING_H

#include "mutations.h"

static inline octet_linear_args *ask(check_chain *chain) {
    return &chain->args.forward;
}

static inline octet_step *find_gemm(octet_plan *plan, octet_gemm gemm) {
    for (int i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].op == OCTET_OP_GEMM && plan->steps[i].gemm == gemm) {
            return &plan->steps[i];
        }
    }
    return NULL;
}

/* ---- products -------------------------------------------------------------------------- */

static inline bool swap_operands(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    uint8_t a = step->a, use = step->a_use;
    step->a = step->b;
    step->a_use = step->b_use;
    step->b = a;
    step->b_use = use;
    return true;
}

static inline bool mistake_the_product(check_chain *chain) {
    find_gemm(fwd(chain), OCTET_FPROP)->gemm = OCTET_DGRAD;
    return true;
}

static inline bool read_across(check_chain *chain) {
    octet_step *step = chain->count > 1 ? find_gemm(bwd(chain), OCTET_WGRAD) : NULL;
    if (!step || step->a_use != OCTET_USE_COL ||
        octet_quantizer_transposable(&bwd(chain)->tensors[step->a].quantizer)) {
        return false;
    }
    step->a_use = OCTET_USE_ROW;
    return true;
}

static inline bool transform_one_operand(check_chain *chain) {
    octet_step *step = chain->count > 1 ? find_gemm(bwd(chain), OCTET_WGRAD) : NULL;
    if (!step || !bwd(chain)->tensors[step->b].quantizer.hadamard) {
        return false;
    }
    bwd(chain)->tensors[step->b].quantizer.hadamard = OCTET_HADAMARD_NONE;
    return true;
}

static inline bool add_unasked(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    step->accumulate = 1;
    return true;
}

static inline bool accumulate_otherwise(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    step->split = !step->split;
    return check_is_quantized(&fwd(chain)->tensors[step->a]) &&
           check_is_quantized(&fwd(chain)->tensors[step->b]);
}

static inline bool be_invariant_unasked(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    step->invariant = !step->invariant;
    return true;
}

static inline bool claim_to_be_native(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    const octet_quantizer *q = &fwd(chain)->tensors[step->a].quantizer;
    bool emulated =
        q->scheme && !octet_scheme_native((octet_scheme)q->scheme, &fwd(chain)->device);
    step->native = 1;
    return emulated;
}

static inline bool work_in_the_result(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    step->scratch = fwd(chain)->tensors[step->dst].buffers[OCTET_PART_VALUES];
    return true;
}

static inline bool lose_the_scratch(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    bool had = step->scratch != OCTET_ABSENT;
    step->scratch = OCTET_ABSENT;
    return had;
}

static inline bool leave_scales_in_order(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    octet_plan_tensor *tensor = &fwd(chain)->tensors[step->a];
    bool had = tensor->quantizer.swizzled && fwd(chain)->device.kind == OCTET_CUDA;
    tensor->quantizer.swizzled = 0;
    return had && step->native;
}

/* The step forgets one of its tensors, where there is one to forget. */
static inline bool lose_tensor(const octet_plan *plan, octet_step *step, uint8_t *tensor,
                               bool had) {
    if (had) {
        step->writes &= ~check_tensor_mask(plan, *tensor);
        *tensor = OCTET_ABSENT;
    }
    return had;
}

static inline bool lose_a_decoded_operand(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    bool had = step->a_copy != OCTET_ABSENT && !step->native;
    return lose_tensor(fwd(chain), step, &step->a_copy, had);
}

static inline bool ask_for_exact_products(check_chain *chain) {
    ask(chain)->recipe.product = OCTET_MX_EXACT;
    return check_is_folded(fwd(chain), find_gemm(fwd(chain), OCTET_FPROP));
}

static inline bool fold_across(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    bool folded = check_is_folded(fwd(chain), step);
    octet_plan_tensor *copy = folded ? &fwd(chain)->tensors[step->a_copy] : NULL;
    if (folded) {
        copy->quantizer.rowwise = 0;
        copy->quantizer.columnwise = 1;
    }
    return folded;
}

static inline bool swap_folded_operands(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    uint8_t a = step->a_copy;
    step->a_copy = step->b_copy;
    step->b_copy = a;
    return check_is_folded(fwd(chain), step);
}

/* The buffer of a padded copy of the first product; NULL where it is not padded. */
static inline octet_plan_buffer *find_padded(check_chain *chain, int tensor) {
    octet_plan *plan = fwd(chain);
    bool padded = tensor != OCTET_ABSENT && plan->tensors[tensor].form == OCTET_FORM_PADDED;
    return padded ? &plan->buffers[plan->tensors[tensor].buffers[OCTET_PART_VALUES]] : NULL;
}

static inline bool lose_a_padded_operand(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    bool had = find_padded(chain, step->b_copy) != NULL;
    return lose_tensor(fwd(chain), step, &step->b_copy, had);
}

/* A byte of what a product works in. */
static inline bool shrink_the_scratch(check_chain *chain) {
    octet_step *step = find_gemm(fwd(chain), OCTET_FPROP);
    bool had = step->scratch != OCTET_ABSENT && fwd(chain)->buffers[step->scratch].bytes > 0;
    if (had) {
        fwd(chain)->buffers[step->scratch].bytes--;
    }
    return had;
}

/* The bias gradient reads grad_output once more. */
static inline bool sum_once_more(check_chain *chain) {
    octet_plan *plan = chain->count > 1 ? bwd(chain) : fwd(chain);
    bool had = false;
    for (int i = 0; i < plan->step_count; i++) {
        octet_step *step = &plan->steps[i];
        if (step->op != OCTET_OP_BIAS_GRAD && step->sums != OCTET_ABSENT) {
            had = lose_tensor(plan, step, &step->sums, true);
        } else if (had && step->op == OCTET_OP_BIAS_GRAD) {
            step->reads = check_tensor_mask(plan, step->a);
            step->writes |= check_tensor_mask(plan, step->sums);
        }
    }
    return had;
}

static inline bool pad_what_is_whole(check_chain *chain) {
    octet_plan_buffer *buffer = find_padded(chain, find_gemm(fwd(chain), OCTET_FPROP)->a_copy);
    if (buffer) {
        buffer->ragged = 0;
    }
    return buffer != NULL;
}

/* ---- the arguments changed their mind -------------------------------------------------- */

static inline bool ask_for_a_quantized_output(check_chain *chain) {
    octet_quantizer q;
    bool plain = !ask(chain)->quantize_output;
    ask(chain)->quantize_output = 1;
    return plain && !ask(chain)->calibrate &&
           octet_recipe_quantizer(&q, &ask(chain)->recipe, OCTET_OUTPUT, NULL) == OCTET_OK &&
           q.scheme != OCTET_SCHEME_NONE;
}

static inline bool ask_for_another_dtype(check_chain *chain) {
    ask(chain)->output_dtype = OCTET_F16;
    return true;
}

static inline bool ask_for_no_input_grad(check_chain *chain) {
    bool had = ask(chain)->input_requires_grad != 0 && ask(chain)->weight_requires_grad != 0;
    ask(chain)->input_requires_grad = 0;
    return had;
}

static inline bool ask_for_no_weight_grad(check_chain *chain) {
    bool had = ask(chain)->input_requires_grad != 0 && ask(chain)->weight_requires_grad != 0;
    ask(chain)->weight_requires_grad = 0;
    return had && chain->count == 2;
}

static inline bool ask_for_main_grad(check_chain *chain) {
    bool had = ask(chain)->main_grad != OCTET_MAIN_GRAD_NONE;
    ask(chain)->main_grad = OCTET_MAIN_GRAD_ADD;
    return !had && chain->count > 1 && ask(chain)->weight_requires_grad;
}

static inline bool ask_to_overwrite_main_grad(check_chain *chain) {
    bool adds = ask(chain)->main_grad == OCTET_MAIN_GRAD_ADD;
    ask(chain)->main_grad = OCTET_MAIN_GRAD_OVERWRITE;
    return adds && ask(chain)->weight_requires_grad;
}

static inline bool has_bias_grad(check_chain *chain) {
    return chain->count > 1 && check_wants_of(ask(chain)).bias_grad;
}

static inline bool ask_for_bias_main_grad(check_chain *chain) {
    bool had = ask(chain)->bias_main_grad != OCTET_MAIN_GRAD_NONE;
    ask(chain)->bias_main_grad = OCTET_MAIN_GRAD_ADD;
    return !had && has_bias_grad(chain);
}

static inline bool ask_to_overwrite_bias_main_grad(check_chain *chain) {
    bool adds = ask(chain)->bias_main_grad == OCTET_MAIN_GRAD_ADD;
    ask(chain)->bias_main_grad = OCTET_MAIN_GRAD_OVERWRITE;
    return adds && has_bias_grad(chain);
}

static inline bool ask_for_another_bias_main_grad(check_chain *chain) {
    ask(chain)->bias_main_grad_dtype = OCTET_F16;
    return ask(chain)->bias_main_grad && has_bias_grad(chain);
}

static inline bool ask_for_the_bias_back(check_chain *chain) {
    bool adds = ask(chain)->bias.dtype != OCTET_NONE && !ask(chain)->return_bias;
    ask(chain)->return_bias = 1;
    return adds;
}

static inline bool ask_to_save_no_weight(check_chain *chain) {
    bool stored = false;
    for (int i = 0; i < fwd(chain)->saved_count; i++) {
        int buffer = fwd(chain)->saved[i];
        stored |= fwd(chain)->buffers[buffer].place == OCTET_PLACE_SAVED &&
                  check_name_of(fwd(chain), buffer) == OCTET_NAME_WEIGHT;
    }
    ask(chain)->fsdp = 1;
    return stored;
}

static inline bool ask_to_save_the_input(check_chain *chain) {
    bool stored = false;
    for (int i = 0; i < fwd(chain)->saved_count; i++) {
        int buffer = fwd(chain)->saved[i];
        stored |= fwd(chain)->buffers[buffer].place == OCTET_PLACE_SAVED &&
                  fwd(chain)->buffers[buffer].part != OCTET_PART_VALUES &&
                  check_name_of(fwd(chain), buffer) == OCTET_NAME_INPUT;
    }
    ask(chain)->save_original_input = 1;
    return stored;
}

static inline bool ask_for_the_cache(check_chain *chain) {
    octet_quantizer cache;
    bool none = ask(chain)->weight_cache == OCTET_CACHE_NONE;
    ask(chain)->weight_cache = OCTET_CACHE_READ;
    return none && octet_linear_cache_quantizer(&cache, ask(chain), NULL) == OCTET_OK &&
           cache.scheme != OCTET_SCHEME_NONE;
}

static inline bool ask_for_another_device(check_chain *chain) {
    ask(chain)->input.device.index++;
    return true;
}

static inline bool ask_for_another_recipe(check_chain *chain) {
    bool quantizes = find_op(fwd(chain), OCTET_OP_QUANTIZE) >= 0;
    octet_recipe_kind kind =
        ask(chain)->recipe.kind == OCTET_RECIPE_BLOCK ? OCTET_RECIPE_MXFP8 : OCTET_RECIPE_BLOCK;
    return octet_recipe_make(&ask(chain)->recipe, kind, NULL) == OCTET_OK && quantizes;
}

static inline bool ask_for_a_plain_backward(check_chain *chain) {
    bool quantized = chain->count > 1 && find_op(bwd(chain), OCTET_OP_QUANTIZE) >= 0 &&
                     ask(chain)->recipe.kind != OCTET_RECIPE_DELAYED;
    ask(chain)->recipe.override_ = OCTET_OVERRIDE_HIGH_PRECISION;
    return quantized;
}

static inline bool ask_with_another_input(check_chain *chain) {
    ask(chain)->input.dtype = OCTET_F32;
    return fwd(chain)->args[0].name == OCTET_NAME_INPUT;
}

static inline bool add_the_bias_early(check_chain *chain) {
    int step = find_op(fwd(chain), OCTET_OP_ADD_BIAS);
    int sum = check_output_sum(fwd(chain));
    if (step >= 0) {
        fwd(chain)->steps[step].phase = 0;
    }
    return step >= 0 && sum >= 0;
}

/* ---- state and seed -------------------------------------------------------------------- */

static inline bool take_anothers_scale(check_chain *chain) {
    octet_step *first = NULL;
    for (int i = 0; i < fwd(chain)->step_count; i++) {
        octet_step *step = &fwd(chain)->steps[i];
        if (step->op != OCTET_OP_QUANTIZE || step->scale == OCTET_ABSENT) {
            continue;
        }
        if (first) {
            uint8_t scale = first->scale;
            first->scale = step->scale;
            step->scale = scale;
            return true;
        }
        first = step;
    }
    return false;
}

/* Swaps what two quantizations without a scale are scaled by. */
static inline bool take_anothers_amax(check_chain *chain) {
    octet_step *first = NULL;
    for (int i = 0; i < fwd(chain)->step_count; i++) {
        octet_step *step = &fwd(chain)->steps[i];
        if (step->op != OCTET_OP_QUANTIZE || step->scale != OCTET_ABSENT ||
            step->amax == OCTET_ABSENT) {
            continue;
        }
        if (first) {
            uint8_t amax = first->amax;
            first->amax = step->amax;
            step->amax = amax;
            return true;
        }
        first = step;
    }
    return false;
}

static inline bool zero_an_amax(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    int port = check_find_port(plan->outs, plan->out_count, OCTET_NAME_AMAX);
    for (int i = 0; port >= 0 && i < plan->step_count; i++) {
        octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE && step->amax != OCTET_ABSENT) {
            step->writes &= ~check_bit(step->amax);
            step->amax = OCTET_ABSENT;
            return true;
        }
    }
    return false;
}

/* Raises an amax that was to be replaced, or the other way round. */
static inline bool turn_a_raise(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    for (int i = 0; i < plan->step_count; i++) {
        octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE && step->scale != OCTET_ABSENT &&
            step->amax != OCTET_ABSENT) {
            step->accumulate = !step->accumulate;
            step->reads ^= check_bit(step->amax);
            return true;
        }
    }
    return false;
}

/* Asks for amaxes in the caller's own place where they are handed out, or the other way. */
static inline bool ask_for_another_amax(check_chain *chain) {
    ask(chain)->raise_amax = !ask(chain)->raise_amax;
    return ask(chain)->recipe.kind == OCTET_RECIPE_DELAYED && !ask(chain)->skip_amax &&
           check_count_ops(fwd(chain), OCTET_OP_QUANTIZE) > 0;
}

/* Asks for no amaxes where they are measured, or the other way. */
static inline bool ask_for_no_amax(check_chain *chain) {
    ask(chain)->skip_amax = !ask(chain)->skip_amax;
    return ask(chain)->recipe.kind == OCTET_RECIPE_DELAYED &&
           check_count_ops(fwd(chain), OCTET_OP_QUANTIZE) > 0;
}

/* The first step that rounds stochastically; NULL where there is none. */
static inline octet_step *find_rounding(octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].seed != OCTET_ABSENT) {
            return &plan->steps[i];
        }
    }
    return NULL;
}

static inline bool round_without_a_seed(check_chain *chain) {
    octet_step *step = find_rounding(chain->count > 1 ? bwd(chain) : fwd(chain));
    if (step) {
        step->reads &= ~check_bit(step->seed);
        step->seed = OCTET_ABSENT;
        step->stream = 0;
    }
    return step != NULL;
}

/* Rounds by the bits that round the input. */
static inline bool round_by_anothers_bits(check_chain *chain) {
    octet_step *step = find_rounding(chain->count > 1 ? bwd(chain) : fwd(chain));
    if (step) {
        step->stream = OCTET_STREAM_INPUT;
    }
    return step != NULL;
}

/* Two tensors of one call by the same bits. */
static inline bool round_two_by_the_same_bits(check_chain *chain) {
    octet_step *first = find_rounding(fwd(chain));
    for (octet_step *step = first; step && step < fwd(chain)->steps + OCTET_PLAN_STEPS;
         step++) {
        if (step->op == OCTET_OP_QUANTIZE && step->stream != first->stream) {
            step->stream = first->stream;
            return true;
        }
    }
    return false;
}

/* Lets the caller believe that the seed moves. */
static inline bool mark_the_seed_mutable(check_chain *chain) {
    octet_plan *plan = chain->count > 1 ? bwd(chain) : fwd(chain);
    octet_step *step = find_rounding(plan);
    if (step) {
        plan->args[plan->buffers[step->seed].port].is_mutable = 1;
    }
    return step != NULL;
}

/* A cast that leaves notes for a product, and the product; false where there is none. */
static inline bool find_note(octet_plan *plan, octet_step **cast, octet_step **gemm) {
    for (int i = 0; i < plan->step_count; i++) {
        *cast = &plan->steps[i];
        for (int k = i; k < plan->step_count; k++) {
            *gemm = &plan->steps[k];
            if ((*gemm)->op == OCTET_OP_GEMM && ((*gemm)->reads & check_notes_mask(*cast))) {
                return true;
            }
        }
    }
    return false;
}

/* Leaves a product to make its factor in a launch of its own. */
static inline bool lose_a_note(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    octet_step *cast, *gemm;
    if (!find_note(plan, &cast, &gemm)) {
        return false;
    }
    cast->writes &= ~check_bit(cast->scratch);
    gemm->reads &= ~check_bit(cast->scratch);
    cast->scratch = OCTET_ABSENT;
    cast->reads = check_expect(plan, cast).reads;
    return true;
}

/* Makes a factor before the other operand is measured. */
static inline bool hasten_a_note(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    octet_step *cast, *gemm;
    int first = find_op(plan, OCTET_OP_QUANTIZE);
    if (!find_note(plan, &cast, &gemm) || first < 0 || cast == &plan->steps[first]) {
        return false;
    }
    plan->steps[first].scratch = cast->scratch;
    cast->scratch = OCTET_ABSENT;
    plan->steps[first].reads = check_expect(plan, &plan->steps[first]).reads;
    plan->steps[first].writes = check_expect(plan, &plan->steps[first]).writes;
    cast->reads = check_expect(plan, cast).reads;
    cast->writes = check_expect(plan, cast).writes;
    return true;
}

/* ---- the group ------------------------------------------------------------------------- */

static inline bool ask_for_no_group(check_chain *chain) {
    ask(chain)->parallel = OCTET_PARALLEL_NONE;
    return find_op(fwd(chain), OCTET_OP_COLLECTIVE) >= 0;
}

static inline bool ask_for_a_group(check_chain *chain) {
    bool none = ask(chain)->parallel == OCTET_PARALLEL_NONE;
    ask(chain)->parallel = OCTET_PARALLEL_ROW;
    ask(chain)->tp_size = 2;
    return none;
}

static inline bool ask_for_another_gather(check_chain *chain) {
    int step = find_op(fwd(chain), OCTET_OP_COLLECTIVE);
    bool gathers = step >= 0 && check_count_ops(fwd(chain), OCTET_OP_QUANTIZE) > 0 &&
                   ask(chain)->parallel == OCTET_PARALLEL_COLUMN &&
                   ask(chain)->recipe.kind != OCTET_RECIPE_CUSTOM;
    ask(chain)->gather = ask(chain)->gather == OCTET_GATHER_QUANTIZED
                             ? OCTET_GATHER_HIGH_PRECISION
                             : OCTET_GATHER_QUANTIZED;
    return gathers;
}

static inline bool sum_instead_of_gather(check_chain *chain) {
    int step = find_op(fwd(chain), OCTET_OP_COLLECTIVE);
    if (step >= 0) {
        octet_step *s = &fwd(chain)->steps[step];
        s->collective =
            s->collective == OCTET_ALL_REDUCE_SUM ? OCTET_ALL_REDUCE_MAX : OCTET_ALL_REDUCE_SUM;
    }
    return step >= 0;
}

/* Takes a rank's own amax where that of all ranks is wanted. */
static inline bool measure_alone(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    for (int i = 0; i < plan->step_count; i++) {
        octet_step *step = &plan->steps[i];
        if (step->collective == OCTET_ALL_REDUCE_MAX) {
            step->to = step->from;
            return true;
        }
    }
    return false;
}

#endif
