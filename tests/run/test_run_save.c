/* test_run_save.c - a call that saves memory gives the gradients of one that saves speed.
 *
 * Behind a norm they are the same bytes. Behind an activation they are, byte for byte, those of
 * a call whose input is what the 8 bits decode to, and within a bound of those at the input. */
#include "fill.h"
#include "linear/matrix.h"
#include "prologue.h"
#include "test.h"
#include "twins.h"

/* ---- two groups -------------------------------------------------------------------------- */

static octet_linear_backward_args saving(const octet_linear_backward_args *args,
                                         octet_save save) {
    octet_linear_backward_args made = *args;
    made.forward.save = (uint8_t)save;
    return made;
}

/* All that the caller hands over; what backward gets of forward is the group's own. */
static void copy_arguments(run_group *to, const run_group *from) {
    for (int i = 0; i < to->ranks * to->count; i++) {
        int rank = i / to->count, plan = i % to->count;
        const octet_plan *p = &to->plans[plan];
        for (int k = 0; k < p->arg_count; k++) {
            int twin = twin_of(&from->plans[plan], &p->args[k]);
            if (twin >= 0) {
                rows_of here = argument_rows(to, rank, plan, k);
                rows_of there = argument_rows(from, rank, plan, twin);
                copy_rows(&here, &there);
            }
        }
    }
}

static int decoded_input(const run_group *group) {
    return find_tensor(&group->plans[1], OCTET_NAME_INPUT, OCTET_FORM_DEQUANTIZED);
}

static bool is_packed(const run_group *group) {
    return find_tensor(&group->plans[0], OCTET_NAME_INPUT, OCTET_FORM_PACKED) >= 0;
}

/* The input of one call becomes what the 8 bits of the other decode to. */
static void copy_decoded(run_group *to, const run_group *from) {
    for (int rank = 0; rank < to->ranks; rank++) {
        const octet_plan_tensor *x = &from->plans[1].tensors[decoded_input(from)];
        int input = octet_port_find(to->plans[0].args, to->plans[0].arg_count, "input");
        rows_of here = argument_rows(to, rank, 0, input);
        rows_of there = {here.rows, here.bytes, here.bytes,
                         run_at(from, rank, 1, x->buffers[OCTET_PART_VALUES])};
        copy_rows(&here, &there);
    }
}

/* Whether forward saved the cast of f(x) that wgrad reads: it rounds at random. */
static bool saves_cast(const run_group *group) {
    const octet_plan *plan = &group->plans[0];
    bool found = false;
    for (int i = 0; i < plan->saved_count; i++) {
        const octet_plan_tensor *t = &plan->tensors[plan->buffers[plan->saved[i]].tensor];
        found = found || (t->name == OCTET_NAME_INPUT && t->form == OCTET_FORM_QUANTIZED);
    }
    return found;
}

/* The three calls: one that saves memory, one that saves speed, and one that saves speed and
 * has for its input what the first decodes. */
typedef struct trio {
    run_group memory, speed, decoded;
} trio;

/* Whose result the first call has: forward, and wgrad by a saved cast, know the input itself.
 */
static const run_group *model_of(const trio *t, int plan, int name) {
    bool weight = name == OCTET_NAME_GRAD_WEIGHT || name == OCTET_NAME_MAIN_GRAD;
    bool of_input = !is_packed(&t->memory) || plan == 0 || (weight && saves_cast(&t->memory));
    return of_input ? &t->speed : &t->decoded;
}

static void same_outputs(run_report *report, const trio *t, int rank, int plan) {
    const run_group *mine = &t->memory;
    const octet_plan *p = &mine->plans[plan];
    for (int i = 0; i < p->out_count; i++) {
        const octet_port *out = &p->outs[i];
        const run_group *model = model_of(t, plan, out->name);
        bool same = out->alias != OCTET_ABSENT || !out->bytes ||
                    memcmp(mine->memory[rank][plan].outs[i], model->memory[rank][plan].outs[i],
                           (size_t)out->bytes) == 0;
        run_expect(report, same, "plan %d rank %d: result %d differs", plan, rank, out->name);
    }
    for (int i = 0; i < p->arg_count; i++) {
        const octet_port *arg = &p->args[i];
        const run_group *model = model_of(t, plan, arg->name);
        if (arg->is_mutable) {
            rows_of here = argument_rows(mine, rank, plan, i);
            rows_of there = argument_rows(model, rank, plan, twin_of(&model->plans[plan], arg));
            run_expect(report, same_rows(&here, &there),
                       "plan %d rank %d: written argument %d differs", plan, rank, arg->name);
        }
    }
}

