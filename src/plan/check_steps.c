/* check_steps.c - whether the operands of a step fit together. */
#include "core/dtype.h"
#include "core/fail.h"
#include "format/prologue.h"
#include "format/scheme.h"
#include "plan/check.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

octet_status oct_check_failed(const oct_checking *at, const char *why) {
    return oct_fail(at->err, OCTET_INVALID, "step %d of the plan %s", at->step, why);
}

/* A tensor at the plan's sizes. */
typedef struct sides {
    const octet_plan_tensor *tensor; /* NULL: there is none */
    int64_t rows, cols;
    bool quantized;
} sides;

static bool sides_of(sides *out, const octet_plan *p, uint8_t index) {
    *out = (sides){NULL, 0, 0, false};
    if (index == OCTET_ABSENT) {
        return true;
    }
    out->tensor = &p->tensors[index];
    out->quantized = oct_quantizer_is(&out->tensor->quantizer);
    return oct_dim_number(&out->rows, &out->tensor->rows, &p->extents) &&
           oct_dim_number(&out->cols, &out->tensor->cols, &p->extents);
}

static bool has(const sides *s, octet_part part) {
    return s->tensor->buffers[part] != OCTET_ABSENT;
}

/* Numbers in a dtype that kernels compute with. */
static bool is_plain(const sides *s) {
    return s->tensor && !s->quantized && oct_dtype_is_high_precision(s->tensor->dtype) &&
           has(s, OCTET_PART_VALUES);
}

/* Bytes of the direction that is used, or numbers. */
static bool is_used(const sides *s, uint8_t use) {
    if (use == OCTET_USE_VALUES) {
        return is_plain(s);
    }
    return s->tensor && s->quantized && s->tensor->form != OCTET_FORM_STACKED &&
           s->tensor->form != OCTET_FORM_MEASURED &&
           has(s, use == OCTET_USE_ROW ? OCTET_PART_ROW_DATA : OCTET_PART_COL_DATA);
}

static bool is_quantized(const sides *s) {
    return s->tensor && s->quantized && s->tensor->form != OCTET_FORM_STACKED &&
           s->tensor->form != OCTET_FORM_MEASURED;
}

static bool same(const sides *a, const sides *b) {
    return a->rows == b->rows && a->cols == b->cols;
}

/* A vector of so many elements that the kernels take; an absent one fits where it may be. */
static bool is_vector(const octet_plan *p, uint8_t buffer, int64_t count) {
    if (buffer == OCTET_ABSENT) {
        return true;
    }
    const octet_plan_buffer *b = &p->buffers[buffer];
    int64_t rows = 0, total = 1;
    for (int i = 0; i < b->ndim; i++) {
        if (!oct_dim_number(&rows, &b->dims[i], &p->extents) ||
            __builtin_mul_overflow(total, rows, &total)) {
            return false;
        }
    }
    return oct_dtype_is_high_precision(b->dtype) && total == count;
}

static bool is_scalar(const octet_plan *p, uint8_t buffer, octet_dtype dtype) {
    return buffer != OCTET_ABSENT && p->buffers[buffer].dtype == dtype;
}

typedef struct operands {
    const octet_plan *plan;
    const octet_step *step;
    sides dst, a, b, a_copy, b_copy, sums, stats;
} operands;

static bool operands_of(operands *o, const oct_checking *at) {
    const octet_step *s = &at->plan->steps[at->step];
    o->plan = at->plan;
    o->step = s;
    return sides_of(&o->dst, o->plan, s->dst) && sides_of(&o->a, o->plan, s->a) &&
           sides_of(&o->b, o->plan, s->b) && sides_of(&o->a_copy, o->plan, s->a_copy) &&
           sides_of(&o->b_copy, o->plan, s->b_copy) && sides_of(&o->sums, o->plan, s->sums) &&
           sides_of(&o->stats, o->plan, s->stats);
}

/* ---- one function for each kind of step: NULL, or what is wrong ---------------------------
 */

/* Into how many parts a step's columns are cut. Pieces of rows have all columns. */
static int64_t chunks_of(const operands *o) {
    return o->step->chunk == OCTET_ABSENT || o->plan->by_rows ? 1 : o->plan->chunks;
}

