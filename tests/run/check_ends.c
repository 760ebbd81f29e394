/* check_ends.c - what was multiplied and what came out, against the layer in double precision.
 */
#include "check.h"
#include "fold.h"

/* An operand of a product: the layer's own numbers and how far its bytes may be from them. */
typedef struct operand {
    run_values own, law;
} operand;

static octet_quantizer given_quantizer(const run_group *group, int name) {
    const octet_linear_args *args = &group->args.forward;
    return name == OCTET_NAME_INPUT    ? args->input.quantizer
           : name == OCTET_NAME_WEIGHT ? args->weight.quantizer
                                       : group->args.grad_output.quantizer;
}

/* The quantizer that came after the caller's own, if any. */
static octet_quantizer later_quantizer(const run_group *group, const octet_plan_tensor *t,
                                       bool given) {
    octet_quantizer q = t->quantizer;
    octet_role role = t->name == OCTET_NAME_INPUT    ? OCTET_INPUT
                      : t->name == OCTET_NAME_WEIGHT ? OCTET_WEIGHT
                                                     : OCTET_GRAD_OUTPUT;
    bool decoded = t->form == OCTET_FORM_DEQUANTIZED && !given;
    if (decoded && octet_recipe_quantizer(&q, &group->args.forward.recipe, role, NULL)) {
        exit(2);
    }
    if (t->form == OCTET_FORM_GIVEN) {
        q.scheme = OCTET_SCHEME_NONE;
    }
    return q;
}

/* A transformed number is a quarter of the sum of 16, so it moves by at most 4 times as far as
 * the worst of them. */
static double law_before_transform(const octet_quantizer *q, const run_values *own, int64_t row,
                                   int64_t col) {
    int64_t near = row < own->rows ? row : own->rows - 1;
    double tile = run_block(own, near, col, run_side(q), run_side(q));
    double step = q->scheme == OCTET_MXFP4 ? 0.58 : q->format == OCTET_E2M1 ? 0.37 : 0x1p-3;
    return q->scheme ? 4 * tile * step : 0;
}

/* One product on one rank. */
typedef struct place {
    const run_group *group;
    int rank, plan;
    const octet_step *step;
} place;

/* The row of the whole that row r of a piece is: a run of rows of each rank. */
static int64_t piece_row(const place *p, int64_t rows, int64_t r) {
    int64_t run = rows / p->group->ranks, chunks = p->group->plans[p->plan].chunks;
    return run ? (r / run * chunks + p->step->chunk) * run + r % run : r;
}

static bool is_piece(const place *p) {
    return p->group->plans[p->plan].by_rows && p->step->chunk != OCTET_ABSENT;
}

/* The layer's numbers that a tensor of this shape has on a rank. */
static run_values numbers_of(const place *p, const run_values *whole, const run_view *v,
                             bool piece) {
    run_values own = run_local(whole, piece ? 0 : p->rank, v->rows, v->cols);
    for (int64_t r = 0; piece && r < v->rows; r++) {
        memcpy(run_cell(&own, r, 0), run_cell(whole, piece_row(p, v->rows, r), 0),
               (size_t)v->cols * sizeof *own.at);
    }
    return own;
}

