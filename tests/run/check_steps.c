/* check_steps.c - each step against its meaning, recomputed from the memory after the run. */
#include "check.h"
#include "fold.h"
#include "prologue.h"

/* One step of one plan on one rank. */
typedef struct place {
    run_group *group;
    int rank, plan, index;
    const octet_step *step;
} place;

static run_view view_of(const place *p, int tensor) {
    return run_view_of(p->group, p->rank, p->plan, tensor);
}

static const octet_plan_tensor *tensor_of(const place *p, int tensor) {
    return &p->group->plans[p->plan].tensors[tensor];
}

static void *at(const place *p, int buffer) {
    return run_at(p->group, p->rank, p->plan, buffer);
}

static bool expect(run_report *report, const place *p, bool held, const char *what, double got,
                   double want) {
    return run_expect(report, held, "plan %d step %d rank %d: %s: %.9g, expected %.9g", p->plan,
                      p->index + 1, p->rank, what, got, want);
}

/* ---- products -------------------------------------------------------------------------- */

/* (i, j, inner) of a product as rows and columns of an operand. */
static double operand_at(const run_values *v, bool turned, int64_t line, int64_t inner) {
    return *(turned ? run_cell(v, inner, line) : run_cell(v, line, inner));
}

/* Of n products in fp32, in any order: decoding both factors takes at most 4 roundings each,
 * the product 1, sums n - 1, the scale 3, bias and the old value 2; each is 2^-24 of the sum of
 * magnitudes. A flushed subnormal is less than 2^-126. Then one rounding to dst's dtype. */
static double gemm_bound(int64_t n, double magnitude, double value, octet_dtype dtype) {
    double sum = (double)(n + 16) * (0x1p-24 * magnitude + 0x1p-120);
    return sum + run_unit(dtype) * (fabs(value) + sum) + run_least(dtype);
}

/* How far folding moves each number of an operand at most; nowhere where it is not folded. */
static run_values fold_errors(const place *p, const run_view *v, int use, bool by_rows) {
    run_values made = run_values_make(v->rows, v->cols);
    bool folded = run_is_folded(&p->group->plans[p->plan], p->step);
    for (int64_t i = 0; folded && i < v->rows * v->cols; i++) {
        made.at[i] = run_fold_error(v, (octet_use)use, by_rows, i / v->cols, i % v->cols);
    }
    return made;
}

/* The column of a whole result that a chunk of so many begins with. */
static int64_t first_column(const place *p, int64_t cols) {
    bool cut = p->step->chunk != OCTET_ABSENT && !p->group->plans[p->plan].by_rows;
    return cut ? p->step->chunk * cols : 0;
}

static void check_gemm(run_report *report, const place *p) {
    const octet_step *s = p->step;
    run_view va = view_of(p, s->a), vb = view_of(p, s->b), dst = view_of(p, s->dst);
    run_values da = fold_errors(p, &va, s->a_use, s->gemm == OCTET_WGRAD);
    run_values db = fold_errors(p, &vb, s->b_use, s->gemm != OCTET_FPROP);
    bool folded = run_is_folded(&p->group->plans[p->plan], s);
    run_values a = run_decode(&va, (octet_use)s->a_use);
    run_values b = run_decode(&vb, (octet_use)s->b_use);
    bool turn_a = s->gemm == OCTET_WGRAD, turn_b = s->gemm != OCTET_FPROP;
    int64_t inner = turn_a ? a.rows : a.cols, first = first_column(p, dst.cols);
    run_values old = run_local(&p->group->layer.main_grad, p->rank,
                               s->accumulate ? dst.rows : 0, s->accumulate ? dst.cols : 0);
    const octet_plan *plan = &p->group->plans[p->plan];
    expect(report, p, inner == (turn_b ? b.rows : b.cols), "inner lengths", (double)inner,
           (double)(turn_b ? b.rows : b.cols));
    for (int64_t i = 0; i < dst.rows * dst.cols; i++) {
        int64_t r = i / dst.cols, c = i % dst.cols;
        double sum = s->accumulate ? old.at[i] : 0;
        if (s->bias != OCTET_ABSENT) {
            octet_dtype dtype = (octet_dtype)plan->buffers[s->bias].dtype;
            sum += run_load(at(p, s->bias), dtype, c);
        }
        double magnitude = fabs(sum), moved = 0;
        for (int64_t k = 0; k < inner; k++) {
            double x = operand_at(&a, turn_a, r, k), y = operand_at(&b, turn_b, first + c, k);
            sum += x * y;
            magnitude += fabs(x * y);
            if (folded) {
                double dx = operand_at(&da, turn_a, r, k),
                       dy = operand_at(&db, turn_b, first + c, k);
                moved += dx * fabs(y) + fabs(x) * dy + dx * dy;
            }
        }
        double got = run_decode_at(&dst, OCTET_USE_VALUES, r, c);
        double bound = gemm_bound(inner, magnitude + moved, fabs(sum) + moved, dst.dtype);
        bound += moved;
        expect(report, p, run_close(report, got, sum, bound), "product", got, sum);
    }
    run_values_free(&a);
    run_values_free(&b);
    run_values_free(&da);
    run_values_free(&db);
    run_values_free(&old);
}

