/* expect.c - a problem's results in double precision, and how far a run may be from them. */
#include "expect.h"

#include <string.h>

#include "product.h"
#include "prologue.h"

static double size_of(double x) {
    return x < 0 ? -x : x;
}

/* ---- what a product may be off by ------------------------------------------------------ */

/* The numbers of an operand in double precision and how far its bytes may be from them. */
typedef struct operand {
    oct_cli_matrix own, deviation;
} operand;

static void drop_operand(operand *o) {
    oct_cli_matrix_drop(&o->own);
    oct_cli_matrix_drop(&o->deviation);
}

static void add_deviation(operand *o, const octet_quantizer *q, octet_use use, double times) {
    double amax = times * oct_cli_matrix_amax(&o->own);
    oct_cli_matrix more = oct_cli_deviation(q, &o->own, use, amax);
    for (int64_t i = 0; i < more.rows * more.cols; i++) {
        o->deviation.at[i] += times * more.at[i];
    }
    oct_cli_matrix_drop(&more);
}

/* f(x) is computed in fp32 and rounded, before anything else moves it. */
static void add_prologue(operand *o, const oct_cli_chain *chain, double times, bool packed) {
    octet_dtype dtype = (octet_dtype)chain->args.forward.input.dtype;
    oct_cli_matrix off = oct_cli_prologue_deviation(chain, packed);
    for (int64_t r = 0; r < o->own.rows; r++) {
        double most = 0;
        for (int64_t c = 0; c < o->own.cols; c++) {
            int64_t i = (r < off.rows ? r : off.rows - 1) * o->own.cols + c;
            most = times > 1 ? oct_cli_matrix_amax(&chain->f) : size_of(chain->f.at[i]);
            o->deviation.at[r * o->own.cols + c] +=
                times * (off.at[i] + oct_cli_unit_of(dtype) * (most + off.at[i]) +
                         oct_cli_least_of(dtype));
        }
    }
    oct_cli_matrix_drop(&off);
}

static octet_quantizer quantizer_of(const oct_cli_chain *chain, octet_role role) {
    const octet_linear_args *args = &chain->args.forward;
    const octet_quantizer *given = role == OCTET_INPUT    ? &args->input.quantizer
                                   : role == OCTET_WEIGHT ? &args->weight.quantizer
                                                          : &chain->args.grad_output.quantizer;
    return *given;
}

/* A tensor may come quantized, be quantized by the recipe, and be narrowed to the dtype of the
 * product: each moves its numbers. What one has moved, the next may move by half as much again.
 * The transform sums 16 numbers to a quarter: what moved them before, it moves 4 times.
 * `packed`: f(x) is made from x in 8 bits. */
static operand operand_of(const oct_cli_chain *chain, const octet_plan_tensor *t, uint8_t use,
                          bool packed) {
    octet_role role = t->name == OCTET_NAME_INPUT    ? OCTET_INPUT
                      : t->name == OCTET_NAME_WEIGHT ? OCTET_WEIGHT
                                                     : OCTET_GRAD_OUTPUT;
    const oct_cli_matrix *whole = role == OCTET_INPUT    ? &chain->f
                                  : role == OCTET_WEIGHT ? &chain->w
                                                         : &chain->dy;
    octet_quantizer given = quantizer_of(chain, role), later = t->quantizer;
    bool transforms = use == OCTET_USE_COL && t->quantizer.hadamard != OCTET_HADAMARD_NONE;
    bool is_given = given.scheme != OCTET_SCHEME_NONE;
    if (t->form == OCTET_FORM_DEQUANTIZED && !is_given) {
        (void)!octet_recipe_quantizer(&later, &chain->args.forward.recipe, role, NULL);
    }
    operand made = {
        oct_cli_transformed(whole, transforms ? t->quantizer.hadamard : OCTET_HADAMARD_NONE),
        {0, 0, NULL}};
    if (!transforms) {
        oct_cli_matrix_drop(&made.own);
        made.own = oct_cli_matrix_make(whole->rows, whole->cols);
        memcpy(made.own.at, whole->at,
               sizeof(double) * (size_t)whole->rows * (size_t)whole->cols);
    }
    made.deviation = oct_cli_matrix_make(made.own.rows, made.own.cols);
    if (is_given) {
        add_deviation(&made, &given, OCTET_USE_VALUES, transforms ? 4 : 1);
    }
    bool computed = role == OCTET_INPUT && chain->args.forward.prologue;
    if (computed) {
        add_prologue(&made, chain, transforms ? 4 : 1, packed);
    }
    if (later.scheme != OCTET_SCHEME_NONE && t->form != OCTET_FORM_GIVEN) {
        octet_use bytes = is_given ? OCTET_USE_VALUES : (octet_use)use;
        add_deviation(&made, &later, bytes, is_given || packed ? 1.5 : computed ? 1.05 : 1);
    }
    octet_dtype dtype = transforms ? OCTET_BF16 : (octet_dtype)t->dtype;
    bool narrows = t->form != OCTET_FORM_GIVEN || transforms;
    for (int64_t i = 0; narrows && i < made.own.rows * made.own.cols; i++) {
        double x = size_of(made.own.at[i]) + made.deviation.at[i];
        made.deviation.at[i] += oct_cli_unit_of(dtype) * x + oct_cli_least_of(dtype);
    }
    return made;
}