static const char *check_cast(const operands *o) {
    if (!is_plain(&o->a) || !is_plain(&o->dst)) {
        return "casts what are not numbers";
    }
    if (o->a.rows != o->dst.rows || o->a.cols != o->dst.cols / chunks_of(o) ||
        o->dst.cols % chunks_of(o)) {
        return "casts into another shape";
    }
    bool adds = o->step->op == OCTET_OP_ADD_BIAS;
    if ((adds && o->step->bias == OCTET_ABSENT) ||
        !is_vector(o->plan, o->step->bias, o->dst.cols)) {
        return "adds a bias that does not fit";
    }
    return NULL;
}

/* Column sums lie in f32, so many rows at a time. */
static bool are_sums(const operands *o) {
    return !o->sums.tensor || (is_plain(&o->sums) && o->sums.tensor->dtype == OCTET_F32 &&
                               o->sums.cols >= o->a.cols);
}

static const char *check_amax(const operands *o) {
    if (!is_plain(&o->a) || !are_sums(o)) {
        return "measures what are not numbers";
    }
    if (!o->dst.tensor) {
        return is_scalar(o->plan, o->step->amax, OCTET_F32) ? NULL : "has no amax to write";
    }
    bool parts = o->dst.quantized && oct_scheme_of(&o->dst.tensor->quantizer)->amax;
    return parts && same(&o->a, &o->dst) ? NULL : "measures for a tensor that has no such amax";
}

/* Bytes of the direction that is used, in rows of whole vectors: as they lie, packed codes two
 * a byte. */
static bool is_padded(const sides *copy, const sides *of, uint8_t use) {
    const oct_scheme *scheme = oct_scheme_of(&of->tensor->quantizer);
    bool transposed = use == OCTET_USE_COL && !scheme->as_rows;
    int64_t outer = transposed ? of->cols : of->rows;
    int64_t depth = transposed ? of->rows : of->cols;
    depth = scheme->packed ? depth / 2 + depth % 2 : depth;
    return of->quantized && !copy->quantized && copy->tensor->dtype == OCTET_U8 &&
           has(copy, OCTET_PART_VALUES) && copy->rows >= outer && copy->cols >= depth;
}

/* What an operand decodes to or is folded to, or its bytes with zeros behind them. */
static bool is_copy(const sides *copy, const sides *of, uint8_t use) {
    if (!copy->tensor) {
        return true;
    }
    if (copy->tensor->form == OCTET_FORM_PADDED) {
        return is_padded(copy, of, use);
    }
    return copy->rows >= of->rows && copy->cols >= of->cols &&
           (copy->quantized ? is_quantized(copy) : is_plain(copy));
}

/* A cast that computes the plan's prologue while it reads x, where the device has such a cast.
 */
static bool is_applied(const operands *o) {
    uint8_t prologue = o->plan->prologue;
    bool norm = oct_prologue_is_norm(prologue), gated = oct_prologue_is_gated(prologue);
    int64_t means = prologue == OCTET_LAYERNORM ? 2 : 1;
    bool stats = !norm || (is_plain(&o->stats) && o->stats.tensor->dtype == OCTET_F32 &&
                           o->stats.rows == o->a.rows && o->stats.cols == means &&
                           o->step->gamma != OCTET_ABSENT);
    const octet_device *device = &o->plan->device;
    return prologue && stats && !(gated && o->a.cols % 2) && o->a.rows == o->dst.rows &&
           (gated ? o->a.cols / 2 : o->a.cols) == o->dst.cols &&
           is_vector(o->plan, o->step->gamma, o->dst.cols) &&
           is_vector(o->plan, o->step->bias, o->dst.cols) &&
           oct_target_of(device)->applies(device, &o->dst.tensor->quantizer, o->a.tensor->dtype,
                                          prologue);
}

