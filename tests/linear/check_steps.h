/* check_steps.h - a step makes its result from the operand it is a result of. */
#ifndef OCTET_CHECK_STEPS_H
#define OCTET_CHECK_STEPS_H

#include "check_meaning.h"

static inline bool check_same_dim(const octet_dim *a, const octet_dim *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static inline bool check_same_sides(const octet_plan_tensor *a, const octet_plan_tensor *b) {
    return a->name == b->name && check_same_dim(&a->rows, &b->rows) &&
           check_same_dim(&a->cols, &b->cols);
}

/* The scale of one role, set aside for backward. */
static inline bool check_saves_scale(const octet_plan_tensor *a, const octet_plan_tensor *dst) {
    return a->name == OCTET_NAME_SCALE &&
           (dst->name == OCTET_NAME_INPUT_SCALE || dst->name == OCTET_NAME_WEIGHT_SCALE);
}

/* Who is quantized, before and after. */
static inline bool check_forms_fit(int op, const octet_plan_tensor *a,
                                   const octet_plan_tensor *dst) {
    bool before = check_is_quantized(a), after = check_is_quantized(dst);
    switch (op) {
    case OCTET_OP_CAST:
    case OCTET_OP_ADD_BIAS:
        return !before && !after;
    case OCTET_OP_QUANTIZE:
        return !before && after;
    case OCTET_OP_DEQUANTIZE:
        return before && !after;
    case OCTET_OP_TRANSPOSE:
    case OCTET_OP_SWIZZLE:
        return before && check_same_recipe(&a->quantizer, &dst->quantizer);
    case OCTET_OP_ASSEMBLE:
    case OCTET_OP_JOIN:
        return before == after && check_same_recipe(&a->quantizer, &dst->quantizer);
    default:
        return true;
    }
}

static inline bool check_is_prologue(const octet_step *step) {
    return step->op >= OCTET_OP_STATISTICS && step->op <= OCTET_OP_GAMMA_GRAD;
}

/* A cast, or the amax before it, that computes f(x). */
static inline bool check_applies(const octet_step *step) {
    return step->op == OCTET_OP_PROLOGUE || step->apply;
}

static inline bool check_is(const octet_plan_tensor *t, int name, int form) {
    return t->name == name && t->form == form && !check_is_quantized(t);
}

/* A prologue's step has the tensors that its function is of: x as it was given, what a norm has
 * besides, and the gradient of f(x); and its results have their rows. */
static inline void check_prologue_step(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    const octet_step *step = &plan->steps[index];
    bool grad = step->b != OCTET_ABSENT, norm = at->wants.norm;
    bool applies = check_applies(step);
    const octet_plan_tensor *x = &plan->tensors[grad ? step->b : step->a];
    const octet_plan_tensor *a = &plan->tensors[step->a];
    bool decoded = check_packs(at) && plan->kind != OCTET_PLAN_LINEAR &&
                   check_is(x, OCTET_NAME_INPUT, OCTET_FORM_DEQUANTIZED);
    MEANS(at, check_is(x, OCTET_NAME_INPUT, OCTET_FORM_GIVEN) || decoded, "step %d is not of x",
          index);
    MEANS(at, !grad || check_is(a, OCTET_NAME_GRAD_INPUT, OCTET_FORM_PROLOGUE),
          "step %d is not from the gradient of f(x)", index);
    bool reads = step->op != OCTET_OP_STATISTICS && norm;
    MEANS(at,
          (step->stats != OCTET_ABSENT) == reads &&
              (!reads || plan->tensors[step->stats].name == OCTET_NAME_STATISTICS),
          "step %d has statistics that it does not want, or lacks them", index);
    bool factor = norm && (applies || step->op == OCTET_OP_PROLOGUE_GRAD);
    MEANS(at,
          (step->gamma != OCTET_ABSENT) == factor &&
              (!factor || check_name_of(plan, step->gamma) == OCTET_NAME_GAMMA),
          "step %d has a gamma that it does not want, or lacks it", index);
    bool adds = applies && at->args->beta.dtype != OCTET_NONE;
    MEANS(at,
          (step->bias != OCTET_ABSENT) == adds &&
              (!adds || check_name_of(plan, step->bias) == OCTET_NAME_BETA),
          "step %d has a beta that it does not want, or lacks it", index);
    if (step->dst == OCTET_ABSENT) {
        return; /* an amax */
    }
    const octet_plan_tensor *dst = &plan->tensors[step->dst];
    int64_t columns = check_dim(plan, &dst->cols), k = at->wants.k;
    int64_t means = at->args->prologue == OCTET_LAYERNORM ? 2 : 1;
    bool fits = step->op == OCTET_OP_STATISTICS ? columns == means && dst->dtype == OCTET_F32
                : step->op == OCTET_OP_PROLOGUE_GRAD ? check_same_dim(&dst->cols, &x->cols)
                                                     : columns == k;
    MEANS(at, fits && (check_same_dim(&dst->rows, &x->rows) || step->op == OCTET_OP_GAMMA_GRAD),
          "step %d makes a result of another shape", index);
    MEANS(at,
          !step->apply || (dst->name == OCTET_NAME_INPUT && dst->dtype == x->dtype &&
                           check_is_quantized(dst)),
          "step %d makes no cast of f(x)", index);
    bool cuda = plan->device.kind == OCTET_CUDA && step->op == OCTET_OP_GAMMA_GRAD;
    MEANS(at, (step->sums != OCTET_ABSENT) == cuda, "step %d %s sums", index,
          cuda ? "lacks" : "has no use for");
}

/* One tensor in two forms; bias gradients and shards aside, they have the same sides. */
static inline void check_identity(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    const octet_step *step = &plan->steps[index];
    if (step->apply) {
        check_prologue_step(at, index);
        return;
    }
    if (step->op == OCTET_OP_GEMM || step->a == OCTET_ABSENT || step->dst == OCTET_ABSENT) {
        return;
    }
    const octet_plan_tensor *a = &plan->tensors[step->a], *dst = &plan->tensors[step->dst];
    if (step->op == OCTET_OP_BIAS_GRAD) {
        bool result =
            dst->name == OCTET_NAME_GRAD_BIAS || dst->name == OCTET_NAME_BIAS_MAIN_GRAD;
        bool beta = a->name == OCTET_NAME_GRAD_INPUT && a->form == OCTET_FORM_PROLOGUE &&
                    dst->name == OCTET_NAME_GRAD_BETA;
        MEANS(at,
              ((a->name == OCTET_NAME_GRAD_OUTPUT && result) || beta) &&
                  check_same_dim(&a->cols, &dst->cols) && !check_is_quantized(a),
              "step %d does not sum grad_output", index);
        return;
    }
    if (check_is_prologue(step)) {
        check_prologue_step(at, index);
        return;
    }
    octet_plan_tensor part = *dst;
    octet_dim *cut = plan->by_rows ? &part.rows : &part.cols;
    cut->div = (uint16_t)(cut->div * (step->chunk == OCTET_ABSENT ? 1 : plan->chunks));
    bool sides =
        step->op == OCTET_OP_ASSEMBLE ? a->name == dst->name : check_same_sides(a, &part);
    MEANS(at, check_forms_fit(step->op, a, dst), "step %d cannot make tensor %d of tensor %d",
          index, step->dst, step->a);
    bool converts = step->op == OCTET_OP_CAST || step->op == OCTET_OP_DEQUANTIZE ||
                    step->op == OCTET_OP_ADD_BIAS || step->op == OCTET_OP_AMAX;
    MEANS(at, converts || a->dtype == dst->dtype, "step %d makes %s of %s", index,
          octet_dtype_name((octet_dtype)dst->dtype), octet_dtype_name((octet_dtype)a->dtype));
    MEANS(at, sides || (step->op == OCTET_OP_CAST && check_saves_scale(a, dst)),
          "step %d makes tensor %d of tensor %d, which is another", index, step->dst, step->a);
}

/* ---- amaxes ---------------------------------------------------------------------------- */

/* The step that measured an amax, on this rank or before the ranks' were reduced; -1: none. */
static inline int check_measurer(const octet_plan *plan, int buffer) {
    int at = check_writer(plan, buffer);
    if (at >= 0 && plan->steps[at].op == OCTET_OP_COLLECTIVE) {
        at = check_writer(plan, plan->steps[at].from);
    }
    bool measures = at >= 0 && (plan->steps[at].op == OCTET_OP_AMAX ||
                                plan->steps[at].op == OCTET_OP_PROLOGUE);
    return measures ? at : -1;
}

/* Columns that are transformed are measured as such. */
static inline bool check_measures_alike(const octet_plan *plan, const octet_step *amax,
                                        const octet_plan_tensor *dst, int part) {
    bool transformed = part == OCTET_PART_COL_AMAX && dst->quantizer.hadamard;
    return !transformed ||
           (amax->dst != OCTET_ABSENT &&
            plan->tensors[amax->dst].quantizer.hadamard == dst->quantizer.hadamard);
}

/* A scale is made from the amax of the very tensor that it scales. */
static inline void check_own_amax(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    const octet_step *step = &plan->steps[index];
    const octet_plan_tensor *dst = &plan->tensors[step->dst];
    uint64_t amaxes = 0;
    if (step->scale == OCTET_ABSENT) {
        amaxes = check_bit(step->amax) | check_bit(dst->buffers[OCTET_PART_ROW_AMAX]) |
                 check_bit(dst->buffers[OCTET_PART_COL_AMAX]);
    }
    bool needs =
        dst->quantizer.scheme == OCTET_FP8_TENSOR || dst->quantizer.scheme == OCTET_NVFP4;
    MEANS(at, needs == (amaxes != 0), "step %d %s an amax", index,
          needs ? "lacks" : "has no use for");
    for (int i = 0; i < plan->buffer_count; i++) {
        bool restored = check_has(check_slot_mask(plan->restored, plan->restored_count), i);
        if (!check_has(amaxes, i) || restored) {
            continue;
        }
        int from = check_measurer(plan, i);
        bool made = from >= 0 && plan->steps[from].op == OCTET_OP_PROLOGUE;
        MEANS(at,
              from >= 0 && (made ? plan->steps[from].dst : plan->steps[from].a) == step->a &&
                  plan->steps[from].apply == step->apply &&
                  check_measures_alike(plan, &plan->steps[from], dst, plan->buffers[i].part),
              "step %d scales by the amax of another tensor", index);
    }
}

/* ---- operands of products -------------------------------------------------------------- */

/* The scheme that the recipe gives an operand; OCTET_SCHEMES where it was given quantized. */
static inline int check_operand_scheme(const check_case *at, int name) {
    bool backward = at->plan->kind != OCTET_PLAN_LINEAR;
    if (backward && at->args->recipe.override_ != OCTET_OVERRIDE_NONE) {
        return OCTET_SCHEME_NONE;
    }
    octet_role role = check_role(name);
    return role == OCTET_ROLES || check_given(at, name)->scheme ? OCTET_SCHEMES
                                                                : at->wants.role[role].scheme;
}

static inline void check_operand_of(const check_case *at, int index, int tensor) {
    const octet_plan_tensor *operand = &at->plan->tensors[tensor];
    int scheme = check_operand_scheme(at, operand->name);
    MEANS(at, scheme == OCTET_SCHEMES || operand->quantizer.scheme == scheme,
          "step %d multiplies tensor %d as %s, not as %s", index, tensor,
          octet_scheme_name((octet_scheme)operand->quantizer.scheme),
          octet_scheme_name((octet_scheme)scheme));
}

/* A decoded operand: the same sides, but for the whole last group of a transform, in rows of
 * whole 16 bytes. */
static inline bool check_decodes(const octet_plan_tensor *operand,
                                 const octet_plan_tensor *decoded, int use) {
    octet_plan_tensor whole = *operand;
    whole.cols.align = decoded->dtype == OCTET_F32 ? 4 : 8;
    if (operand->quantizer.hadamard && use == OCTET_USE_COL) {
        whole.rows.align = 16;
    }
    return check_same_sides(&whole, decoded) && !check_is_quantized(decoded) &&
           (check_is_quantized(operand) || operand->dtype != decoded->dtype);
}

/* A folded operand: 128-blocks along the product, of the same format, with sizes rounded up to
 * whole 16 bytes along it and eights across. */
static inline bool check_folds(const octet_plan_tensor *operand,
                               const octet_plan_tensor *folded, bool by_rows) {
    octet_plan_tensor whole = *operand;
    const octet_quantizer *q = &folded->quantizer;
    whole.rows.align = by_rows ? 16 : 8;
    whole.cols.align = by_rows ? 8 : 16;
    return folded->form == OCTET_FORM_FOLDED && check_same_sides(&whole, folded) &&
           q->scheme == OCTET_FP8_BLOCK && q->format == operand->quantizer.format &&
           q->block_rows == 1 && q->block_cols == 128 && q->rowwise == !by_rows &&
           q->columnwise == by_rows;
}

/* Who folds, too: the products of MXFP8 on compute capability 9.0, but for two of E5M2, unless
 * the recipe asks for exact ones. */
static inline bool check_should_fold(const check_case *at, const octet_step *step) {
    const octet_quantizer *a = &at->plan->tensors[step->a].quantizer;
    const octet_quantizer *b = &at->plan->tensors[step->b].quantizer;
    bool hopper = at->plan->device.kind == OCTET_CUDA && at->plan->device.arch == 90;
    return hopper && a->scheme == OCTET_MXFP8 && b->scheme == OCTET_MXFP8 &&
           !(a->format == OCTET_E5M2 && b->format == OCTET_E5M2) &&
           (step->chunk == OCTET_ABSENT || at->plan->by_rows) &&
           at->args->recipe.product == OCTET_MX_FOLDED && !step->invariant;
}

/* Who decodes an operand: the product, or the cast that made these very bytes. */
static inline bool check_decoder_fits(const octet_plan *plan, int tensor, int use, int copy) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE && (step->a_copy == copy || step->b_copy == copy)) {
            return step->dst == tensor &&
                   (use == OCTET_USE_ROW ? step->a_copy : step->b_copy) == copy;
        }
    }
    return true;
}