/* ---- how far 8 bits may be from the input ------------------------------------------------ */

/* docs/prologues.md derives them. E4M3 has 3 bits behind its leading one, so an element moves
 * by 2^-4 of itself at most. Below 2^-6 of the block's scale it moves by 2^-10 of that; and a
 * scale, a power of two rounded up, is below 2/448 of the largest of the 32. */
typedef struct moved {
    double by, least; /* at most so far; elements below `least` may become 0 */
} moved;

static moved moves(const run_view *x, int64_t r, int64_t c) {
    double largest = 0;
    for (int64_t i = c / 32 * 32; i < x->cols && i < c / 32 * 32 + 32; i++) {
        largest = fmax(largest, fabs(run_decode_at(x, OCTET_USE_VALUES, r, i)));
    }
    double scale = fmax(largest / 224, 0x1p-127), tiny = x->dtype == OCTET_F16 ? 0x1p-25 : 0;
    double at = fabs(run_decode_at(x, OCTET_USE_VALUES, r, c));
    return (moved){fmax(at / 16, scale / 1024) + tiny, scale / 1024 + tiny};
}

/* How fast a function, and its slope, change: sup |a'| and sup |a''|. */
typedef struct rates {
    double value, slope;
} rates;

static rates rates_of(int prologue, double x, double by) {
    switch (prologue) {
    case OCTET_RELU:
    case OCTET_REGLU:
        return (rates){1, 0}; /* but where it becomes 0: the slope jumps by 1 */
    case OCTET_SRELU:
    case OCTET_SREGLU:
        return (rates){2 * (fabs(x) + by), 2};
    case OCTET_GELU:
    case OCTET_GEGLU:
        return (rates){1.13, 0.798};
    case OCTET_QGELU:
    case OCTET_QGEGLU:
        return (rates){1.1, 0.8511};
    case OCTET_GLU:
        return (rates){0.25, 0.0963};
    default:
        return (rates){1.1, 0.5001};
    }
}

TEST(save__the_rates_of_activations_are_their_suprema) {
    for (int f = OCTET_GELU; f < OCTET_PROLOGUES; f++) {
        double value = 0, slope = 0;
        rates want = rates_of(f, 8, 0);
        for (double x = -8; x <= 8; x += 0x1p-10) {
            run_act at = run_activation(f, x), next = run_activation(f, x + 0x1p-16);
            bool jumps = (f == OCTET_RELU || f == OCTET_REGLU) && x <= 0 && x + 0x1p-16 > 0;
            value = fmax(value, fabs(at.slope));
            slope = fmax(slope, jumps ? 0 : fabs(next.slope - at.slope) * 0x1p16);
        }
        CHECK(value <= want.value && slope <= want.slope + 1e-4);
        CHECK(value > want.value * 0.98 && slope >= want.slope * 0.98);
    }
}

/* What dx at the decoded input may differ by from dx at the input, both without rounding. */
static double grad_moves(const run_prologue *p, int64_t r, int64_t c) {
    int f = p->plan->prologue;
    int64_t cols = p->grad.cols, gate = c % cols;
    bool gated = octet_prologue_is_gated((octet_prologue)f);
    double g = run_x(p, r, gate), u = gated ? run_x(p, r, cols + gate) : 1;
    moved of_g = moves(&p->x, r, gate);
    double by_u = gated ? moves(&p->x, r, cols + gate).by : 0;
    rates rate = rates_of(f, g, of_g.by);
    double dy = fabs(run_dy(p, r, gate));
    if (c >= cols) {
        return dy * rate.value * of_g.by;
    }
    bool jumps = (f == OCTET_RELU || f == OCTET_REGLU) && fabs(g) <= of_g.least;
    double slope = fabs(run_activation(f, g).slope);
    double change = jumps ? 1 : rate.slope * of_g.by;
    return dy * (slope * by_u + (fabs(u) + by_u) * change);
}

