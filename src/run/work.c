/* work.c - one step of a plan in the caller's memory. */
#include "run/run.h"

#include "format/prologue.h"
#include "format/scheme.h"
#include "plan/product.h"
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

/* The buffer of a copy's elements: values, or the codes of a folded one, which has one
 * direction. */
static uint8_t elements_of(const octet_plan *plan, uint8_t copy) {
    const uint8_t *buffers = plan->tensors[copy].buffers;
    return buffers[OCTET_PART_VALUES] != OCTET_ABSENT     ? buffers[OCTET_PART_VALUES]
           : buffers[OCTET_PART_ROW_DATA] != OCTET_ABSENT ? buffers[OCTET_PART_ROW_DATA]
                                                          : buffers[OCTET_PART_COL_DATA];
}

/* Whether an earlier step has written a copy; of nothing there is none. */
static bool is_made(const octet_plan *plan, const octet_step *step, uint8_t copy) {
    uint8_t elements = copy == OCTET_ABSENT ? OCTET_ABSENT : elements_of(plan, copy);
    return elements != OCTET_ABSENT && plan->buffers[elements].bytes &&
           step->reads >> elements & 1;
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
        uint8_t elements = elements_of(r->plan, tensor);
        set_matrix(out, r, r->plan->buffers[elements].bytes ? tensor : OCTET_ABSENT, mask);
    }
}

/* ---- factors of products ----------------------------------------------------------------- */

/* Whether a product reads what a cast leaves. */
static bool reads_notes(const octet_step *gemm, const octet_step *cast) {
    return gemm->op == OCTET_OP_GEMM && gemm->reads >> cast->scratch & 1;
}

static bool leaves_notes(const octet_step *step) {
    return step->op == OCTET_OP_QUANTIZE && step->scratch != OCTET_ABSENT;
}

/* The two factors of a product (alpha and beta) among the notes of a cast, which lie in the
 * order of products. Example: the cast of dy leaves two for dgrad, and behind them two for
 * wgrad. */
static float *note_at(const running *r, const octet_step *cast, const octet_step *gemm) {
    float *notes = at(r, cast->scratch);
    bool counted = false; /* the chunks of a product have one note */
    for (const octet_step *s = cast + 1; s <= gemm; s++) {
        bool first = reads_notes(s, cast) && !oct_is_later_chunk(s);
        notes += first && counted ? 2 : 0;
        counted = counted || first;
    }
    return notes;
}

/* The factors that a cast has left for a product; NULL: none. */
static const float *alpha_of(const running *r, const octet_step *gemm) {
    for (const octet_step *s = r->plan->steps; s < gemm; s++) {
        if (leaves_notes(s) && reads_notes(gemm, s)) {
            return note_at(r, s, gemm);
        }
    }
    return NULL;
}

/* What a cast needs to compute the factors of a product: both amaxes, and where to write. */
static void set_alpha(oct_alpha *out, const running *r, const octet_step *cast,
                      const octet_step *gemm) {
    const uint8_t tensors[2] = {gemm->a, gemm->b}, uses[2] = {gemm->a_use, gemm->b_use};
    for (int i = 0; i < 2; i++) {
        const octet_plan_tensor *t = &r->plan->tensors[tensors[i]];
        bool row = uses[i] == OCTET_USE_ROW;
        out->amaxes[i] = at(r, t->buffers[row ? OCTET_PART_ROW_AMAX : OCTET_PART_COL_AMAX]);
        out->quantizers[i] = &t->quantizer;
    }
    out->to = note_at(r, cast, gemm);
    out->accumulate = gemm->accumulate;
}

static void set_alphas(oct_alpha out[2], const running *r, const octet_step *cast) {
    const octet_step *end = r->plan->steps + r->plan->step_count;
    int count = 0;
    for (const octet_step *s = cast + 1; s < end && count < 2; s++) {
        if (reads_notes(s, cast) && !oct_is_later_chunk(s)) {
            set_alpha(&out[count++], r, cast, s);
        }
    }
}