/* The dtype that a product sees: an emulated one decodes what is not in its dtype already. */
static inline int check_seen_dtype(const check_case *at, int index, int tensor, int copy) {
    const octet_plan_tensor *operand = &at->plan->tensors[tensor];
    const octet_step *step = &at->plan->steps[index];
    int use = tensor == step->a ? step->a_use : step->b_use;
    bool native = step->native != 0;
    if (copy == OCTET_ABSENT) {
        MEANS(at, native || !check_is_quantized(operand), "step %d has no room to decode",
              index);
        return operand->dtype;
    }
    const octet_plan_tensor *decoded = &at->plan->tensors[copy];
    if (native && decoded->form == OCTET_FORM_PADDED) {
        return operand->dtype;
    }
    MEANS(at, !native && check_decodes(operand, decoded, use),
          "step %d has no use for a decoded operand", index);
    MEANS(at, check_decoder_fits(at->plan, tensor, use, copy),
          "step %d multiplies what another operand decodes to", index);
    return decoded->dtype;
}

/* Whether bf16 holds an operand without rounding: bytes times scales that are powers of two,
 * or that stay outside of the product. */
static inline bool check_fits_bf16(const octet_plan_tensor *operand) {
    const octet_quantizer *q = &operand->quantizer;
    return check_is_quantized(operand) ? q->scheme != OCTET_FP8_BLOCK || q->pow2
                                       : operand->dtype == OCTET_BF16;
}

