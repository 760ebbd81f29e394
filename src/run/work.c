/* work.c - one step of a plan in the caller's memory. */
#include "run/run.h"

#include "quant/layout.h"

typedef struct running {
    const octet_plan *plan;
    const octet_memory *memory;
} running;

static void *at(const running *r, uint8_t buffer) {
    return oct_memory_at(r->plan, r->memory, buffer);
}

/* A tensor with those of its parts that the mask names. */
static void set_matrix(oct_matrix *out, const running *r, uint8_t tensor, uint64_t mask) {
    if (tensor == OCTET_ABSENT) {
        return;
    }
    const octet_plan_tensor *t = &r->plan->tensors[tensor];
    out->quantizer = t->quantizer;
    out->dtype = t->dtype;
    (void)oct_dim_number(&out->rows, &t->rows, &r->plan->extents);
    (void)oct_dim_number(&out->cols, &t->cols, &r->plan->extents);
    for (int part = 0; part < OCTET_PARTS; part++) {
        uint8_t buffer = t->buffers[part];
        if (buffer != OCTET_ABSENT && (mask >> buffer & 1)) {
            out->parts[part] = at(r, buffer);
        }
    }
    uint8_t values = t->buffers[OCTET_PART_VALUES];
    const octet_plan_buffer *b = values == OCTET_ABSENT ? NULL : &r->plan->buffers[values];
    out->stride = out->cols;
    if (b && b->bytes && b->place == OCTET_PLACE_ARG) { /* of nothing any stride will do */
        int64_t stride = r->memory->arg_strides[b->port];
        out->stride = stride ? stride : out->cols;
    }
}

/* Whether an earlier step has written a copy; of nothing there is none. */
static bool is_made(const octet_plan *plan, const octet_step *step, uint8_t copy) {
    uint8_t values = OCTET_ABSENT;
    if (copy != OCTET_ABSENT) {
        values = plan->tensors[copy].buffers[OCTET_PART_VALUES];
    }
    return values != OCTET_ABSENT && plan->buffers[values].bytes && step->reads >> values & 1;
}

static bool is_measured(const octet_plan *plan, const octet_step *step) {
    bool found = false;
    for (const octet_step *s = plan->steps; s < step && !found; s++) {
        found = s->op == OCTET_OP_AMAX && s->phase == step->phase && s->a == step->a;
    }
    return found;
}

/* A product's copy, where the sizes ask for one. */
static void set_copy(oct_matrix *out, const running *r, uint8_t tensor, uint64_t mask) {
    if (tensor != OCTET_ABSENT) {
        uint8_t values = r->plan->tensors[tensor].buffers[OCTET_PART_VALUES];
        set_matrix(out, r, r->plan->buffers[values].bytes ? tensor : OCTET_ABSENT, mask);
    }
}

/* What a cast needs for the factors of a product. */
static void set_alpha(oct_alpha *out, const running *r, uint8_t index) {
    if (index == OCTET_ABSENT) {
        return;
    }
    const octet_step *gemm = &r->plan->steps[index];
    const uint8_t tensors[2] = {gemm->a, gemm->b}, uses[2] = {gemm->a_use, gemm->b_use};
    for (int i = 0; i < 2; i++) {
        const octet_plan_tensor *t = &r->plan->tensors[tensors[i]];
        bool row = uses[i] == OCTET_USE_ROW;
        out->amaxes[i] = at(r, t->buffers[row ? OCTET_PART_ROW_AMAX : OCTET_PART_COL_AMAX]);
        out->quantizers[i] = &t->quantizer;
    }
    out->to = at(r, gemm->alpha);
    out->accumulate = gemm->accumulate;
}

oct_prologue_call oct_prologue_of(const oct_work *work, const octet_plan *plan) {
    bool backward = work->step->b != OCTET_ABSENT;
    return (oct_prologue_call){.prologue = plan->prologue,
                               .zero_centered = plan->zero_centered != 0,
                               .eps = plan->eps,
                               .dst = &work->dst,
                               .x = backward ? &work->b : &work->a,
                               .grad = backward ? &work->a : NULL,
                               .stats = work->stats,
                               .gamma = work->gamma,
                               .beta = work->bias,
                               .amax = work->amax,
                               .amaxes = work->amaxes,
                               .sums = work->sums.parts[OCTET_PART_VALUES]};
}

/* A quantized dst is also read: its amaxes are there before its data. */
void oct_work_of(oct_work *out, const octet_plan *plan, const octet_memory *memory,
                 const octet_step *step) {
    running r = {plan, memory};
    bool has_amax = step->op == OCTET_OP_QUANTIZE;
    *out = (oct_work){.step = step, .ranks = plan->tp_size};
    set_matrix(&out->dst, &r, step->dst, step->writes | (has_amax ? step->reads : 0));
    set_matrix(&out->a, &r, step->a, step->reads);
    set_matrix(&out->b, &r, step->b, step->reads);
    set_copy(&out->a_copy, &r, step->a_copy, step->reads | step->writes);
    set_copy(&out->b_copy, &r, step->b_copy, step->reads | step->writes);
    set_copy(&out->dst_copy, &r, step->dst_copy, step->writes);
    set_copy(&out->b_scales, &r, step->b_scales, step->writes);
    set_copy(&out->sums, &r, step->sums, step->reads | step->writes);
    out->a_made = is_made(plan, step, step->a_copy);
    out->b_made = is_made(plan, step, step->b_copy);
    out->sums_made = is_made(plan, step, step->sums);
    out->a_measured = has_amax && is_measured(plan, step);
    out->to = at(&r, step->to);
    out->to_bytes = step->to == OCTET_ABSENT ? 0 : plan->buffers[step->to].bytes;
    out->scale = at(&r, step->scale);
    out->amax = at(&r, step->amax);
    if (step->amax != OCTET_ABSENT) {
        out->amaxes = plan->buffers[step->amax].bytes / (int64_t)sizeof(float);
    }
    out->seed = at(&r, step->seed);
    out->alpha = at(&r, step->alpha);
    set_alpha(&out->alphas[0], &r, step->alphas[0]);
    set_alpha(&out->alphas[1], &r, step->alphas[1]);
    out->bias.at = at(&r, step->bias);
    out->bias.dtype = step->bias == OCTET_ABSENT ? 0 : plan->buffers[step->bias].dtype;
    out->gamma.at = at(&r, step->gamma);
    out->gamma.dtype = step->gamma == OCTET_ABSENT ? 0 : plan->buffers[step->gamma].dtype;
    if (step->stats != OCTET_ABSENT) {
        out->stats = at(&r, plan->tensors[step->stats].buffers[OCTET_PART_VALUES]);
    }
    out->scratch = at(&r, step->scratch);
    out->scratch_bytes = step->scratch == OCTET_ABSENT ? 0 : plan->buffers[step->scratch].bytes;
}
