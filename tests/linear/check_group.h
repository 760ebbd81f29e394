/* check_group.h - the collectives are those of the parallel mode, no more, no fewer. */
#ifndef OCTET_CHECK_GROUP_H
#define OCTET_CHECK_GROUP_H

#include "check_meaning.h"

#define IN_GROUP(at, held, ...) CHECK_LAW((at)->report, LAW_GROUP, held, __VA_ARGS__)

/* How often each part of each tensor travels, by collective. */
typedef struct check_transfers {
    int sum[OCTET_NAMES], scatter[OCTET_NAMES];
    int gather[OCTET_NAMES][OCTET_PARTS];
    bool loose[OCTET_NAMES]; /* gathered in one of several forms */
} check_transfers;

/* ---- what is found --------------------------------------------------------------------- */

static inline void check_transfer_sizes(const check_case *at, int index) {
    const octet_step *step = &at->plan->steps[index];
    const octet_plan_buffer *from = &at->plan->buffers[step->from];
    const octet_plan_buffer *to = &at->plan->buffers[step->to];
    int64_t ranks = at->wants.tp;
    int64_t grows = step->collective == OCTET_ALL_GATHER ? ranks : 1;
    int64_t shrinks = step->collective == OCTET_REDUCE_SCATTER ? ranks : 1;
    shrinks *= step->chunk == OCTET_ABSENT ? 1 : at->plan->chunks;
    IN_GROUP(at,
             step->chunk == OCTET_ABSENT ||
                 (step->collective == OCTET_ALL_GATHER && at->plan->by_rows),
             "collective %d sends a chunk of what is not gathered so", index);
    IN_GROUP(at, to->bytes * shrinks == from->bytes * grows && from->dtype == to->dtype,
             "collective %d makes %lld bytes from %lld", index, (long long)to->bytes,
             (long long)from->bytes);
    bool stacks = check_tensor_of(at->plan, step->to)->form == OCTET_FORM_STACKED;
    IN_GROUP(at,
             !stacks || (to->ndim == from->ndim + 1 && to->shape[0] == ranks &&
                         memcmp(to->shape + 1, from->shape, 2 * sizeof *to->shape) == 0),
             "collective %d does not stack shards of its own shape", index);
    IN_GROUP(at,
             check_name_of(at->plan, step->from) == check_name_of(at->plan, step->to) &&
                 from->part == to->part,
             "collective %d makes %s from %s", index, check_name(at->plan, step->to),
             check_name(at->plan, step->from));
}

static inline void check_find_transfers(const check_case *at, check_transfers *found) {
    for (int i = 0; i < at->plan->step_count; i++) {
        const octet_step *step = &at->plan->steps[i];
        if (step->op != OCTET_OP_COLLECTIVE) {
            continue;
        }
        const octet_plan_buffer *from = &at->plan->buffers[step->from];
        int name = check_name_of(at->plan, step->from);
        check_transfer_sizes(at, i);
        found->sum[name] += step->collective == OCTET_ALL_REDUCE_SUM;
        found->scatter[name] += step->collective == OCTET_REDUCE_SCATTER;
        /* All chunks of a part are one gather. */
        bool first = step->chunk == OCTET_ABSENT || step->chunk == 0;
        found->gather[name][from->part] += step->collective == OCTET_ALL_GATHER && first;
        bool sums = step->collective == OCTET_ALL_REDUCE_SUM ||
                    step->collective == OCTET_REDUCE_SCATTER;
        IN_GROUP(at, !sums || from->part == OCTET_PART_VALUES,
                 "collective %d sums quantized bytes", i);
    }
}

/* ---- what is expected ------------------------------------------------------------------ */

/* One scale is every rank's already; an amax per row travels with its row. */
static inline void check_add_gather(int *gather, const octet_quantizer *q, octet_use use) {
    bool rows = use == OCTET_USE_ROW;
    gather[rows ? OCTET_PART_ROW_DATA : OCTET_PART_COL_DATA]++;
    if (!check_is_per_tensor(q)) {
        gather[rows ? OCTET_PART_ROW_SCALE : OCTET_PART_COL_SCALE]++;
    }
    if (q->row_scaled && rows) {
        gather[OCTET_PART_ROW_AMAX]++;
    }
}

static inline bool check_sequence(const check_case *at, octet_parallel parallel) {
    return at->args->parallel == parallel && at->args->sequence_parallel && at->wants.tp > 1;
}