static operand operand_of(const place *p, int tensor, int use) {
    const run_group *group = p->group;
    const octet_plan_tensor *t = &group->plans[p->plan].tensors[tensor];
    run_view v = run_view_of(group, p->rank, p->plan, tensor);
    const run_values *whole = run_whole(&group->layer, t->name);
    run_values own = numbers_of(p, whole, &v, is_piece(p) && tensor == p->step->a);
    octet_quantizer given = given_quantizer(group, t->name);
    octet_quantizer later = later_quantizer(group, t, given.scheme);
    bool transforms = use == OCTET_USE_COL && t->quantizer.hadamard;
    operand made = {transforms ? run_transform(&own, t->quantizer.hadamard)
                               : run_values_cut(&own, 0, 0, own.rows, own.cols),
                    {0, 0, NULL}};
    made.law = run_values_make(made.own.rows, made.own.cols);
    double amax = fmax(run_amax(whole), run_amax(&made.own)) * (given.scheme ? 1.5 : 1);
    for (int64_t i = 0; i < made.own.rows * made.own.cols; i++) {
        int64_t r = i / made.own.cols, c = i % made.own.cols;
        run_spot spot = {&made.own, r, c, (octet_use)use, amax};
        double law = transforms && own.rows ? law_before_transform(&given, &own, r, c)
                     : given.scheme         ? run_law_either(&given, &spot)
                                            : 0;
        if (later.scheme) {
            bool exact = !given.scheme && use != OCTET_USE_VALUES;
            law += exact ? run_law(&later, &spot) : run_law_either(&later, &spot) * 1.5;
        }
        if (t->form != OCTET_FORM_GIVEN || transforms) { /* it may have been narrowed besides */
            octet_dtype dtype = transforms ? OCTET_BF16 : (octet_dtype)t->dtype;
            law += run_unit(dtype) * (fabs(made.own.at[i]) + law) + run_least(dtype);
        }
        made.law.at[i] = law;
    }
    run_values_free(&own);
    return made;
}

static void free_operand(operand *o) {
    run_values_free(&o->own);
    run_values_free(&o->law);
}

static void check_operand(run_report *report, const place *p, int tensor, int use) {
    operand o = operand_of(p, tensor, use);
    run_view v = run_view_of(p->group, p->rank, p->plan, tensor);
    run_values decoded = run_decode(&v, (octet_use)use);
    char name[64];
    octet_plan_tensor_print(name, sizeof name, &p->group->plans[p->plan], tensor);
    for (int64_t i = 0; i < decoded.rows * decoded.cols; i++) {
        double got = decoded.at[i], want = o.own.at[i];
        run_expect(report, run_close(report, got, want, o.law.at[i]),
                   "plan %d rank %d: %s at (%lld, %lld) is %.9g, the layer's %.9g, bound %.3g",
                   p->plan, p->rank, name, (long long)(i / decoded.cols),
                   (long long)(i % decoded.cols), got, want, o.law.at[i]);
    }
    run_values_free(&decoded);
    free_operand(&o);
}

/* What a folded product multiplies may be further from the layer's numbers. */
static void add_folding(operand *o, const place *p, int tensor, int use, bool by_rows) {
    run_view v = run_view_of(p->group, p->rank, p->plan, tensor);
    if (!run_is_folded(&p->group->plans[p->plan], p->step)) {
        return;
    }
    for (int64_t i = 0; i < v.rows * v.cols; i++) {
        o->law.at[i] += run_fold_error(&v, (octet_use)use, by_rows, i / v.cols, i % v.cols);
    }
}

/* Adds to `bound`, which is as large as the whole result, how far this rank's summand may be
 * from the layer's: with numbers a, b known to la, lb it is |a| lb + la |b| + la lb a product,
 * and fp32 rounding as for every product. */