/* What f(x) may differ by. */
static double value_moves(const run_prologue *p, int64_t r, int64_t c) {
    int f = p->plan->prologue;
    bool gated = octet_prologue_is_gated((octet_prologue)f);
    double g = run_x(p, r, c), u = gated ? run_x(p, r, p->dst.cols + c) : 1;
    double by_g = moves(&p->x, r, c).by;
    double by_u = gated ? moves(&p->x, r, p->dst.cols + c).by : 0;
    return rates_of(f, g, by_g).value * by_g * (fabs(u) + by_u) +
           fabs(run_activation(f, g).value) * by_u;
}

/* A result of backward and the formula in double precision, of the input as it was. */
static void check_bound(run_report *report, const run_group *group, int rank, octet_op op) {
    const octet_plan *plan = &group->plans[1];
    int at = find_op(plan, op);
    if (at < 0) {
        return;
    }
    const octet_step *step = &plan->steps[at];
    run_prologue p = {.plan = plan,
                      .dst = run_view_of(group, rank, 1, step->dst),
                      .x = run_view_of(group, rank, 0, 0)};
    bool grad = op == OCTET_OP_PROLOGUE_GRAD;
    if (grad) {
        p.grad = run_view_of(group, rank, 1, step->a);
    }
    double unit = p.dst.dtype == OCTET_F32   ? 0x1p-24
                  : p.dst.dtype == OCTET_F16 ? 0x1p-11
                                             : 0x1p-8;
    for (int64_t i = 0; i < p.dst.rows * p.dst.cols; i++) {
        int64_t r = i / p.dst.cols, c = i % p.dst.cols;
        run_number_of law = run_prologue_law(&p, (int)op, r, c);
        double moved_by = grad ? grad_moves(&p, r, c) : value_moves(&p, r, c);
        double got = run_decode_at(&p.dst, OCTET_USE_VALUES, r, c);
        /* Arithmetic at the decoded input errs as it does at the input, and by 2 if it is
         * twice as large there; then the result is rounded. */
        double bound = (moved_by + 4 * law.bound) * (1 + unit) + fabs(law.want) * unit +
                       (p.dst.dtype == OCTET_F16 ? 0x1p-25 : 0x1p-125);
        run_expect(report, run_close(report, got, law.want, bound),
                   "rank %d (%lld, %lld): %g, not %g within %g", rank, (long long)r,
                   (long long)c, got, law.want, bound);
    }
}

/* ---- laws -------------------------------------------------------------------------------- */

static int64_t exact, packs, saves_less; /* calls */

static octet_status run_trio(trio *t, const octet_linear_backward_args *args,
                             const run_options *options) {
    octet_linear_backward_args little = saving(args, OCTET_SAVE_MEMORY);
    octet_linear_backward_args usual = saving(args, OCTET_SAVE_SPEED);
    octet_status made[] = {run_group_make(&t->memory, &little, options),
                           run_group_make(&t->speed, &usual, options),
                           run_group_make(&t->decoded, &usual, options)};
    octet_status status = made[0] ? made[0] : made[1] ? made[1] : made[2];
    if (status) {
        return status;
    }
    copy_arguments(&t->speed, &t->memory);
    copy_arguments(&t->decoded, &t->memory);
    status = run_group_run(&t->memory);
    status = status ? status : run_group_run(&t->speed);
    if (!status && is_packed(&t->memory)) {
        copy_decoded(&t->decoded, &t->memory);
        status = run_group_run(&t->decoded);
    }
    return status;
}

static void compare(run_report *report, const octet_linear_backward_args *args, uint64_t seed) {
    char problem[OCTET_LINEAR_TEXT];
    static trio t;
    run_options options = {.seed = seed, .fill = 0xFF, .strided = seed & 1};
    octet_linear_backward_print(problem, sizeof problem, args);
    report->problem = problem;
    octet_status status = run_trio(&t, args, &options);
    if (run_expect(report, status == OCTET_OK, "%s%s", t.memory.err.text, t.speed.err.text)) {
        bool packed = is_packed(&t.memory);
        run_check_steps(report, &t.memory);
        for (int i = 0; i < t.memory.ranks * t.memory.count; i++) {
            same_outputs(report, &t, i / t.memory.count, i % t.memory.count);
        }
        for (int rank = 0; packed && rank < t.memory.ranks; rank++) {
            check_bound(report, &t.memory, rank, OCTET_OP_PROLOGUE_GRAD);
            check_bound(report, &t.memory, rank, OCTET_OP_PROLOGUE);
        }
        *(packed ? &packs : &exact) += 1;
        saves_less += t.memory.plans[0].saved_bytes + t.memory.plans[0].aliased_bytes <
                      t.speed.plans[0].saved_bytes + t.speed.plans[0].aliased_bytes;
    }
    run_group_free(&t.memory);
    run_group_free(&t.speed);
    run_group_free(&t.decoded);
}