static inline bool check_gathers_bytes(const check_case *at, octet_role role) {
    return at->wants.role[role].scheme != OCTET_SCHEME_NONE &&
           at->args->gather == OCTET_GATHER_QUANTIZED;
}

/* Column parallel over sequences: the input, for fprop and again for wgrad. */
static inline void check_expect_input(const check_case *at, check_transfers *want,
                                      bool forward) {
    const octet_quantizer *q = &at->wants.role[OCTET_INPUT];
    int *gather = want->gather[OCTET_NAME_INPUT];
    int override_ = forward ? OCTET_OVERRIDE_NONE : at->args->recipe.override_;
    want->loose[OCTET_NAME_INPUT] =
        at->args->input.quantizer.scheme != OCTET_SCHEME_NONE ||
        at->args->recipe.kind == OCTET_RECIPE_CUSTOM ||
        override_ == OCTET_OVERRIDE_DEQUANTIZED ||
        (!forward && octet_quantizer_transposable(q) && !check_is_per_tensor(q));
    if (!check_gathers_bytes(at, OCTET_INPUT) || override_ == OCTET_OVERRIDE_HIGH_PRECISION) {
        gather[OCTET_PART_VALUES]++;
    } else {
        bool rows = forward || check_is_per_tensor(q);
        check_add_gather(gather, q, rows ? OCTET_USE_ROW : OCTET_USE_COL);
    }
}

/* Row parallel over sequences: the gradient that arrives, for both products of backward. */
static inline void check_expect_grad(const check_case *at, check_transfers *want) {
    const octet_quantizer *q = &at->wants.role[OCTET_GRAD_OUTPUT];
    int *gather = want->gather[OCTET_NAME_GRAD_OUTPUT];
    bool across = octet_quantizer_transposable(q) && !check_is_per_tensor(q);
    want->loose[OCTET_NAME_GRAD_OUTPUT] =
        at->chain->args.grad_output.quantizer.scheme != OCTET_SCHEME_NONE ||
        at->args->recipe.kind == OCTET_RECIPE_CUSTOM || (across && at->wants.wgrad);
    if (!check_gathers_bytes(at, OCTET_GRAD_OUTPUT) ||
        at->args->recipe.override_ != OCTET_OVERRIDE_NONE) {
        gather[OCTET_PART_VALUES]++;
        return;
    }
    if (at->wants.dgrad || check_is_per_tensor(q)) {
        check_add_gather(gather, q, OCTET_USE_ROW);
    }
    if (at->wants.wgrad && !check_is_per_tensor(q)) {
        check_add_gather(gather, q, OCTET_USE_COL);
    }
}

/* The table of parallel modes, for forward or for what follows it. */
static inline check_transfers check_expect_transfers(const check_case *at, bool forward) {
    check_transfers want = {.loose = {false}};
    bool column = at->args->parallel == OCTET_PARALLEL_COLUMN && at->wants.tp > 1;
    bool row = at->args->parallel == OCTET_PARALLEL_ROW && at->wants.tp > 1;
    int chunks = at->args->chunks > 1 ? (int)at->args->chunks : 1;
    if (forward && row) {
        want.sum[OCTET_NAME_OUTPUT] = !at->args->sequence_parallel;
        want.scatter[OCTET_NAME_OUTPUT] = at->args->sequence_parallel * chunks;
    }
    if (!forward && column && at->wants.dgrad) {
        want.sum[OCTET_NAME_GRAD_INPUT] = !at->args->sequence_parallel;
        want.scatter[OCTET_NAME_GRAD_INPUT] = at->args->sequence_parallel * chunks;
    }
    if (check_sequence(at, OCTET_PARALLEL_COLUMN) && (forward || at->wants.wgrad)) {
        check_expect_input(at, &want, forward);
    }
    if (!forward && check_sequence(at, OCTET_PARALLEL_ROW) &&
        (at->wants.dgrad || at->wants.wgrad)) {
        check_expect_grad(at, &want);
    }
    return want;
}

static inline int check_gather_count(const int *gather) {
    int count = 0;
    for (int part = 0; part < OCTET_PARTS; part++) {
        count += gather[part];
    }
    return count;
}