/* ---- prologues ------------------------------------------------------------------------- */

static run_prologue prologue_of(const place *p) {
    const octet_step *s = p->step;
    bool grad = s->b != OCTET_ABSENT;
    const octet_plan *plan = &p->group->plans[p->plan];
    run_prologue of = {.plan = plan, .x = view_of(p, grad ? s->b : s->a)};
    if (grad) {
        of.grad = view_of(p, s->a);
    }
    if (s->stats != OCTET_ABSENT) {
        of.stats = at(p, plan->tensors[s->stats].buffers[OCTET_PART_VALUES]);
    }
    of.gamma = at(p, s->gamma);
    of.beta = at(p, s->bias);
    of.gamma_dtype = s->gamma == OCTET_ABSENT ? 0 : plan->buffers[s->gamma].dtype;
    of.beta_dtype = s->bias == OCTET_ABSENT ? 0 : plan->buffers[s->bias].dtype;
    return of;
}

static void check_law(run_report *report, const place *p, const run_prologue *of, int op) {
    for (int64_t i = 0; i < of->dst.rows * of->dst.cols; i++) {
        int64_t r = i / of->dst.cols, c = i % of->dst.cols;
        run_number_of law = run_prologue_law(of, op, r, c);
        double got = run_decode_at(&of->dst, OCTET_USE_VALUES, r, c);
        double bound = law.bound + run_unit(of->dst.dtype) * (fabs(law.want) + law.bound) +
                       run_least(of->dst.dtype);
        expect(report, p, run_close(report, got, law.want, bound), "prologue", got, law.want);
    }
}

/* What a cast or a measuring step reads: a tensor, or the prologue of it, which lies nowhere
 * and is computed here by a step of its own. */
static run_view source_of(run_report *report, const place *p) {
    run_view source = view_of(p, p->step->a);
    if (p->step->apply) {
        run_prologue of = prologue_of(p);
        run_applied from = {source, of.gamma, of.beta};
        octet_status status = run_apply(&of.dst, p->group, &from);
        run_expect(report, status == OCTET_OK, "f(x): %s", p->group->err.text);
        check_law(report, p, &of, OCTET_OP_PROLOGUE);
        source = of.dst;
    }
    return source;
}

/* ---- quantized bytes ------------------------------------------------------------------- */

/* Whether ranks agreed on the amax between measuring and quantizing. */
static bool is_reduced(const place *p) {
    const octet_plan *plan = &p->group->plans[p->plan];
    const octet_plan_tensor *dst = tensor_of(p, p->step->dst);
    for (int i = 0; i < plan->step_count; i++) {
        uint8_t to = plan->steps[i].to;
        bool max = plan->steps[i].collective == OCTET_ALL_REDUCE_MAX;
        if (max && (to == p->step->amax || to == dst->buffers[OCTET_PART_ROW_AMAX] ||
                    to == dst->buffers[OCTET_PART_COL_AMAX])) {
            return true;
        }
    }
    return false;
}

/* One, or the maxima of parts: of these values, or what was there if that is larger, and a
 * number. */
static void check_amax(run_report *report, const place *p, const run_values *values) {
    const octet_plan *plan = &p->group->plans[p->plan];
    double got = 0, want = run_amax(values);
    for (int64_t i = 0; i < plan->buffers[p->step->amax].bytes / 4; i++) {
        double share = run_load(at(p, p->step->amax), OCTET_F32, i);
        got = share >= got ? share : share < got ? got : NAN;
    }
    if (p->step->accumulate) {
        int64_t offset = plan->buffers[p->step->amax].offset;
        double before = p->group->layer.amax[p->plan > 0][offset / 4];
        want = before > want ? before : want;
    }
    expect(report, p, got == want, "amax", got, want);
}