static inline void check_folded(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    const octet_step *step = &plan->steps[index];
    bool both = step->b_copy != OCTET_ABSENT && !step->native;
    MEANS(at,
          both &&
              check_folds(&plan->tensors[step->a], &plan->tensors[step->a_copy],
                          step->gemm == OCTET_WGRAD) &&
              check_folds(&plan->tensors[step->b], &plan->tensors[step->b_copy],
                          step->gemm != OCTET_FPROP),
          "step %d multiplies what its operands are not folded to", index);
    MEANS(at,
          check_decoder_fits(plan, step->a, step->a_use, step->a_copy) &&
              (!both || check_decoder_fits(plan, step->b, step->b_use, step->b_copy)),
          "step %d multiplies what another operand is folded to", index);
}

static inline void check_operands_of(const check_case *at, int index) {
    const octet_step *step = &at->plan->steps[index];
    bool bytes = check_is_quantized(&at->plan->tensors[step->a]) ||
                 check_is_quantized(&at->plan->tensors[step->b]);
    check_operand_of(at, index, step->a);
    check_operand_of(at, index, step->b);
    bool folded = check_is_folded(at->plan, step);
    MEANS(at, folded == check_should_fold(at, step), "step %d is %s", index,
          folded ? "folded" : "not folded");
    if (folded) {
        check_folded(at, index);
        return;
    }
    int a = check_seen_dtype(at, index, step->a, step->a_copy);
    int b = check_seen_dtype(at, index, step->b, step->b_copy);
    MEANS(at,
          step->native || a != OCTET_BF16 ||
              (check_fits_bf16(&at->plan->tensors[step->a]) &&
               check_fits_bf16(&at->plan->tensors[step->b])),
          "step %d rounds an operand to bf16", index);
    MEANS(at, a == b || (bytes && step->native), "step %d multiplies %s by %s", index,
          octet_dtype_name((octet_dtype)a), octet_dtype_name((octet_dtype)b));
}

