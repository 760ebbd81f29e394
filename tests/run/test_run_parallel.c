/* test_run_parallel.c - 2 and 4 ranks in one process compute what the unsplit layer does. */
#include "check.h"
#include "linear/matrix.h"
#include "test.h"

static int64_t accepted;

static octet_status run_args(run_report *report, run_group *group,
                             const octet_linear_backward_args *args, uint64_t seed) {
    run_options options = {.seed = seed, .fill = 0xFF, .strided = seed & 1};
    octet_status status = run_group_make(group, args, &options);
    status = status ? status : run_group_run(group);
    run_expect(report, status == OCTET_OK, "%s", group->err.text);
    return status;
}

/* ---- against double precision ---------------------------------------------------------- */

TEST(parallel__every_recipe_and_mode_is_the_unsplit_layer) {
    static const matrix_size sizes[] = {{1, 17, 5}, {1, 33, 8}, {1, 8, 20}, {2, 16, 3}};
    run_report report = {0};
    matrix_random random = {11};
    for (int i = 0; i < 1600; i++) {
        matrix_row row = matrix_draw(&random);
        octet_linear_backward_args args;
        row.level[OPT_DEVICE] = 0;
        row.level[OPT_RECIPE] = (uint8_t)(i % matrix_table[OPT_RECIPE].count);
        row.level[OPT_PARALLEL] = (uint8_t)(1 + i % 2);
        row.level[OPT_TP] = (uint8_t)(i / 2 % 2);
        bool sequence = row.level[OPT_SEQUENCE] && !row.level[OPT_GATHER];
        matrix_size size = sizes[i % 4];
        size.m = sequence ? 1 : size.m * 24; /* whole blocks are many rows already */
        if (sequence && i % 8) {
            continue;
        }
        if (matrix_args(&args, &row, &size, NULL)) {
            continue;
        }
        char problem[OCTET_LINEAR_TEXT];
        octet_linear_backward_print(problem, sizeof problem, &args);
        report.problem = problem;
        run_group group;
        if (run_args(&report, &group, &args, (uint64_t)i) == OCTET_OK) {
            accepted++;
            run_check_steps(&report, &group);
            run_check_ends(&report, &group);
        }
        run_group_free(&group);
    }
    printf("parallel: %" PRId64 " layers, %" PRId64 " checks, closest to its bound %.3f\n",
           accepted, report.checks, report.closest);
    CHECK_EQ_INT(report.failures, 0);
    CHECK(accepted >= 300);
}

/* ---- against the unsplit run, bit for bit ----------------------------------------------- */

static octet_status parse(octet_linear_backward_args *args, const char *format,
                          const char *recipe, const char *rest) {
    char text[512];
    octet_error err;
    (void)snprintf(text, sizeof text, format, recipe, rest);
    octet_status status = octet_linear_backward_parse(args, text, &err);
    if (status) {
        printf("%s: %s\n", text, err.text);
    }
    return status;
}

/* Columns [left, left + cols) of the whole output are the rank's output. */
static void check_columns(run_group *split, run_group *whole, int rank) {
    const octet_port *part = &split->plans[0].outs[0], *all = &whole->plans[0].outs[0];
    const char *a = split->memory[rank][0].outs[0], *b = whole->memory[0][0].outs[0];
    int64_t size = octet_dtype_bits((octet_dtype)part->dtype) / 8;
    int64_t cols = part->shape[1];
    CHECK_EQ_INT(part->shape[0], all->shape[0]);
    for (int64_t r = 0; r < part->shape[0]; r++) {
        CHECK(memcmp(a + r * cols * size, b + (r * all->shape[1] + rank * cols) * size,
                     (size_t)(cols * size)) == 0);
    }
}

/* Blocks of the weight lie within a rank's rows, and one scale for the tensor comes from the
 * same amax only where every rank has it: so weights here have an amax of their own per rank,
 * and the recipes are those whose weight scales are local to rows or given. */