static inline void check_compare(const check_case *at, const check_transfers *found,
                                 const check_transfers *want) {
    for (int name = 0; name < OCTET_NAMES; name++) {
        const int *has = found->gather[name], *needs = want->gather[name];
        IN_GROUP(at, found->sum[name] == want->sum[name], "tensor name %d is summed %d times",
                 name, found->sum[name]);
        IN_GROUP(at, found->scatter[name] == want->scatter[name],
                 "tensor name %d is reduced and scattered %d times", name,
                 found->scatter[name]);
        if (want->loose[name]) {
            IN_GROUP(at, (check_gather_count(has) > 0) == (check_gather_count(needs) > 0),
                     "tensor name %d is gathered in %d parts", name, check_gather_count(has));
            continue;
        }
        for (int part = 0; part < OCTET_PARTS; part++) {
            IN_GROUP(at, has[part] == needs[part],
                     "%s of tensor name %d is gathered %d times, not %d",
                     octet_part_name((octet_part)part), name, has[part], needs[part]);
        }
    }
}

/* ---- shared amaxes --------------------------------------------------------------------- */

/* Whether a tensor is one rank's shard of what is gathered. */
static inline bool check_is_shard(const check_case *at, const octet_plan_tensor *tensor) {
    if (check_sequence(at, OCTET_PARALLEL_COLUMN)) {
        return tensor->name == OCTET_NAME_INPUT && tensor->rows.mul == tensor->rows.div;
    }
    return check_sequence(at, OCTET_PARALLEL_ROW) && tensor->name == OCTET_NAME_GRAD_OUTPUT &&
           tensor->rows.mul * at->wants.tp == tensor->rows.div;
}

/* The amaxes that a quantization reads rather than measures. */
static inline uint64_t check_amaxes_read(const octet_plan *plan, const octet_step *step) {
    const uint8_t *parts = plan->tensors[step->dst].buffers;
    return step->reads & (check_bit(step->amax) | check_bit(parts[OCTET_PART_ROW_AMAX]) |
                          check_bit(parts[OCTET_PART_COL_AMAX]));
}

static inline uint64_t check_shared(const octet_plan *plan) {
    uint64_t mask = check_slot_mask(plan->restored, plan->restored_count);
    for (int i = 0; i < plan->step_count; i++) {
        bool max = plan->steps[i].collective == OCTET_ALL_REDUCE_MAX;
        mask |= max ? check_bit(plan->steps[i].to) : 0;
    }
    return mask;
}

/* Shards that travel as bytes share one scale: their amax is every rank's. */
static inline void check_amaxes(const check_case *at) {
    const octet_plan *plan = at->plan;
    uint64_t shared = check_shared(plan), used = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op != OCTET_OP_QUANTIZE || !check_is_shard(at, &plan->tensors[step->dst]) ||
            at->args->gather != OCTET_GATHER_QUANTIZED) {
            continue;
        }
        const octet_quantizer *q = &plan->tensors[step->dst].quantizer;
        uint64_t amaxes = check_amaxes_read(plan, step);
        bool both = q->scheme == OCTET_NVFP4 && q->rowwise && q->columnwise;
        used |= amaxes;
        IN_GROUP(at, !check_needs_amax(q) || (amaxes && (amaxes & ~shared) == 0),
                 "step %d quantizes a shard by an amax of this rank alone", i);
        IN_GROUP(at, !check_needs_amax(q) || check_bytes_in(plan, amaxes) == (both ? 8 : 4),
                 "step %d shares %lld bytes of amaxes", i,
                 (long long)check_bytes_in(plan, amaxes));
    }
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        IN_GROUP(at, step->collective != OCTET_ALL_REDUCE_MAX || check_has(used, step->to),
                 "step %d reduces an amax that no shard needs", i);
    }
}

/* Over the whole chain: a delayed wgrad may take its part of the gathers along. */
static inline void check_group(const check_case *cases, int count) {
    check_transfers forward = {.loose = {false}}, later = {.loose = {false}};
    for (int i = 0; i < count; i++) {
        check_find_transfers(&cases[i], i == 0 ? &forward : &later);
        check_amaxes(&cases[i]);
    }
    check_transfers want = check_expect_transfers(&cases[0], true);
    check_compare(&cases[0], &forward, &want);
    if (count > 1) {
        want = check_expect_transfers(&cases[1], false);
        check_compare(&cases[1], &later, &want);
    }
}

#endif