/* What forward's bytes decode to, or the tensors themselves. */
static inline void check_override(const check_case *at) {
    const octet_plan *plan = at->plan;
    int override_ = at->args->recipe.override_;
    bool plain = !at->args->input.quantizer.scheme && !at->args->weight.quantizer.scheme;
    if (plan->kind == OCTET_PLAN_LINEAR || override_ == OCTET_OVERRIDE_NONE || !plain) {
        return;
    }
    int decoded[OCTET_NAMES] = {0}, multiplied[OCTET_NAMES] = {0};
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_DEQUANTIZE) {
            decoded[plan->tensors[step->a].name] += step->a_use == OCTET_USE_ROW;
        } else if (step->op == OCTET_OP_GEMM) {
            multiplied[plan->tensors[step->b].name]++;
        }
    }
    for (int name = OCTET_NAME_INPUT; name <= OCTET_NAME_WEIGHT; name++) {
        bool wanted = override_ == OCTET_OVERRIDE_DEQUANTIZED && multiplied[name] &&
                      at->wants.role[check_role(name)].scheme;
        MEANS(at, decoded[name] == wanted, "%s is decoded %d times, not %d",
              octet_role_name(check_role(name)), decoded[name], wanted);
    }
}

/* ---- column sums ------------------------------------------------------------------------ */

