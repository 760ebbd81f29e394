/* check_quantize.h - quantizations are the recipe's, with its state, cache and seed. */
#ifndef OCTET_CHECK_QUANTIZE_H
#define OCTET_CHECK_QUANTIZE_H

#include "check_meaning.h"

/* ---- whose quantizer ------------------------------------------------------------------- */

/* The recipe's, or for the direction that a quantized argument lacked, that argument's. */
static inline void check_whose(const check_case *at, int index) {
    const octet_plan_tensor *dst = &at->plan->tensors[at->plan->steps[index].dst];
    octet_role role = check_role(dst->name);
    if (!MEANS(at, role != OCTET_ROLES, "step %d quantizes what has no role", index)) {
        return;
    }
    const octet_quantizer *asked = &at->wants.role[role];
    bool recipe = asked->scheme && check_same_recipe(&dst->quantizer, asked);
    bool given = dst->form == OCTET_FORM_REQUANTIZED &&
                 check_same_recipe(&dst->quantizer, check_given(at, dst->name));
    /* save=memory has a quantizer of its own for what an activation reads. */
    if (dst->form == OCTET_FORM_PACKED) {
        octet_quantizer fine = {.size = sizeof fine};
        bool named = octet_quantizer_parse(&fine, "mxfp8:e4m3/1x32+row", NULL) == OCTET_OK;
        recipe = named && octet_quantizer_equal(&dst->quantizer, &fine) && check_packs(at);
        recipe = recipe && role == OCTET_INPUT;
    }
    MEANS(at, recipe || given, "step %d quantizes %s by another quantizer than the recipe's",
          index, octet_role_name(role));
}

/* ---- stochastic rounding --------------------------------------------------------------- */

/* No two roles share the random bits of a seed. */
static inline octet_stream check_stream(octet_role role) {
    switch (role) {
    case OCTET_INPUT:
        return OCTET_STREAM_INPUT;
    case OCTET_WEIGHT:
        return OCTET_STREAM_WEIGHT;
    case OCTET_OUTPUT:
        return OCTET_STREAM_OUTPUT;
    case OCTET_GRAD_INPUT:
        return OCTET_STREAM_GRAD_INPUT;
    case OCTET_GRAD_WEIGHT:
        return OCTET_STREAM_GRAD_WEIGHT;
    default:
        return OCTET_STREAM_GRAD_OUTPUT;
    }
}

static inline void check_seed(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    const octet_step *step = &plan->steps[index];
    const octet_plan_tensor *dst = &plan->tensors[step->dst];
    bool wanted = dst->quantizer.stochastic != 0, there = step->seed != OCTET_ABSENT;
    if (!MEANS(at, there == wanted, "step %d %s a seed", index,
               there ? "takes needlessly" : "rounds stochastically without") ||
        !there) {
        return;
    }
    const octet_plan_buffer *buffer = &plan->buffers[step->seed];
    MEANS(at,
          buffer->place == OCTET_PLACE_ARG && buffer->dtype == OCTET_I64 &&
              buffer->bytes == 8 && check_name_of(plan, step->seed) == OCTET_NAME_SEED,
          "step %d's seed is not the caller's", index);
    MEANS(at, !plan->args[buffer->port].is_mutable, "step %d's seed may be written", index);
    MEANS(at, step->stream == check_stream(check_role(dst->name)),
          "step %d rounds by the random bits of another role", index);
}

/* ---- delayed scaling ------------------------------------------------------------------- */

/* The slot of a role in its direction's state; -1 when it has none there. */
static inline int check_state_slot(const octet_plan *plan, int name) {
    if (plan->kind == OCTET_PLAN_LINEAR) {
        return name == OCTET_NAME_INPUT    ? 0
               : name == OCTET_NAME_WEIGHT ? 1
               : name == OCTET_NAME_OUTPUT ? 2
                                           : -1;
    }
    return name == OCTET_NAME_GRAD_OUTPUT ? 0 : name == OCTET_NAME_GRAD_INPUT ? 1 : -1;
}

static inline bool check_is_state(const octet_plan *plan, int buffer, int place,
                                  octet_plan_name name, int slot) {
    const octet_plan_buffer *b = &plan->buffers[buffer];
    const octet_port *port = check_port_of(plan, b);
    return b->place == place && port && port->name == name && b->offset == 4 * slot &&
           b->bytes == 4;
}

