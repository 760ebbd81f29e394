/* test_run_matrix.c - recipes times options on one rank: every step and every result is right.
 */
#include "check.h"
#include "linear/matrix.h"
#include "test.h"

static const matrix_size sizes[] = {
    {17, 33, 13}, {1, 40, 24}, {32, 32, 16}, {0, 16, 8}, {5, 1, 1},    {2, 130, 3},
    {131, 7, 5},  {16, 64, 7}, {7, 0, 9},    {3, 19, 0}, {37, 16, 31}, {129, 17, 2},
};
#define SIZES ((int)(sizeof sizes / sizeof sizes[0]))

static int64_t accepted;

static void run_args(run_report *report, const octet_linear_backward_args *args,
                     uint64_t seed) {
    char problem[OCTET_LINEAR_TEXT];
    octet_linear_backward_print(problem, sizeof problem, args);
    report->problem = problem;
    run_group group;
    run_options options = {.seed = seed, .fill = 0xFF, .strided = seed & 1};
    octet_status status = run_group_make(&group, args, &options);
    status = status ? status : run_group_run(&group);
    if (run_expect(report, status == OCTET_OK, "%s", group.err.text)) {
        accepted++;
        run_check_steps(report, &group);
        run_check_ends(report, &group);
    }
    run_group_free(&group);
}

static void run_row(run_report *report, const matrix_row *row, const matrix_size *size,
                    uint64_t seed) {
    octet_linear_backward_args args;
    if (matrix_args(&args, row, size, NULL) == OCTET_OK) {
        run_args(report, &args, seed);
    }
}

static void finish(const run_report *report, const char *what, int64_t least) {
    printf("%s: %" PRId64 " layers, %" PRId64 " checks, closest to its bound %.3f\n", what,
           accepted, report->checks, report->closest);
    CHECK_EQ_INT(report->failures, 0);
    CHECK(accepted >= least);
    accepted = 0;
}

/* Each recipe with each level of each option, the others plain. */
TEST(run__every_option_under_every_recipe) {
    run_report report = {0};
    uint64_t seed = 1;
    for (int recipe = 0; recipe < matrix_table[OPT_RECIPE].count; recipe++) {
        for (int option = 0; option < OPTIONS; option++) {
            bool skipped = option == OPT_RECIPE || option == OPT_DEVICE || option == OPT_TP;
            for (int level = 0; !skipped && level < matrix_table[option].count; level++) {
                matrix_row row = {.chunks = 0};
                row.level[OPT_RECIPE] = (uint8_t)recipe;
                row.level[OPT_TP] = 2; /* one rank */
                row.level[OPT_BIAS] = 1;
                row.level[option] = (uint8_t)level;
                seed++;
                run_row(&report, &row, &sizes[seed % SIZES], seed);
            }
        }
    }
    finish(&report, "options", 1000);
}

TEST(run__options_at_random) {
    run_report report = {0};
    matrix_random random = {7};
    for (int i = 0; i < 4000; i++) {
        matrix_row row = matrix_draw(&random);
        row.level[OPT_DEVICE] = 0;
        row.level[OPT_PARALLEL] = row.level[OPT_SEQUENCE] = 0;
        row.level[OPT_TP] = 2;
        run_row(&report, &row, &sizes[i % SIZES], (uint64_t)i + 1000);
    }
    finish(&report, "at random", 1000);
}

TEST(run__main_grad_in_every_dtype) {
    static const char *const recipes[] = {"none",  "delayed", "current", "block",
                                          "mxfp8", "nvfp4",   "mxfp4",   "mxfp4+rht"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    run_report report = {0};
    for (int i = 0; i < 8 * 3 * 2 * 2; i++) {
        octet_linear_backward_args args;
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=19 k=35 n=21 in=bf16 recipe=%s main_grad=%s "
                       "main_grad_dtype=%s%s",
                       recipes[i / 12], i % 2 ? "add" : "overwrite", dtypes[i / 2 % 3],
                       i / 6 % 2 ? " delay_wgrad" : "");
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &args, (uint64_t)i);
        }
    }
    finish(&report, "main_grad", 96);
}

TEST(run__bias_main_grad_in_every_dtype) {
    static const char *const recipes[] = {"none",  "delayed", "current",
                                          "block", "mxfp8",   "nvfp4"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    static const char *const ends[] = {"", " delay_wgrad main_grad=add", " grad=b", " in=f32"};
    run_report report = {0};
    for (int i = 0; i < 6 * 3 * 2 * 4; i++) {
        octet_linear_backward_args args;
        const char *end = ends[i / 6 % 4];
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=37 k=5 n=261 bias recipe=%s bias_main_grad=%s "
                       "bias_main_grad_dtype=%s%s%s",
                       recipes[i / 24], i % 2 ? "add" : "overwrite", dtypes[i / 2 % 3], end,
                       strstr(end, " in=") ? "" : " in=bf16");
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &args, (uint64_t)i);
        }
    }
    finish(&report, "bias_main_grad", 144);
}

TEST_MAIN(run__every_option_under_every_recipe, run__options_at_random,
          run__main_grad_in_every_dtype, run__bias_main_grad_in_every_dtype)
