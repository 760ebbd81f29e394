/* test_run_prologue.c - a call with a prologue is the function, and then the call without it.
 *
 * check_steps.c holds each step of a prologue against its formula in double precision. Here the
 * bytes of what follows are compared with those of a Linear whose input is f(x). */
#include "check.h"
#include "fill.h"
#include "linear/matrix.h"
#include "test.h"
#include "twins.h"

/* ---- two groups -------------------------------------------------------------------------- */

/* The cast that computes f(x). */
static const octet_step *applying(const octet_plan *plan) {
    const octet_step *step = plan->steps;
    while (!step->apply || step->op != OCTET_OP_QUANTIZE) {
        step++;
    }
    return step;
}

/* The same call of f(x): what the prologue has is gone, and dgrad is wanted where it was. */
static octet_linear_backward_args without(const octet_linear_backward_args *args) {
    octet_linear_backward_args plain = *args;
    octet_linear_args *f = &plain.forward;
    f->input_requires_grad =
        f->input_requires_grad || f->gamma_requires_grad || f->beta_requires_grad;
    f->prologue = f->zero_centered = f->gamma_requires_grad = f->beta_requires_grad = 0;
    f->eps = 0;
    f->quantize_grad_input = 0;
    memset(&f->gamma, 0, sizeof f->gamma);
    memset(&f->beta, 0, sizeof f->beta);
    f->input.shape[f->input.rank - 1] = f->weight.shape[1];
    return plain;
}

static bool is_input(const octet_port *port) {
    return port->name == OCTET_NAME_INPUT && port->form == OCTET_FORM_GIVEN;
}

/* Before either runs: all that the caller hands over but the input. */
static void copy_arguments(run_group *to, const run_group *from, int rank) {
    for (int plan = 0; plan < to->count; plan++) {
        const octet_plan *p = &to->plans[plan];
        for (int i = 0; i < p->arg_count; i++) {
            int twin = twin_of(&from->plans[plan], &p->args[i]);
            if (twin >= 0 && !is_input(&p->args[i])) {
                rows_of here = argument_rows(to, rank, plan, i);
                rows_of there = argument_rows(from, rank, plan, twin);
                copy_rows(&here, &there);
            }
        }
    }
}

static int64_t written, applied; /* calls whose f(x) a step writes, or a cast applies */

/* After the first has run: f(x), as it left it in its memory, or as a step computes it where a
 * cast did. */
static octet_status copy_input(run_group *to, run_group *from, int rank) {
    const octet_plan *f = &from->plans[0];
    int maker = find_op(f, OCTET_OP_PROLOGUE);
    rows_of here = argument_rows(to, rank, 0, twin_of(&to->plans[0], &to->plans[0].args[0]));
    rows_of there = {here.rows, here.bytes, here.bytes, NULL};
    octet_status status = OCTET_OK;
    if (maker >= 0) {
        there.at = run_at(from, rank, 0, f->tensors[f->steps[maker].dst].buffers[0]);
        written++;
    } else {
        const octet_step *cast = applying(f);
        run_view made;
        run_applied of = {run_view_of(from, rank, 0, cast->a),
                          run_at(from, rank, 0, cast->gamma),
                          run_at(from, rank, 0, cast->bias)};
        status = run_apply(&made, from, &of);
        there.at = (char *)(uintptr_t)made.parts[0];
        applied++;
    }
    if (!status) {
        copy_rows(&here, &there);
    }
    return status;
}

/* The amaxes of a gradient that only one of them quantizes. */
static bool is_other(const run_group *fused, const octet_port *port) {
    return port->name == OCTET_NAME_AMAX && fused->args.forward.quantize_grad_input;
}

/* Where the first left what is an output of the second. */
static const void *result_at(const run_group *fused, int rank, int plan,
                             const octet_port *port) {
    const octet_plan *p = &fused->plans[plan];
    if (port->name == OCTET_NAME_GRAD_INPUT) {
        int grad = find_tensor(p, port->name, OCTET_FORM_PROLOGUE);
        return grad < 0
                   ? NULL
                   : run_at(fused, rank, plan, p->tensors[grad].buffers[OCTET_PART_VALUES]);
    }
    for (int i = 0; i < p->out_count; i++) {
        if (p->outs[i].name == port->name && p->outs[i].part == port->part) {
            return fused->memory[rank][plan].outs[i];
        }
    }
    return NULL;
}

static void same_results(run_report *report, const run_group *fused, const run_group *plain,
                         int rank) {
    for (int plan = 0; plan < plain->count; plan++) {
        const octet_plan *p = &plain->plans[plan];
        for (int i = 0; i < p->out_count; i++) {
            const octet_port *port = &p->outs[i];
            const void *mine = result_at(fused, rank, plan, port);
            bool compares =
                port->alias == OCTET_ABSENT && port->bytes && !is_other(fused, port);
            bool same = !compares || (mine && memcmp(mine, plain->memory[rank][plan].outs[i],
                                                     (size_t)port->bytes) == 0);
            run_expect(report, same, "plan %d rank %d: result %d differs from the call of f(x)",
                       plan, rank, port->name);
        }
        for (int i = 0; i < p->arg_count; i++) {
            int twin = twin_of(&fused->plans[plan], &p->args[i]);
            if (p->args[i].is_mutable && !is_other(fused, &p->args[i])) {
                rows_of here = argument_rows(plain, rank, plan, i);
                rows_of there = argument_rows(fused, rank, plan, twin);
                run_expect(report, same_rows(&here, &there),
                           "plan %d rank %d: written argument %d differs", plan, rank,
                           p->args[i].name);
            }
        }
    }
}