/* Whether a part's bytes may have been left out, for a product has what they decode to. */
static bool is_left_out(const octet_step *step, int part) {
    bool row = part == OCTET_PART_ROW_DATA || part == OCTET_PART_ROW_SCALE;
    bool col = part == OCTET_PART_COL_DATA || part == OCTET_PART_COL_SCALE;
    return (row && step->row_unread) || (col && step->col_unread);
}

/* Bytes that were left out are put in, so that products are held against them. */
static void check_quantize(run_report *report, const place *p) {
    const octet_step *s = p->step;
    const octet_plan *plan = &p->group->plans[p->plan];
    const octet_plan_tensor *dst = tensor_of(p, s->dst);
    run_view source = source_of(report, p);
    run_values values = run_decode(&source, OCTET_USE_VALUES);
    run_quantizing how = {dst->quantizer, source.dtype, 1.0f, at(p, s->seed), s->stream};
    void *parts[OCTET_PARTS] = {NULL};
    if (s->scale != OCTET_ABSENT) {
        memcpy(&how.scale, at(p, s->scale), sizeof how.scale);
    }
    if (s->amax != OCTET_ABSENT && !is_reduced(p)) {
        check_amax(report, p, &values);
    }
    octet_status status = OCTET_OK;
    if (!is_reduced(p)) {
        status = run_quantize(p->group, parts, &values, &how);
        run_expect(report, status == OCTET_OK, "quantize: %s", p->group->err.text);
    }
    for (int part = 0; !status && !is_reduced(p) && part < OCTET_PARTS; part++) {
        int buffer = dst->buffers[part];
        int64_t bytes = buffer == OCTET_ABSENT ? 0 : plan->buffers[buffer].bytes;
        if (bytes && is_left_out(s, part)) {
            memcpy(at(p, buffer), parts[part], (size_t)bytes);
        }
        bool same = !bytes || memcmp(at(p, buffer), parts[part], (size_t)bytes) == 0;
        run_expect(report, same, "plan %d step %d rank %d: %s differs from octet_plan_quantize",
                   p->plan, p->index + 1, p->rank, octet_part_name((octet_part)part));
    }
    run_values_free(&values);
}

/* ---- the rest -------------------------------------------------------------------------- */

/* One number a place: what it should be, give or take. */
static void check_each(run_report *report, const place *p, double slack, double add_bias) {
    run_view a = view_of(p, p->step->a), dst = view_of(p, p->step->dst);
    const octet_plan *plan = &p->group->plans[p->plan];
    bool chunk = p->step->chunk != OCTET_ABSENT;
    int64_t cols = chunk ? a.cols : dst.cols, first = first_column(p, cols);
    for (int64_t i = 0; i < dst.rows * cols; i++) {
        int64_t r = i / cols, c = i % cols;
        double want = run_decode_at(&a, (octet_use)p->step->a_use, r, c);
        double got = run_decode_at(&dst, OCTET_USE_VALUES, r, first + c);
        if (add_bias != 0) {
            octet_dtype dtype = (octet_dtype)plan->buffers[p->step->bias].dtype;
            want += run_load(at(p, p->step->bias), dtype, first + c);
        }
        double bound = run_unit(dst.dtype) * fabs(want) * (1 + slack) + slack * fabs(want) +
                       run_least(dst.dtype);
        expect(report, p, run_close(report, got, want, bound), "number", got, want);
    }
}

/* Rows of a piece are a run of each rank's rows of the whole. */
static void check_join(run_report *report, const place *p) {
    run_view a = view_of(p, p->step->a), dst = view_of(p, p->step->dst);
    int64_t chunks = p->group->plans[p->plan].chunks, run = a.rows / p->group->ranks;
    octet_use use =
        tensor_of(p, p->step->a)->quantizer.scheme ? OCTET_USE_ROW : OCTET_USE_VALUES;
    expect(report, p, a.rows * chunks == dst.rows && a.cols == dst.cols, "rows",
           (double)dst.rows, (double)(a.rows * chunks));
    for (int64_t i = 0; i < a.rows * a.cols; i++) {
        int64_t r = i / a.cols, c = i % a.cols;
        int64_t row = (r / run * chunks + p->step->chunk) * run + r % run;
        double want = run_decode_at(&a, use, r, c), got = run_decode_at(&dst, use, row, c);
        expect(report, p, got == want, "joined number", got, want);
    }
}