void oct_cli_result_drop(oct_cli_result *r) {
    oct_cli_matrix_drop(&r->want);
    oct_cli_matrix_drop(&r->bound);
}

/* Numbers a, b known to la, lb multiply to within |a| lb + la |b| + la lb. A sum of n products
 * takes n additions and at most 16 roundings around them, each 2^-24 of the magnitudes; then it
 * is rounded to its dtype. */
static oct_cli_result multiply(const octet_step *step, const operand *a, const operand *b,
                               octet_dtype dtype, const octet_exec *exec) {
    oct_cli_factor x = {&a->own, &a->deviation, step->gemm == OCTET_WGRAD};
    oct_cli_factor y = {&b->own, &b->deviation, step->gemm == OCTET_FPROP};
    oct_cli_product p = oct_cli_multiply(&x, &y, exec);
    oct_cli_result made = {.want = p.sum, .bound = p.deviation};
    for (int64_t i = 0; i < made.want.rows * made.want.cols; i++) {
        double sum = p.sum.at[i], deviation = p.deviation.at[i];
        double rounding =
            (double)(p.inner + 16) * (0x1p-24 * (p.size.at[i] + deviation) + 0x1p-120);
        made.bound.at[i] = deviation + rounding +
                           oct_cli_unit_of(dtype) * (size_of(sum) + deviation + rounding) +
                           oct_cli_least_of(dtype);
    }
    oct_cli_matrix_drop(&p.size);
    return made;
}

/* ---- the results of a problem ---------------------------------------------------------- */

/* What a main_grad held that the result is added to; NULL where it is not. */
static const double *old_of(const oct_cli_result *r, const oct_cli_chain *chain) {
    const octet_linear_args *args = &chain->args.forward;
    bool weight = r->name == OCTET_NAME_MAIN_GRAD && args->main_grad == OCTET_MAIN_GRAD_ADD;
    bool bias =
        r->name == OCTET_NAME_BIAS_MAIN_GRAD && args->bias_main_grad == OCTET_MAIN_GRAD_ADD;
    return weight ? chain->main_grad.at : bias ? chain->bias_main_grad.at : NULL;
}

/* Adds what stands besides the sums: the bias, which may be narrowed to bf16, or what main_grad
 * held. */
static void add_rest(oct_cli_result *r, const oct_cli_chain *chain, octet_dtype dtype) {
    const octet_linear_args *args = &chain->args.forward;
    const double *old = old_of(r, chain);
    bool adds_bias =
        r->name == OCTET_NAME_OUTPUT && args->bias.dtype != OCTET_NONE && !args->return_bias;
    for (int64_t i = 0; i < r->want.rows * r->want.cols; i++) {
        double more = adds_bias ? chain->b.at[i % r->want.cols] : old ? old[i] : 0;
        r->want.at[i] += more;
        r->bound.at[i] += adds_bias ? 0x1p-8 * size_of(more) : 0;
        r->bound.at[i] += 2 * oct_cli_unit_of(dtype) * size_of(more);
    }
}