static void add_bounds(const place *p, run_values *bound) {
    const octet_step *s = p->step;
    operand a = operand_of(p, s->a, s->a_use);
    operand b = operand_of(p, s->b, s->b_use);
    run_view dst = run_view_of(p->group, p->rank, p->plan, s->dst);
    bool turn_a = s->gemm == OCTET_WGRAD, turn_b = s->gemm != OCTET_FPROP;
    int64_t inner = turn_a ? a.own.rows : a.own.cols;
    add_folding(&a, p, s->a, s->a_use, turn_a);
    add_folding(&b, p, s->b, s->b_use, turn_b);
    bool piece = is_piece(p), chunk = s->chunk != OCTET_ABSENT && !piece;
    int64_t top = piece || bound->rows == dst.rows ? 0 : p->rank * dst.rows;
    int64_t first = chunk ? s->chunk * dst.cols : 0; /* of b's outer indices */
    int64_t left = chunk || bound->cols == dst.cols ? first : p->rank * dst.cols;
    for (int64_t i = 0; i < dst.rows * dst.cols; i++) {
        int64_t r = i / dst.cols, c = i % dst.cols;
        double magnitude = 0, deviation = 0;
        for (int64_t k = 0; k < inner; k++) {
            int64_t ai = turn_a ? k * a.own.cols + r : r * a.own.cols + k;
            int64_t bi = turn_b ? k * b.own.cols + first + c : (first + c) * b.own.cols + k;
            double x = fabs(a.own.at[ai]), y = fabs(b.own.at[bi]);
            magnitude += x * y;
            deviation += x * b.law.at[bi] + a.law.at[ai] * y + a.law.at[ai] * b.law.at[bi];
        }
        double rounding = (double)(inner + 16) * (0x1p-24 * (magnitude + deviation) + 0x1p-120);
        int64_t row = piece ? piece_row(p, dst.rows, r) : top + r;
        *run_cell(bound, row, left + c) += deviation + rounding +
                                           run_unit(dst.dtype) * (magnitude + deviation) +
                                           run_least(dst.dtype);
    }
    free_operand(&a);
    free_operand(&b);
}

/* The result as numbers, in its last plain form: -1 where a plan has none. */
static int result_tensor(const octet_plan *plan, int name) {
    for (int i = plan->tensor_count - 1; i >= 0; i--) {
        const octet_plan_tensor *t = &plan->tensors[i];
        bool last = t->form == OCTET_FORM_GIVEN || t->form == OCTET_FORM_HIGH_PRECISION;
        if (t->name == name && last && t->quantizer.scheme == OCTET_SCHEME_NONE) {
            return i;
        }
    }
    return -1;
}

/* A result of every rank against the layer's. After the product come a collective, a bias that
 * may have been narrowed to bf16, and another rounding; main_grad had a value before. */
static void check_result(run_report *report, const run_group *group, int plan, int name,
                         const run_values *bound) {
    int tensor = result_tensor(&group->plans[plan], name);
    bool adds =
        name == OCTET_NAME_MAIN_GRAD && group->args.forward.main_grad == OCTET_MAIN_GRAD_ADD;
    const run_layer *l = &group->layer;
    const run_values *whole =
        run_whole(l, name == OCTET_NAME_MAIN_GRAD ? OCTET_NAME_GRAD_WEIGHT : name);
    for (int rank = 0; rank < group->ranks && tensor >= 0; rank++) {
        run_view v = run_view_of(group, rank, plan, tensor);
        int64_t top = whole->rows == v.rows ? 0 : rank * v.rows;
        int64_t left = whole->cols == v.cols ? 0 : rank * v.cols;
        for (int64_t i = 0; i < v.rows * v.cols; i++) {
            int64_t r = i / v.cols, c = i % v.cols;
            double old = adds ? *run_cell(&l->main_grad, top + r, left + c) : 0;
            double want = *run_cell(whole, top + r, left + c) + old;
            double got = run_decode_at(&v, OCTET_USE_VALUES, r, c);
            double near = *run_cell(bound, top + r, left + c);
            double bias = name == OCTET_NAME_OUTPUT ? fabs(l->b.at[left + c]) : 0;
            near += 3 * run_unit(v.dtype) * (fabs(want) + near + fabs(old)) +
                    4 * run_least(v.dtype) + bias * 0x1p-8;
            run_expect(report, run_close(report, got, want, near),
                       "plan %d rank %d: result %d at (%lld, %lld) is %.9g, the layer's %.9g, "
                       "bound %.3g",
                       plan, rank, name, (long long)r, (long long)c, got, want, near);
        }
    }
}