/* Whether the caller does not look at a buffer: workspace, or carried from phase to phase. */
static inline bool check_unseen(const octet_plan *plan, int buffer) {
    uint8_t place = plan->buffers[buffer].place;
    return place == OCTET_PLACE_WORK || (plan->phases > 1 && place == OCTET_PLACE_EXCHANGE);
}

/* One row of sums for each 128 of what is summed, which no one sees. */
static inline bool check_sums_fit(const octet_plan *plan, const octet_step *step) {
    const octet_plan_tensor *sums = &plan->tensors[step->sums], *a = &plan->tensors[step->a];
    int buffer = sums->buffers[OCTET_PART_VALUES];
    return buffer != OCTET_ABSENT && check_unseen(plan, buffer) && sums->dtype == OCTET_F32 &&
           check_same_dim(&sums->cols, &a->cols) &&
           check_dim(plan, &sums->rows) == (check_dim(plan, &a->rows) + 127) / 128;
}

/* A GPU sums in parts, and what is done to an argument before sums it on the way. */
static inline void check_summing(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    const octet_step *step = &plan->steps[index];
    bool cuda = plan->device.kind == OCTET_CUDA, has = step->sums != OCTET_ABSENT;
    int before = check_summer(plan, step->a);
    bool given = cuda && before >= 0 && plan->tensors[step->a].form == OCTET_FORM_GIVEN;
    MEANS(at, has == cuda, "step %d has sums of parts, or has none, against its device", index);
    MEANS(at, !given || step->sums == plan->steps[before].sums,
          "step %d sums what step %d has read", index, before);
    MEANS(at, !has || check_sums_fit(plan, step), "step %d has sums of another shape or place",
          index);
}

/* Sums that a step leaves are wanted. */
static inline void check_summed(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    int readers = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        readers += step->op == OCTET_OP_BIAS_GRAD && step->sums == plan->steps[index].sums &&
                   step->a == plan->steps[index].a;
    }
    MEANS(at, readers == 1, "step %d leaves sums for %d steps", index, readers);
}

/* ---- factors of products ----------------------------------------------------------------- */