static void check_transpose(run_report *report, const place *p) {
    run_view a = view_of(p, p->step->a), dst = view_of(p, p->step->dst);
    octet_use have = (octet_use)p->step->a_use;
    octet_use made = have == OCTET_USE_ROW ? OCTET_USE_COL : OCTET_USE_ROW;
    for (int64_t i = 0; i < dst.rows * dst.cols; i++) {
        double want = run_decode_at(&a, have, i / dst.cols, i % dst.cols);
        double got = run_decode_at(&dst, made, i / dst.cols, i % dst.cols);
        expect(report, p, got == want, "turned number", got, want);
    }
}

static void check_bias_grad(run_report *report, const place *p) {
    run_view a = view_of(p, p->step->a), dst = view_of(p, p->step->dst);
    int64_t kept = p->step->accumulate ? dst.cols : 0;
    run_values old = run_local(&p->group->layer.bias_main_grad, p->rank, kept ? 1 : 0, kept);
    for (int64_t c = 0; c < dst.cols; c++) {
        double sum = p->step->accumulate ? old.at[c] : 0, magnitude = fabs(sum);
        for (int64_t r = 0; r < a.rows; r++) {
            sum += run_decode_at(&a, OCTET_USE_VALUES, r, c);
            magnitude += fabs(run_decode_at(&a, OCTET_USE_VALUES, r, c));
        }
        double got = run_decode_at(&dst, OCTET_USE_VALUES, 0, c);
        double bound = gemm_bound(a.rows, magnitude, sum, dst.dtype);
        expect(report, p, run_close(report, got, sum, bound), "column sum", got, sum);
    }
    run_values_free(&old);
}

static void check_prologue(run_report *report, const place *p) {
    const octet_step *s = p->step;
    run_prologue of = prologue_of(p);
    of.dst = view_of(p, s->dst);
    check_law(report, p, &of, s->op);
    if (s->amax != OCTET_ABSENT) {
        run_values values = run_decode(&of.dst, OCTET_USE_VALUES);
        check_amax(report, p, &values);
        run_values_free(&values);
    }
}

static void check_zero(run_report *report, const place *p) {
    int64_t bytes = p->group->plans[p->plan].buffers[p->step->to].bytes;
    const unsigned char *zero = at(p, p->step->to);
    for (int64_t i = 0; i < bytes; i++) {
        expect(report, p, zero[i] == 0, "zeroed byte", zero[i], 0);
    }
}

/* Of a tensor with one amax; NVFP4's are parts of what QUANTIZE makes. */
static void check_measured(run_report *report, const place *p) {
    if (p->step->amax != OCTET_ABSENT) {
        run_view source = source_of(report, p);
        run_values values = run_decode(&source, OCTET_USE_VALUES);
        check_amax(report, p, &values);
        run_values_free(&values);
    }
}

static void check_step(run_report *report, const place *p) {
    switch (p->step->op) {
    case OCTET_OP_AMAX:
        check_measured(report, p);
        break;
    case OCTET_OP_GEMM:
        check_gemm(report, p);
        break;
    case OCTET_OP_QUANTIZE:
        check_quantize(report, p);
        break;
    case OCTET_OP_CAST:
        check_each(report, p, 0, 0);
        break;
    case OCTET_OP_DEQUANTIZE: /* code times scale times amax, each rounded in fp32 */
        if (!(p->step->a_use == OCTET_USE_COL &&
              tensor_of(p, p->step->a)->quantizer.hadamard)) {
            check_each(report, p, 0x1p-22, 0);
        }
        break;
    case OCTET_OP_ADD_BIAS:
        check_each(report, p, 0x1p-23, 1);
        break;
    case OCTET_OP_TRANSPOSE:
        check_transpose(report, p);
        break;
    case OCTET_OP_JOIN:
        check_join(report, p);
        break;
    case OCTET_OP_BIAS_GRAD:
        check_bias_grad(report, p);
        break;
    case OCTET_OP_ZERO:
        check_zero(report, p);
        break;
    case OCTET_OP_STATISTICS:
    case OCTET_OP_PROLOGUE:
    case OCTET_OP_PROLOGUE_GRAD:
    case OCTET_OP_GAMMA_GRAD:
        check_prologue(report, p);
        break;
    default: /* ASSEMBLE is checked by the products that read what it made */
        break;
    }
}

void run_check_steps(run_report *report, run_group *group) {
    for (int rank = 0; rank < group->ranks; rank++) {
        for (int plan = 0; plan < group->count; plan++) {
            for (int i = 0; i < group->plans[plan].step_count; i++) {
                place p = {group, rank, plan, i, &group->plans[plan].steps[i]};
                check_step(report, &p);
            }
        }
    }
    run_expect(report, run_group_overruns(group) == 0, "%d guard bytes were overwritten",
               run_group_overruns(group));
}