static oct_cli_result column_sums(const oct_cli_chain *chain, octet_dtype dtype) {
    octet_plan_tensor dy = {.name = OCTET_NAME_GRAD_OUTPUT,
                            .form = OCTET_FORM_DEQUANTIZED,
                            .dtype = chain->args.grad_output.dtype};
    dy.form = chain->args.grad_output.quantizer.scheme ? dy.form : OCTET_FORM_GIVEN;
    operand a = operand_of(chain, &dy, OCTET_USE_VALUES, false);
    int64_t rows = a.own.rows, cols = a.own.cols;
    double transforms = chain->args.grad_output.quantizer.hadamard ? 16 : 1;
    oct_cli_result made = {.plan = 1};
    made.want = oct_cli_matrix_make(1, cols);
    made.bound = oct_cli_matrix_make(1, cols);
    for (int64_t c = 0; c < cols; c++) {
        double size = 0, deviation = 0;
        for (int64_t r = 0; r < rows; r++) {
            made.want.at[c] += a.own.at[r * cols + c];
            size += size_of(a.own.at[r * cols + c]);
            deviation += transforms * a.deviation.at[r * cols + c];
        }
        double rounding = (double)(rows + 16) * 0x1p-24 * (size + deviation);
        made.bound.at[c] = deviation + rounding + oct_cli_least_of(dtype) +
                           oct_cli_unit_of(dtype) * (size_of(made.want.at[c]) + deviation);
    }
    drop_operand(&a);
    return made;
}

/* Steps that make a result of dgrad's product, the gradient of f(x). */
static bool grads_of_prologue(const octet_step *s, const octet_plan_tensor *dst) {
    return s->op == OCTET_OP_PROLOGUE_GRAD || s->op == OCTET_OP_GAMMA_GRAD ||
           (s->op == OCTET_OP_BIAS_GRAD && dst->name == OCTET_NAME_GRAD_BETA);
}

int oct_cli_expect(oct_cli_result results[OCT_CLI_RESULTS], const oct_cli_chain *chain,
                   const octet_exec *exec) {
    int count = 0, grad = -1;
    for (int plan = 0; plan < chain->count; plan++) {
        const octet_plan *p = &chain->plans[plan];
        for (int i = 0; i < p->step_count; i++) {
            const octet_step *s = &p->steps[i];
            const octet_plan_tensor *dst = s->dst == OCTET_ABSENT ? NULL : &p->tensors[s->dst];
            octet_dtype dtype = dst != NULL ? (octet_dtype)dst->dtype : OCTET_F32;
            if (s->op == OCTET_OP_GEMM) {
                bool packed = s->gemm == OCTET_WGRAD && oct_cli_packs(chain);
                operand a = operand_of(chain, &p->tensors[s->a], s->a_use, false);
                operand b = operand_of(chain, &p->tensors[s->b], s->b_use, packed);
                results[count] = multiply(s, &a, &b, dtype, exec);
                results[count].name = dst->name;
                results[count].plan = plan;
                grad = s->gemm == OCTET_DGRAD ? count : grad;
                add_rest(&results[count++], chain, dtype);
                drop_operand(&a);
                drop_operand(&b);
            } else if (grads_of_prologue(s, dst)) {
                results[count] = oct_cli_prologue_grad(chain, s, &results[grad], dtype);
                results[count++].name = dst->name;
            } else if (s->op == OCTET_OP_BIAS_GRAD) {
                results[count] = column_sums(chain, dtype);
                results[count].name = dst->name;
                add_rest(&results[count++], chain, dtype);
            }
        }
    }
    /* The gradient of f(x) stays inside. */
    if (grad >= 0 && chain->args.forward.prologue) {
        oct_cli_result_drop(&results[grad]);
        memmove(&results[grad], &results[grad + 1],
                (size_t)(--count - grad) * sizeof results[0]);
    }
    return count;
}