/* Where amaxes go: to an output, or to the caller's own. */
static inline octet_place check_amax_place(const check_case *at) {
    return at->args->raise_amax ? OCTET_PLACE_ARG : OCTET_PLACE_OUT;
}

/* A quantization with the caller's scale reads its own role's, and records its own amax. */
static inline void check_delayed_step(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    const octet_step *step = &plan->steps[index];
    const octet_plan_tensor *dst = &plan->tensors[step->dst];
    bool wanted = dst->quantizer.scheme == OCTET_FP8_DELAYED;
    bool there = step->scale != OCTET_ABSENT;
    if (!MEANS(at, there == wanted, "step %d %s a scale", index,
               there ? "is given" : "lacks") ||
        !there) {
        return;
    }
    int slot = check_state_slot(plan, dst->name);
    if (slot < 0) { /* what forward quantized is quantized again: with the scale it had then */
        MEANS(at, check_has(check_slot_mask(plan->restored, plan->restored_count), step->scale),
              "step %d quantizes again with a scale that forward did not save", index);
        MEANS(at, step->amax == OCTET_ABSENT, "step %d records an amax again", index);
        return;
    }
    MEANS(at, check_is_state(plan, step->scale, OCTET_PLACE_ARG, OCTET_NAME_SCALE, slot),
          "step %d takes another role's scale", index);
    if (at->args->skip_amax) {
        MEANS(at, step->amax == OCTET_ABSENT, "step %d measures an amax unasked", index);
        return;
    }
    MEANS(
        at,
        step->amax == OCTET_ABSENT ||
            check_is_state(plan, step->amax, (int)check_amax_place(at), OCTET_NAME_AMAX, slot),
        "step %d records its amax in another role's slot", index);
}

/* Who writes an amax slot: the quantization or measurement of its role, or else a zero. */
static inline void check_amax_slot(const check_case *at, int port, int slot) {
    const octet_plan *plan = at->plan;
    bool quantized = false, recorded = false;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool here = step->dst != OCTET_ABSENT &&
                    check_state_slot(plan, plan->tensors[step->dst].name) == slot;
        quantized |= here && step->op == OCTET_OP_QUANTIZE && step->scale != OCTET_ABSENT;
        uint64_t mask = check_place_mask(plan, check_amax_place(at), port) & step->writes;
        for (int b = 0; b < plan->buffer_count; b++) {
            if (!check_has(mask, b) || plan->buffers[b].offset != 4 * slot) {
                continue;
            }
            bool measures = step->op == OCTET_OP_AMAX &&
                            check_state_slot(plan, plan->tensors[step->a].name) == slot;
            recorded |= step->op == OCTET_OP_QUANTIZE || step->op == OCTET_OP_AMAX;
            MEANS(at, step->op == OCTET_OP_ZERO || step->op == OCTET_OP_QUANTIZE || measures,
                  "step %d writes amax slot %d, which is not its own", i, slot);
            MEANS(at, step->accumulate == at->args->raise_amax, "step %d %s amax slot %d", i,
                  step->accumulate ? "raises" : "overwrites", slot);
        }
    }
    MEANS(at, !quantized || recorded, "amax slot %d is zero, yet its role is quantized", slot);
    MEANS(at, !recorded || quantized || at->args->calibrate, "amax slot %d is of no use", slot);
}

/* The amaxes of its direction, where they belong. */
static inline void check_amax_port(const check_case *at, int slots) {
    const octet_plan *plan = at->plan;
    bool raises = at->args->raise_amax;
    const octet_port *ports = raises ? plan->args : plan->outs;
    int count = raises ? plan->arg_count : plan->out_count;
    int amax = check_find_port(ports, count, OCTET_NAME_AMAX);
    if (!MEANS(at,
               amax >= 0 && ports[amax].dtype == OCTET_F32 && ports[amax].bytes == 4 * slots,
               "it does not %s the %d amaxes of its direction", raises ? "take" : "hand out",
               slots)) {
        return;
    }
    MEANS(at, ports[amax].is_mutable == raises, "the amaxes are %smarked mutable",
          raises ? "not " : "");
    for (int slot = 0; slot < slots; slot++) {
        check_amax_slot(at, amax, slot);
    }
}