static void check_products(run_report *report, const run_group *group, octet_gemm gemm) {
    static const int names[OCTET_GEMMS] = {OCTET_NAME_OUTPUT, OCTET_NAME_GRAD_INPUT,
                                           OCTET_NAME_GRAD_WEIGHT};
    const run_values *whole = run_whole(&group->layer, names[gemm]);
    run_values bound = run_values_make(whole->rows, whole->cols);
    int plan = -1, name = names[gemm];
    for (int i = 0; i < group->count * OCTET_PLAN_STEPS * group->ranks; i++) {
        place p = {group, i / OCTET_PLAN_STEPS % group->ranks,
                   i / OCTET_PLAN_STEPS / group->ranks, NULL};
        p.step = &group->plans[p.plan].steps[i % OCTET_PLAN_STEPS];
        bool is_step = i % OCTET_PLAN_STEPS < group->plans[p.plan].step_count;
        if (is_step && p.step->op == OCTET_OP_GEMM && p.step->gemm == gemm) {
            check_operand(report, &p, p.step->a, p.step->a_use);
            check_operand(report, &p, p.step->b, p.step->b_use);
            add_bounds(&p, &bound);
            plan = p.plan;
            name = group->plans[p.plan].tensors[p.step->dst].name;
        }
    }
    if (plan >= 0) {
        check_result(report, group, plan, name, &bound);
    }
    run_values_free(&bound);
}

/* Column sums of the rows that a rank has. */
static void check_bias_grad(run_report *report, const run_group *group, int rank) {
    const octet_linear_args *args = &group->args.forward;
    int name = args->bias_main_grad ? OCTET_NAME_BIAS_MAIN_GRAD : OCTET_NAME_GRAD_BIAS;
    int tensor = group->count > 1 ? result_tensor(&group->plans[1], name) : -1;
    if (tensor < 0) {
        return;
    }
    octet_proto dy;
    if (octet_proto_flatten(&dy, &group->args.grad_output, NULL)) {
        exit(2);
    }
    octet_quantizer given = dy.quantizer;
    run_view v = run_view_of(group, rank, 1, tensor);
    run_values own = run_local(&group->layer.dy, rank, dy.shape[0], dy.shape[1]);
    run_values old = run_local(&group->layer.bias_main_grad, rank, 1, v.cols);
    bool adds = args->bias_main_grad == OCTET_MAIN_GRAD_ADD;
    double amax = run_amax(&group->layer.dy);
    for (int64_t c = 0; c < v.cols; c++) {
        double want = adds ? old.at[c] : 0, bound = run_least(v.dtype), magnitude = fabs(want);
        for (int64_t r = 0; r < own.rows; r++) {
            want += *run_cell(&own, r, c);
            magnitude += fabs(*run_cell(&own, r, c));
            run_spot spot = {&own, r, c, OCTET_USE_VALUES, amax};
            bound += given.scheme ? run_law_either(&given, &spot) * 1.01 : 0;
            bound += given.scheme && given.hadamard ? 4 * run_block(&own, r, c, 16, 16) : 0;
            bound += given.scheme ? run_unit((octet_dtype)dy.dtype) * 8 : 0;
        }
        bound += (double)(own.rows + 16) * 0x1p-24 * (magnitude + bound) +
                 run_unit(v.dtype) * (fabs(want) + bound);
        double got = run_decode_at(&v, OCTET_USE_VALUES, 0, c);
        run_expect(report, run_close(report, got, want, bound),
                   "rank %d: grad_bias[%lld] is %.9g, the layer's %.9g, bound %.3g", rank,
                   (long long)c, got, want, bound);
    }
    run_values_free(&own);
    run_values_free(&old);
}

void run_check_ends(run_report *report, run_group *group) {
    if (group->args.forward.prologue) {
        return; /* test_run_prologue.c has what holds of these */
    }
    for (int gemm = 0; gemm < OCTET_GEMMS; gemm++) {
        check_products(report, group, (octet_gemm)gemm);
    }
    for (int rank = 0; rank < group->ranks; rank++) {
        check_bias_grad(report, group, rank);
    }
}