/* A chunk of columns: of a product's b so many outer indices as dst has columns, of other
 * steps' dst, and of a bias, so many as a has. */
static void set_chunk(oct_work *out, const octet_step *step) {
    if (step->op == OCTET_OP_GEMM) {
        out->b_first = step->chunk * out->dst.cols;
        return;
    }
    int64_t first = step->chunk * out->a.cols;
    char *values = out->dst.parts[OCTET_PART_VALUES];
    const char *bias = out->bias.at;
    if (values) { /* a result without elements may have no memory */
        out->dst.parts[OCTET_PART_VALUES] =
            values + first * octet_dtype_bits((octet_dtype)out->dst.dtype) / 8;
    }
    out->dst.cols = out->a.cols;
    if (bias) {
        out->bias.at = bias + first * octet_dtype_bits((octet_dtype)out->bias.dtype) / 8;
    }
}

oct_prologue_call oct_prologue_of(const oct_work *work, const octet_plan *plan) {
    const octet_step *step = work->step;
    bool backward = step->b != OCTET_ABSENT;
    return (oct_prologue_call){.prologue = plan->prologue,
                               .zero_centered = plan->zero_centered != 0,
                               .eps = plan->eps,
                               .dst = step->apply ? NULL : &work->dst,
                               .x = backward ? &work->b : &work->a,
                               .grad = backward ? &work->a : NULL,
                               .stats = work->stats,
                               .gamma = work->gamma,
                               .beta = work->bias,
                               .amax = step->apply ? NULL : work->amax,
                               .amaxes = work->amaxes,
                               .sums = work->sums.parts[OCTET_PART_VALUES]};
}

oct_matrix oct_applied_of(const oct_prologue_call *call) {
    oct_matrix f = *call->x;
    f.cols = oct_prologue_is_gated(call->prologue) ? f.cols / 2 : f.cols;
    f.parts[OCTET_PART_VALUES] = NULL;
    return f;
}

/* A quantized dst is also read: its amaxes are there before its data. */
void oct_work_of(oct_work *out, const octet_plan *plan, const octet_memory *memory,
                 const octet_step *step) {
    running r = {plan, memory};
    bool has_amax = step->op == OCTET_OP_QUANTIZE;
    *out = (oct_work){.step = step, .chunk = {plan->tp_size, plan->chunks, step->chunk}};
    set_matrix(&out->dst, &r, step->dst, step->writes | (has_amax ? step->reads : 0));
    set_matrix(&out->a, &r, step->a, step->reads);
    set_matrix(&out->b, &r, step->b, step->reads);
    set_copy(&out->a_copy, &r, step->a_copy, step->reads | step->writes);
    set_copy(&out->b_copy, &r, step->b_copy, step->reads | step->writes);
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
    if (leaves_notes(step)) {
        set_alphas(out->alphas, &r, step);
    }
    out->bias.at = at(&r, step->bias);
    out->bias.dtype = step->bias == OCTET_ABSENT ? 0 : plan->buffers[step->bias].dtype;
    if (step->op == OCTET_OP_GEMM) {
        out->alpha = oct_scheme_of(&out->a.quantizer)->amax ? alpha_of(&r, step) : NULL;
        out->scratch = at(&r, step->scratch);
        out->scratch_bytes = plan->buffers[step->scratch].bytes;
    }
    if (step->chunk != OCTET_ABSENT && !plan->by_rows) {
        set_chunk(out, step);
    }
    out->gamma.at = at(&r, step->gamma);
    out->gamma.dtype = step->gamma == OCTET_ABSENT ? 0 : plan->buffers[step->gamma].dtype;
    if (step->stats != OCTET_ABSENT) {
        out->stats = at(&r, plan->tensors[step->stats].buffers[OCTET_PART_VALUES]);
    }
}