TEST(parallel__column_parallel_output_is_bit_exact) {
    static const char *const recipes[] = {"delayed", "block", "mxfp8", "none"};
    static const char *const modes[] = {"", "sequence"};
    run_report report = {0};
    for (int i = 0; i < 8; i++) {
        octet_linear_backward_args split, whole;
        run_group a, b;
        bool sequence = i % 2;
        const char *recipe = recipes[i / 2];
        octet_status status =
            parse(&split,
                  sequence ? "linear-backward m=128 k=64 n=128 in=bf16 bias parallel=column "
                             "tp=2 recipe=%s %s"
                           : "linear-backward m=256 k=64 n=128 in=bf16 bias parallel=column "
                             "tp=2 recipe=%s %s",
                  recipe, modes[i % 2]);
        status =
            status ? status
                   : parse(&whole, "linear-backward m=256 k=64 n=256 in=bf16 bias recipe=%s %s",
                           recipe, "");
        if (!CHECK_EQ_INT(status, OCTET_OK)) {
            continue;
        }
        CHECK_EQ_INT(run_args(&report, &a, &split, 5), OCTET_OK);
        CHECK_EQ_INT(run_args(&report, &b, &whole, 5), OCTET_OK);
        check_columns(&a, &b, 0);
        check_columns(&a, &b, 1);
        run_group_free(&a);
        run_group_free(&b);
    }
    CHECK_EQ_INT(report.failures, 0);
}

/* Gathered bytes are those of the whole tensor quantized at once, where ranks share a scale. */
TEST(parallel__gathered_input_is_quantized_as_if_whole) {
    static const char *const recipes[] = {"delayed", "current", "block",
                                          "mxfp8",   "nvfp4",   "mxfp4"};
    run_report report = {0};
    for (int i = 0; i < 6; i++) {
        octet_linear_backward_args args;
        run_group group;
        octet_status status = parse(&args,
                                    "linear-backward m=128 k=80 n=16 in=bf16 parallel=column "
                                    "tp=4 sequence grad=none recipe=%s %s",
                                    recipes[i], "");
        if (!CHECK_EQ_INT(status, OCTET_OK)) {
            continue;
        }
        CHECK_EQ_INT(run_args(&report, &group, &args, 9), OCTET_OK);
        const octet_plan *plan = &group.plans[0];
        const octet_step *gemm = NULL;
        for (int s = 0; s < plan->step_count; s++) {
            gemm = plan->steps[s].op == OCTET_OP_GEMM ? &plan->steps[s] : gemm;
        }
        void *parts[OCTET_PARTS] = {NULL};
        const octet_plan_tensor *input = &plan->tensors[gemm->a];
        run_quantizing how = {input->quantizer, OCTET_BF16, group.layer.scale[0][0],
                              &group.layer.seed, OCTET_STREAM_INPUT};
        CHECK_EQ_INT(run_quantize(&group, parts, &group.layer.x, &how), OCTET_OK);
        for (int part = 0; part < OCTET_PARTS; part++) {
            int buffer = input->buffers[part];
            for (int rank = 0; buffer != OCTET_ABSENT && rank < group.ranks; rank++) {
                CHECK(memcmp(run_at(&group, rank, 0, buffer), parts[part],
                             (size_t)plan->buffers[buffer].bytes) == 0);
            }
        }
        run_group_free(&group);
    }
    CHECK_EQ_INT(report.failures, 0);
}

/* ---- chunks ---------------------------------------------------------------------------- */

static bool same_memory(const void *a, const void *b, int64_t bytes) {
    return bytes == 0 || memcmp(a, b, (size_t)bytes) == 0;
}

/* Every output of every rank, byte for byte. */
static void check_same_outputs(const run_group *a, const run_group *b) {
    for (int rank = 0; rank < a->ranks; rank++) {
        for (int plan = 0; plan < a->count; plan++) {
            const octet_plan *p = &a->plans[plan];
            CHECK_EQ_INT(p->out_count, b->plans[plan].out_count);
            for (int i = 0; i < p->out_count; i++) {
                const void *one = a->memory[rank][plan].outs[i];
                const void *other = b->memory[rank][plan].outs[i];
                bool made = p->outs[i].alias == OCTET_ABSENT;
                CHECK(!made || same_memory(one, other, p->outs[i].bytes));
            }
        }
    }
}

/* Each step means what it says, and the layer computes what it does without chunks. */
static void check_chunks(run_report *report, const char *text, uint32_t chunks, bool gathers) {
    octet_linear_backward_args args;
    run_group cut, whole;
    octet_error err;
    if (!CHECK_EQ_INT(octet_linear_backward_parse(&args, text, &err), OCTET_OK)) {
        printf("%s: %s\n", text, err.text);
        return;
    }
    report->problem = text;
    CHECK_EQ_INT(run_args(report, &whole, &args, 7), OCTET_OK);
    *(gathers ? &args.forward.gather_chunks : &args.forward.chunks) = chunks;
    if (CHECK_EQ_INT(run_args(report, &cut, &args, 7), OCTET_OK)) {
        CHECK(cut.plans[0].chunks == chunks || cut.plans[1].chunks == chunks);
        run_check_steps(report, &cut);
        run_check_ends(report, &cut);
        check_same_outputs(&cut, &whole);
    }
    run_group_free(&cut);
    run_group_free(&whole);
}