static const char *check_quantize(const operands *o) {
    const octet_step *s = o->step;
    if (!is_plain(&o->a) || !is_quantized(&o->dst) || (!s->apply && !same(&o->a, &o->dst))) {
        return "quantizes into another shape";
    }
    if (s->apply && !is_applied(o)) {
        return "computes a prologue that does not fit, or that its device has no cast for";
    }
    const octet_quantizer *q = &o->dst.tensor->quantizer;
    const oct_scheme *scheme = oct_scheme_of(q);
    bool one = scheme->one_scale;
    if ((s->scale != OCTET_ABSENT && !is_scalar(o->plan, s->scale, OCTET_F32)) ||
        (s->amax != OCTET_ABSENT && !is_scalar(o->plan, s->amax, OCTET_F32)) ||
        (scheme->given_scale && s->scale == OCTET_ABSENT) ||
        (one && s->scale == OCTET_ABSENT && s->amax == OCTET_ABSENT)) {
        return "quantizes without its scale or its amax";
    }
    if (q->stochastic && !is_scalar(o->plan, s->seed, OCTET_I64)) {
        return "rounds stochastically without a seed";
    }
    return is_copy(&o->a_copy, &o->dst, OCTET_USE_ROW) &&
                   is_copy(&o->b_copy, &o->dst, OCTET_USE_COL) && are_sums(o)
               ? NULL
               : "leaves copies that do not fit";
}

/* The same bytes in another order. */
static bool same_code(const sides *a, const sides *b) {
    const octet_quantizer *x = &a->tensor->quantizer, *y = &b->tensor->quantizer;
    return x->scheme == y->scheme && x->format == y->format && x->block_rows == y->block_rows &&
           x->block_cols == y->block_cols && x->row_scaled == y->row_scaled &&
           x->four_over_six == y->four_over_six && x->max256 == y->max256;
}

static const char *check_bytes(const operands *o) {
    if (!is_used(&o->a, o->step->a_use) || !o->a.quantized) {
        return "reads bytes that its operand does not have";
    }
    if (o->step->op == OCTET_OP_DEQUANTIZE) {
        return is_plain(&o->dst) && same(&o->a, &o->dst) ? NULL : "decodes into another shape";
    }
    if (!is_quantized(&o->dst) || !same(&o->a, &o->dst) || !same_code(&o->a, &o->dst)) {
        return "reorders bytes into those of another tensor";
    }
    const octet_quantizer *q = &o->dst.tensor->quantizer;
    bool row = o->step->a_use == OCTET_USE_ROW;
    bool transposed = row ? q->columnwise && !q->rowwise : q->rowwise && !q->columnwise;
    bool swizzles = o->step->op == OCTET_OP_SWIZZLE;
    return swizzles || (transposed && octet_quantizer_transposable(q))
               ? NULL
               : "transposes bytes that cannot be transposed";
}

/* Whether dst has every part that a has. */
static bool has_parts_of(const sides *dst, const sides *a) {
    bool all = true;
    for (int part = 0; part < OCTET_PARTS; part++) {
        all = all && (!has(a, (octet_part)part) || has(dst, (octet_part)part));
    }
    return all;
}

/* Shards that lie one after the other become a whole, or one piece of every rank's rows. */
static const char *check_assemble(const operands *o) {
    int64_t ranks = o->plan->tp_size;
    bool piece = o->step->chunk != OCTET_ABSENT;
    if (!o->a.tensor || !o->dst.tensor || o->a.tensor->form != OCTET_FORM_STACKED ||
        o->dst.tensor->form == OCTET_FORM_STACKED || o->a.quantized != o->dst.quantized ||
        !same_code(&o->a, &o->dst) || o->a.tensor->dtype != o->dst.tensor->dtype ||
        !has_parts_of(&o->dst, &o->a)) {
        return "joins what are no shards of its result";
    }
    int64_t chunks = piece ? o->plan->chunks : 1;
    bool rows = o->a.rows % chunks == 0 && o->a.rows / chunks == o->dst.rows / ranks &&
                o->dst.rows % ranks == 0;
    return rows && o->a.cols == o->dst.cols && (!piece || o->plan->by_rows)
               ? NULL
               : "joins shards into another shape";
}