/* Whether some step asks for the state: to scale by it, or to report for it. */
static inline bool check_uses_state(const check_case *at) {
    bool uses =
        at->args->calibrate && at->wants.is_delayed && at->plan->kind == OCTET_PLAN_LINEAR;
    for (int i = 0; i < at->plan->step_count; i++) {
        const octet_step *step = &at->plan->steps[i];
        uses |= step->op == OCTET_OP_QUANTIZE &&
                at->plan->tensors[step->dst].quantizer.scheme == OCTET_FP8_DELAYED &&
                check_state_slot(at->plan, at->plan->tensors[step->dst].name) >= 0;
    }
    return uses;
}

static inline void check_delayed(const check_case *at) {
    const octet_plan *plan = at->plan;
    int scale = check_find_port(plan->args, plan->arg_count, OCTET_NAME_SCALE);
    int slots = plan->kind == OCTET_PLAN_LINEAR ? 3 : 2;
    if (!check_uses_state(at)) {
        return;
    }
    if (!at->args->calibrate) {
        MEANS(at,
              scale >= 0 && plan->args[scale].dtype == OCTET_F32 &&
                  plan->args[scale].bytes == 4 * slots,
              "it does not take the %d scales of its direction", slots);
    }
    if (at->args->skip_amax) {
        MEANS(at,
              check_find_port(plan->args, plan->arg_count, OCTET_NAME_AMAX) < 0 &&
                  check_find_port(plan->outs, plan->out_count, OCTET_NAME_AMAX) < 0,
              "it has amaxes, which are not measured");
        return;
    }
    check_amax_port(at, slots);
}

/* Calibrating measures both operands of a product in high precision. */
static inline void check_calibration(const check_case *at) {
    int measured = 0;
    for (int i = 0; i < at->plan->step_count; i++) {
        const octet_step *step = &at->plan->steps[i];
        measured += step->op == OCTET_OP_AMAX;
        MEANS(at, step->op != OCTET_OP_QUANTIZE, "step %d quantizes while calibrating", i);
    }
    MEANS(at, at->plan->kind != OCTET_PLAN_LINEAR || !at->wants.is_delayed || measured >= 2,
          "calibrating measures %d operands", measured);
}

/* ---- the weight's cache ---------------------------------------------------------------- */

static inline void check_cache(const check_case *at) {
    const octet_plan *plan = at->plan;
    octet_quantizer cache;
    if (at->args->weight_cache == OCTET_CACHE_NONE || at->args->calibrate ||
        octet_linear_cache_quantizer(&cache, at->args, NULL) != OCTET_OK ||
        cache.scheme == OCTET_SCHEME_NONE) {
        return;
    }
    bool reads = at->args->weight_cache == OCTET_CACHE_READ;
    int arg = check_tensor_in(plan, OCTET_PLACE_ARG, OCTET_NAME_WEIGHT, OCTET_FORM_CACHED);
    int out = check_tensor_in(plan, OCTET_PLACE_OUT, OCTET_NAME_WEIGHT, OCTET_FORM_CACHED);
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool weight =
            step->op == OCTET_OP_QUANTIZE && plan->tensors[step->dst].name == OCTET_NAME_WEIGHT;
        MEANS(at, !weight || (!reads && plan->kind == OCTET_PLAN_LINEAR),
              "step %d quantizes a weight that is cached", i);
    }
    if (plan->kind != OCTET_PLAN_LINEAR) {
        return;
    }
    int found = reads ? arg : out >= 0 ? out : arg;
    MEANS(at, found >= 0 && octet_quantizer_equal(&plan->tensors[found].quantizer, &cache),
          "the cache is not %s", reads ? "taken" : "written");
    MEANS(at,
          reads || found < 0 || (check_tensor_mask(plan, found) & ~check_all_writes(plan)) == 0,
          "the cache is not written whole");
}

static inline void check_quantizing(const check_case *at) {
    for (int i = 0; i < at->plan->step_count; i++) {
        const octet_step *step = &at->plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE) {
            check_whose(at, i);
            check_seed(at, i);
            check_delayed_step(at, i);
        }
    }
    if (at->args->calibrate) {
        check_calibration(at);
    }
    check_delayed(at);
    check_cache(at);
}

#endif