static const char *const chunk_recipes[] = {"none",
                                            "delayed",
                                            "current+pow2",
                                            "block",
                                            "block+w.no2d",
                                            "mxfp8",
                                            "mxfp8+2d",
                                            "nvfp4+nosr",
                                            "nvfp4+no2d",
                                            "mxfp4+nosr",
                                            "nvfp4+rowscaled+norht",
                                            "mxfp8:override=dequantized"};

TEST(parallel__chunks_are_the_whole_product) {
    static const char *const modes[] = {"row", "row bias", "column", "column bias delay_wgrad"};
    run_report report = {0};
    for (int i = 0; i < 12 * 4; i++) {
        const char *recipe = chunk_recipes[i / 4];
        bool wide = strncmp(recipe, "block", 5) == 0, row = i % 4 < 2;
        int cols = wide ? 256 : i % 2 ? 64 : 48;
        char text[256];
        (void)snprintf(
            text, sizeof text,
            "linear-backward m=%d k=%d n=%d in=bf16 recipe=%s tp=2 sequence parallel=%s",
            wide ? 256 : 64, row ? 32 : cols, row ? cols : 32, recipe, modes[i % 4]);
        check_chunks(&report, text, wide ? 2 : i % 2 ? 4 : 3, false);
    }
    CHECK_EQ_INT(report.failures, 0);
}

/* Ranks gather chunks of their rows, each of which is multiplied while the next travels. Rows
 * that are no whole blocks where no product reads columnwise bytes: 3 chunks of 30 rows. */
TEST(parallel__gathered_chunks_are_the_whole_product) {
    static const char *const modes[] = {"column",   "column bias grad=wb", "column bias", "row",
                                        "row bias", "row bias delay_wgrad"};
    static const char *const more[] = {
        "mxfp8 parallel=column quantize_output bias", "delayed parallel=column quantize_output",
        "delayed parallel=row quantize_grad_input",   "nvfp4+nosr parallel=row main_grad=add",
        "current parallel=row prologue=gelu grad=x",  "block parallel=row bias"};
    run_report report = {0};
    for (int i = 0; i < 12 * 6; i++) {
        const char *recipe = chunk_recipes[i / 6], *mode = modes[i % 6];
        bool wide = strncmp(recipe, "block", 5) == 0, row = i % 6 > 2;
        int ranks = i % 4 ? 2 : 4, chunks = i % 3 == 0 ? 3 : i % 2 ? 4 : 2;
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=80 n=48 in=bf16 recipe=%s tp=%d sequence "
                       "parallel=%s",
                       (wide ? 128 : 32) * chunks * (row ? ranks : 1), recipe, ranks, mode);
        check_chunks(&report, text, (uint32_t)chunks, true);
    }
    for (int i = 0; i < 12; i++) {
        bool wide = strncmp(chunk_recipes[i], "block", 5) == 0;
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=64 n=48 in=bf16 recipe=%s tp=2 sequence grad=x "
                       "parallel=%s",
                       wide ? 768 : 60, chunk_recipes[i], i % 2 ? "row" : "column");
        check_chunks(&report, text, 3, true);
    }
    for (int i = 0; i < 6; i++) {
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=256 k=64 n=48 in=bf16 tp=2 sequence recipe=%s",
                       more[i]);
        check_chunks(&report, text, 4, true);
    }
    CHECK_EQ_INT(report.failures, 0);
}

/* Values that each rank quantizes after it has them all are gathered whole. */
TEST(parallel__values_that_are_quantized_later_are_not_cut) {
    octet_linear_args args;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_error err;
    const char *text = "linear m=40 k=64 n=32 in=bf16 recipe=mxfp8 parallel=column tp=2 "
                       "sequence gather=high_precision gather_chunks=4";
    CHECK_EQ_INT(octet_linear_parse(&args, text, &err), OCTET_OK);
    CHECK_EQ_INT(octet_plan_linear(&plan, &args, &err), OCTET_OK);
    CHECK_EQ_INT(plan.chunks, 1);
    CHECK(!plan.by_rows);
}

TEST_MAIN(parallel__every_recipe_and_mode_is_the_unsplit_layer,
          parallel__column_parallel_output_is_bit_exact,
          parallel__gathered_input_is_quantized_as_if_whole,
          parallel__chunks_are_the_whole_product,
          parallel__gathered_chunks_are_the_whole_product,
          parallel__values_that_are_quantized_later_are_not_cut)