/* A piece of every rank's rows goes to its places in the whole. */
static const char *check_join(const operands *o) {
    int64_t chunks = o->plan->chunks;
    if (o->step->chunk == OCTET_ABSENT || !o->plan->by_rows || !o->a.tensor || !o->dst.tensor ||
        o->a.quantized != o->dst.quantized || o->a.tensor->dtype != o->dst.tensor->dtype) {
        return "joins what is no piece of its result";
    }
    bool plain = is_plain(&o->a) && is_plain(&o->dst);
    bool bytes = is_quantized(&o->a) && is_quantized(&o->dst) && same_code(&o->a, &o->dst) &&
                 has(&o->a, OCTET_PART_ROW_DATA) && has(&o->dst, OCTET_PART_ROW_DATA);
    bool rows = o->dst.rows % chunks == 0 && o->dst.rows / chunks == o->a.rows &&
                o->a.rows % o->plan->tp_size == 0;
    return (plain || bytes) && rows && o->a.cols == o->dst.cols
               ? NULL
               : "joins a piece into another shape";
}

/* As much of b as a GEMM multiplies: of a chunk, what makes these columns of the result. A
 * padded copy has that alone; other copies are of all of b, and every chunk reads them. */
static sides multiplied_b(const operands *o) {
    sides b = o->b;
    bool padded = o->b_copy.tensor && o->b_copy.tensor->form == OCTET_FORM_PADDED;
    *(o->step->gemm == OCTET_FPROP ? &b.rows : &b.cols) /= padded ? chunks_of(o) : 1;
    return b;
}

static const char *check_gemm(const operands *o) {
    const octet_step *s = o->step;
    if (!is_used(&o->a, s->a_use) || !is_used(&o->b, s->b_use) || !is_plain(&o->dst) ||
        s->scratch == OCTET_ABSENT) {
        return "multiplies operands that it does not have";
    }
    const octet_plan_buffer *scratch = &o->plan->buffers[s->scratch];
    if (!scratch->sized || scratch->ndim != 1 || scratch->place != OCTET_PLACE_WORK) {
        return "has no memory of its own to work in";
    }
    bool wgrad = s->gemm == OCTET_WGRAD, dgrad = s->gemm == OCTET_DGRAD;
    int64_t rows = wgrad ? o->a.cols : o->a.rows, depth = wgrad ? o->a.rows : o->a.cols;
    int64_t cols = wgrad || dgrad ? o->b.cols : o->b.rows;
    int64_t depth_b = wgrad || dgrad ? o->b.rows : o->b.cols;
    if (rows != o->dst.rows || depth != depth_b || cols / chunks_of(o) != o->dst.cols ||
        cols % chunks_of(o)) {
        return "multiplies operands whose shapes do not fit";
    }
    sides b = multiplied_b(o);
    if (!is_vector(o->plan, s->bias, o->dst.cols) || !is_copy(&o->a_copy, &o->a, s->a_use) ||
        !is_copy(&o->b_copy, &b, s->b_use)) {
        return "has a bias or copies that do not fit";
    }
    const oct_target *target = oct_target_of(&o->plan->device);
    octet_support support =
        target->multiplies(&o->plan->device, &o->a.tensor->quantizer, &o->b.tensor->quantizer);
    bool copies =
        (o->a_copy.tensor || !o->a.quantized) && (o->b_copy.tensor || !o->b.quantized);
    if (s->invariant) {
        return s->native && !o->a_copy.tensor && !o->b_copy.tensor
                   ? NULL
                   : "is invariant, and does not multiply the bytes as they are";
    }
    if (s->native ? support != OCTET_SUPPORT_NATIVE : !copies) {
        return "is multiplied in a way that the device does not have";
    }
    return NULL;
}

static const char *check_bias_grad(const operands *o) {
    bool fits = is_plain(&o->a) && is_plain(&o->dst) && o->dst.rows == 1 &&
                o->dst.cols == o->a.cols && are_sums(o);
    return fits ? NULL : "sums columns into another shape";
}