static int64_t accepted;

static octet_status run_both(run_group *fused, run_group *plain) {
    for (int rank = 0; rank < plain->ranks; rank++) {
        copy_arguments(plain, fused, rank);
    }
    octet_status status = run_group_run(fused);
    for (int rank = 0; !status && rank < plain->ranks; rank++) {
        status = copy_input(plain, fused, rank);
    }
    return status ? status : run_group_run(plain);
}

/* Both calls, each step of the first, and that their bytes are the same. */
static void compare(run_report *report, const octet_linear_backward_args *args, uint64_t seed) {
    char problem[OCTET_LINEAR_TEXT];
    run_group fused, plain;
    run_options options = {.seed = seed, .fill = 0xFF, .strided = seed & 1};
    octet_linear_backward_args other = without(args);
    octet_linear_backward_print(problem, sizeof problem, args);
    report->problem = problem;
    octet_status status = run_group_make(&fused, args, &options);
    octet_status later = run_group_make(&plain, &other, &options);
    status = status ? status : later ? later : run_both(&fused, &plain);
    if (run_expect(report, status == OCTET_OK, "%s%s", fused.err.text, plain.err.text)) {
        accepted++;
        run_check_steps(report, &fused);
        for (int rank = 0; rank < plain.ranks; rank++) {
            same_results(report, &fused, &plain, rank);
        }
    }
    run_group_free(&plain);
    run_group_free(&fused);
}

static void finish(const run_report *report, const char *what, int64_t least) {
    printf("%s: %" PRId64 " layers, %" PRId64 " checks, closest to its bound %.3f\n", what,
           accepted, report->checks, report->closest);
    CHECK_EQ_INT(report->failures, 0);
    printf("  f(x) of a step of its own: %" PRId64 ", of a cast: %" PRId64 "\n", written,
           applied);
    CHECK(accepted >= least);
    CHECK(written > 100 && applied > 100);
    accepted = written = applied = 0;
}

/* ---- laws -------------------------------------------------------------------------------- */

static const char *const names[] = {"rmsnorm", "layernorm", "gelu",  "qgelu", "relu",
                                    "srelu",   "silu",      "glu",   "geglu", "qgeglu",
                                    "reglu",   "sreglu",    "swiglu"};
static const char *const recipes[] = {"none",  "delayed", "current", "block",
                                      "mxfp8", "nvfp4",   "mxfp4"};
static const char *const options[] = {"",
                                      " save_original_input",
                                      " delay_wgrad bias",
                                      " grad=w",
                                      " grad=x quantize_grad_input",
                                      " main_grad=add calibrate raise_amax",
                                      " fsdp raise_amax",
                                      " cache=write"};
static const char *const dtypes[] = {"bf16", "f32", "f16"};
static const char *const extents[] = {"m=19 k=35 n=21", "m=1 k=1 n=3",    "m=0 k=17 n=5",
                                      "m=130 k=9 n=4",  "m=3 k=2051 n=2", "m=33 k=64 n=32"};

TEST(prologue__every_function_is_its_own_step_under_every_recipe) {
    run_report report = {0};
    int count = 0;
    for (int i = 0; i < 13 * 7 * 8; i++) {
        octet_linear_backward_args args;
        char text[512];
        bool norm = i / 56 < 2, layer = i / 56 == 1;
        (void)snprintf(text, sizeof text,
                       "linear-backward %s in=%s recipe=%s prologue=%s%s%s%s%s", extents[i % 6],
                       dtypes[i % 3], recipes[i / 8 % 7], names[i / 56],
                       norm ? " eps=1e-05" : "", norm && i % 5 == 0 ? " zero_centered" : "",
                       layer && i % 4 ? " beta=f32" : "", options[i % 8]);
        if (octet_linear_backward_parse(&args, text, NULL) == OCTET_OK) {
            compare(&report, &args, (uint64_t)i);
            count++;
        }
    }
    CHECK(count > 550); /* the others ask for what their recipe lacks */
    finish(&report, "functions", 550);
}

TEST(prologue__options_at_random_on_one_rank_and_on_several) {
    static const matrix_size sizes[] = {{17, 33, 13}, {1, 40, 24}, {32, 32, 16}, {5, 1, 1}};
    static const matrix_size shard = {1, 32, 24};
    run_report report = {0};
    matrix_random random = {11};
    for (int i = 0; i < 1500; i++) {
        octet_linear_backward_args args;
        matrix_row row = matrix_draw(&random);
        bool several = i % 2;
        row.level[OPT_DEVICE] = 0;
        row.level[OPT_INPUT] = 0;
        row.level[OPT_PROLOGUE] = (uint8_t)(1 + i / 2 % 4);
        /* Backward of an activation that saves memory is not that of f(x): test_run_save.c. */
        row.save = i / 2 % 4 < 2 ? row.save : OCTET_SAVE_SPEED;
        if (!several) {
            row.level[OPT_PARALLEL] = row.level[OPT_SEQUENCE] = 0;
            row.level[OPT_TP] = 2;
        }
        if (matrix_args(&args, &row, several ? &shard : &sizes[i / 2 % 4], NULL) == OCTET_OK) {
            compare(&report, &args, (uint64_t)i + 5000);
        }
    }
    finish(&report, "at random", 700);
}

TEST_MAIN(prologue__every_function_is_its_own_step_under_every_recipe,
          prologue__options_at_random_on_one_rank_and_on_several)