static void finish(const run_report *report, const char *what, int64_t least) {
    printf("%s: %" PRId64 " checks, closest to its bound %.3f; byte for byte %" PRId64
           ", in 8 bits %" PRId64 ", of all these fewer bytes %" PRId64 "\n",
           what, report->checks, report->closest, exact, packs, saves_less);
    CHECK_EQ_INT(report->failures, 0);
    CHECK(exact >= least && packs >= least && saves_less >= least);
    exact = packs = saves_less = 0;
}

static const char *const names[] = {"rmsnorm eps=1e-05",
                                    "layernorm eps=1e-05 beta=f32",
                                    "rmsnorm eps=1e-05 zero_centered",
                                    "layernorm eps=1e-05",
                                    "gelu",
                                    "qgelu",
                                    "relu",
                                    "srelu",
                                    "silu",
                                    "glu",
                                    "geglu",
                                    "qgeglu",
                                    "reglu",
                                    "sreglu",
                                    "swiglu"};
static const char *const recipes[] = {
    "delayed", "current", "block", "mxfp8", "nvfp4", "mxfp4", "delayed:override=dequantized"};
static const char *const options[] = {"",
                                      " delay_wgrad bias",
                                      " grad=x quantize_grad_input",
                                      " grad=w",
                                      " main_grad=add raise_amax",
                                      " fsdp",
                                      " cache=write",
                                      " save_original_input"};
static const char *const dtypes[] = {"bf16", "f32", "f16"};
static const char *const extents[] = {"m=19 k=35 n=21", "m=1 k=1 n=3",   "m=0 k=17 n=5",
                                      "m=130 k=9 n=4",  "m=3 k=515 n=2", "m=33 k=64 n=32"};

TEST(save__memory_gives_speeds_gradients_under_every_recipe) {
    run_report report = {0};
    for (int i = 0; i < 15 * 7 * 8; i++) {
        octet_linear_backward_args args;
        char text[512];
        (void)snprintf(text, sizeof text, "linear-backward %s in=%s recipe=%s prologue=%s%s",
                       extents[i % 6], dtypes[i / 8 % 3], recipes[i / 8 % 7], names[i / 56],
                       options[i % 8]);
        if (octet_linear_backward_parse(&args, text, NULL) == OCTET_OK) {
            compare(&report, &args, (uint64_t)i);
        }
    }
    finish(&report, "recipes", 250);
}

TEST(save__memory_gives_speeds_gradients_on_several_ranks) {
    static const matrix_size sizes[] = {{17, 33, 13}, {1, 40, 24}, {32, 32, 16}, {5, 1, 1}};
    static const matrix_size shard = {1, 32, 24};
    run_report report = {0};
    matrix_random random = {29};
    for (int i = 0; i < 900; i++) {
        octet_linear_backward_args args;
        matrix_row row = matrix_draw(&random);
        bool several = i % 3 != 0;
        row.level[OPT_DEVICE] = row.level[OPT_INPUT] = row.level[OPT_CALIBRATE] = 0;
        row.level[OPT_PROLOGUE] = (uint8_t)(1 + i / 2 % 4);
        if (!several) {
            row.level[OPT_PARALLEL] = row.level[OPT_SEQUENCE] = 0;
            row.level[OPT_TP] = 2;
        }
        if (matrix_args(&args, &row, several ? &shard : &sizes[i / 2 % 4], NULL) == OCTET_OK) {
            compare(&report, &args, (uint64_t)i + 5000);
        }
    }
    finish(&report, "ranks", 100);
}

TEST_MAIN(save__the_rates_of_activations_are_their_suprema,
          save__memory_gives_speeds_gradients_under_every_recipe,
          save__memory_gives_speeds_gradients_on_several_ranks)