/* A step of the plan's prologue: x has the columns of its result, twice where it is gated. */
static const char *check_prologue(const operands *o) {
    const octet_step *s = o->step;
    bool norm = oct_prologue_is_norm(o->plan->prologue);
    bool gated = oct_prologue_is_gated(o->plan->prologue);
    bool back = s->op == OCTET_OP_PROLOGUE_GRAD || s->op == OCTET_OP_GAMMA_GRAD;
    const sides *x = back ? &o->b : &o->a;
    int64_t cols = gated ? x->cols / 2 : x->cols, means = 1;
    means += o->plan->prologue == OCTET_LAYERNORM;
    if (!o->plan->prologue || !is_plain(x) || !is_plain(&o->dst) || (gated && x->cols % 2) ||
        (back && (!is_plain(&o->a) || o->a.rows != x->rows || o->a.cols != cols))) {
        return "is of a prologue that the plan does not have";
    }
    bool makes = s->op == OCTET_OP_STATISTICS;
    const sides *stats = makes ? &o->dst : &o->stats;
    if (norm && (!is_plain(stats) || stats->tensor->dtype != OCTET_F32 ||
                 stats->rows != x->rows || stats->cols != means)) {
        return "is of a norm without its row statistics";
    }
    if (makes) {
        return norm ? NULL : "makes statistics of what is no norm";
    }
    bool factor = norm && s->op != OCTET_OP_GAMMA_GRAD;
    bool gamma = !factor || s->gamma != OCTET_ABSENT;
    bool vector = s->op == OCTET_OP_GAMMA_GRAD;
    int64_t rows = vector ? 1 : x->rows;
    int64_t wide = s->op == OCTET_OP_PROLOGUE_GRAD ? x->cols : cols;
    return gamma && is_vector(o->plan, s->gamma, cols) && is_vector(o->plan, s->bias, cols) &&
                   o->dst.rows == rows && o->dst.cols == wide && (!vector || norm) &&
                   (s->amax == OCTET_ABSENT || is_scalar(o->plan, s->amax, OCTET_F32))
               ? NULL
               : "makes a result of another shape than its prologue's";
}

static const char *check_zero(const operands *o) {
    return o->step->to != OCTET_ABSENT ? NULL : "has nothing to zero";
}

static const char *check_collective(const operands *o) {
    const octet_step *s = o->step;
    if (s->from == OCTET_ABSENT || s->to == OCTET_ABSENT) {
        return "exchanges nothing";
    }
    const octet_plan_buffer *from = &o->plan->buffers[s->from], *to = &o->plan->buffers[s->to];
    int64_t ranks = o->plan->tp_size, more = to->bytes, less = from->bytes;
    if (s->chunk != OCTET_ABSENT) { /* these rows of `from` travel alone */
        if (s->collective != OCTET_ALL_GATHER || !o->plan->by_rows || less % o->plan->chunks) {
            return "exchanges a chunk that cannot be cut so";
        }
        less /= o->plan->chunks;
    }
    if (s->collective == OCTET_REDUCE_SCATTER) {
        more = from->bytes, less = to->bytes;
    }
    bool grows = s->collective == OCTET_ALL_GATHER || s->collective == OCTET_REDUCE_SCATTER;
    bool fits = grows ? more / ranks == less && more % ranks == 0 : more == less;
    return fits && from->dtype == to->dtype ? NULL : "exchanges memory of other sizes";
}

static const char *(*const checks[OCTET_OPS])(const operands *) = {
    [OCTET_OP_ZERO] = check_zero,           [OCTET_OP_CAST] = check_cast,
    [OCTET_OP_AMAX] = check_amax,           [OCTET_OP_QUANTIZE] = check_quantize,
    [OCTET_OP_DEQUANTIZE] = check_bytes,    [OCTET_OP_TRANSPOSE] = check_bytes,
    [OCTET_OP_SWIZZLE] = check_bytes,       [OCTET_OP_ASSEMBLE] = check_assemble,
    [OCTET_OP_GEMM] = check_gemm,           [OCTET_OP_ADD_BIAS] = check_cast,
    [OCTET_OP_BIAS_GRAD] = check_bias_grad, [OCTET_OP_STATISTICS] = check_prologue,
    [OCTET_OP_PROLOGUE] = check_prologue,   [OCTET_OP_PROLOGUE_GRAD] = check_prologue,
    [OCTET_OP_GAMMA_GRAD] = check_prologue, [OCTET_OP_COLLECTIVE] = check_collective,
    [OCTET_OP_JOIN] = check_join,
};

octet_status oct_check_operands(const oct_checking *at) {
    operands o;
    const char *why = operands_of(&o, at) ? checks[at->plan->steps[at->step].op](&o)
                                          : "has an operand whose sizes exceed 64 bits";
    return why ? oct_check_failed(at, why) : OCTET_OK;
}