/* A cast of an operand that has what a product's factor is made of. */
static inline bool check_knows(const octet_plan *plan, int cast, int gemm) {
    const octet_step *step = &plan->steps[cast], *product = &plan->steps[gemm];
    uint64_t factors = check_factors(plan, product);
    if (step->op != OCTET_OP_QUANTIZE || cast > gemm) {
        return false;
    }
    const octet_quantizer *q = &plan->tensors[step->dst].quantizer;
    bool known = q->scheme == OCTET_NVFP4 && !q->four_over_six &&
                 (check_amax_parts(plan, step->dst) & factors) != 0;
    for (int i = cast; i < gemm; i++) {
        known = known && !(plan->steps[i].writes & factors);
    }
    return known;
}

/* The chunk that the others are made like. */
static inline const octet_step *check_first_chunk(const octet_plan *plan,
                                                  const octet_step *gemm) {
    const octet_step *first = gemm;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        first = step->op == OCTET_OP_GEMM && step->chunk == 0 ? step : first;
    }
    return first;
}

/* On a GPU a product has its factor from the last cast that can make it, and from no other. */
static inline void check_notes(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    const octet_step *gemm = &plan->steps[index];
    int wanted = -1, makers = 0, maker = -1;
    if (gemm->chunk != OCTET_ABSENT && gemm->chunk > 0) {
        uint64_t own = check_all_notes(plan);
        MEANS(at, ((gemm->reads ^ check_first_chunk(plan, gemm)->reads) & own) == 0,
              "step %d has a factor that is not its product's", index);
        return;
    }
    for (int i = 0; i < plan->step_count; i++) {
        bool cuda = plan->device.kind == OCTET_CUDA;
        wanted = cuda && check_factors(plan, gemm) && check_knows(plan, i, index) ? i : wanted;
        bool makes = (gemm->reads & check_notes_mask(&plan->steps[i])) != 0;
        makers += makes;
        maker = makes ? i : maker;
    }
    MEANS(at, maker == wanted && makers == (wanted >= 0),
          "step %d has its factor from step %d, of %d, not from step %d", index, maker, makers,
          wanted);
}

/* Two floats for each product that reads them. */
static inline void check_noting(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    uint8_t notes = plan->steps[index].scratch;
    int readers = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool follows = step->chunk != OCTET_ABSENT && step->chunk > 0;
        bool gemm = step->op == OCTET_OP_GEMM && !follows; /* chunks have one note */
        readers += gemm && (plan->steps[i].reads & check_bit(notes)) != 0;
    }
    MEANS(at,
          notes == OCTET_ABSENT ||
              (check_unseen(plan, notes) && plan->buffers[notes].bytes == 8 * readers &&
               readers > 0 && check_name_of(plan, notes) == OCTET_NAME_NOTES),
          "step %d's notes are not alpha and beta of %d products", index, readers);
}

/* x itself is read by its prologue, and by the cast that saves it in 8 bits; what these decode
 * to by the prologue alone. */
static inline void check_behind_prologue(const check_case *at, int index) {
    const octet_step *step = &at->plan->steps[index];
    if (step->a == OCTET_ABSENT || !at->args->prologue) {
        return;
    }
    const octet_plan_tensor *a = &at->plan->tensors[step->a];
    bool given = check_is(a, OCTET_NAME_INPUT, OCTET_FORM_GIVEN);
    bool reads =
        given || (check_packs(at) && check_is(a, OCTET_NAME_INPUT, OCTET_FORM_DEQUANTIZED));
    bool packs = given && step->op == OCTET_OP_QUANTIZE &&
                 at->plan->tensors[step->dst].form == OCTET_FORM_PACKED;
    MEANS(at, !reads || check_is_prologue(step) || step->apply || packs,
          "step %d reads x instead of f(x)", index);
}

static inline void check_steps(const check_case *at) {
    for (int i = 0; i < at->plan->step_count; i++) {
        const octet_step *step = &at->plan->steps[i];
        check_identity(at, i);
        check_behind_prologue(at, i);
        if (step->op == OCTET_OP_QUANTIZE) {
            check_own_amax(at, i);
            check_noting(at, i);
        } else if (step->op == OCTET_OP_BIAS_GRAD) {
            check_summing(at, i);
        } else if (step->op == OCTET_OP_GEMM) {
            check_operands_of(at, i);
            check_notes(at, i);
        }
        if (step->op != OCTET_OP_BIAS_GRAD && step->op != OCTET_OP_GAMMA_GRAD &&
            step->sums != OCTET_ABSENT) {
            check_summed(at, i);
        }
    }
    check_override(at);
}

#endif
