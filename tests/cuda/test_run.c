/* test_run.c - whole layers on the emulated GPU: every step and every result is right. */
#include "../run/check.h"
#include "device.h"
#include "linear/matrix.h"
#include "test.h"

static const matrix_size sizes[] = {
    {17, 33, 13}, {1, 40, 24}, {32, 32, 16}, {0, 16, 8}, {39, 70, 44}, {131, 7, 5}, {7, 0, 9},
};
#define SIZES ((int)(sizeof sizes / sizeof sizes[0]))

#define HOPPER 3 /* the level of OPT_DEVICE that the emulated GPU is */

static int64_t accepted;

static void run_args(run_report *report, const octet_linear_backward_args *args,
                     uint64_t seed) {
    char problem[OCTET_LINEAR_TEXT];
    octet_linear_backward_print(problem, sizeof problem, args);
    report->problem = problem;
    run_group group;
    run_options options = {
        .seed = seed, .fill = 0xFF, .strided = seed & 1, .cuda = cuda_on()->cuda};
    octet_status status = run_group_make(&group, args, &options);
    status = status ? status : run_group_run(&group);
    if (run_expect(report, status == OCTET_OK, "%s", group.err.text)) {
        accepted++;
        run_check_steps(report, &group);
        run_check_ends(report, &group);
    }
    run_group_free(&group);
}

static void finish(const run_report *report, int64_t least) {
    printf("%" PRId64 " layers, %" PRId64 " checks, closest to its bound %.3f\n", accepted,
           report->checks, report->closest);
    CHECK_EQ_INT(report->failures, 0);
    CHECK(accepted >= least);
    accepted = 0;
}

TEST(cuda_run__every_option_under_every_recipe) {
    run_report report = {0};
    uint64_t seed = 1;
    for (int recipe = 0; recipe < matrix_table[OPT_RECIPE].count; recipe++) {
        for (int option = 0; option < OPTIONS; option++) {
            bool skipped = option == OPT_RECIPE || option == OPT_DEVICE || option == OPT_TP;
            for (int level = 0; !skipped && level < matrix_table[option].count; level++) {
                octet_linear_backward_args args;
                matrix_row row = {{0}};
                row.level[OPT_RECIPE] = (uint8_t)recipe;
                row.level[OPT_TP] = 2; /* one rank */
                row.level[OPT_DEVICE] = HOPPER;
                row.level[OPT_BIAS] = 1;
                row.level[option] = (uint8_t)level;
                seed++;
                if (matrix_args(&args, &row, &sizes[seed % SIZES], NULL) == OCTET_OK) {
                    run_args(&report, &args, seed);
                }
            }
        }
    }
    finish(&report, 300);
}

/* Several ranks, too: shards are gathered as bytes and assembled. */
TEST(cuda_run__options_at_random) {
    run_report report = {0};
    matrix_random random = {7};
    for (int i = 0; i < 300; i++) {
        octet_linear_backward_args args;
        matrix_row row = matrix_draw(&random);
        row.level[OPT_DEVICE] = HOPPER;
        if (matrix_args(&args, &row, &sizes[i % SIZES], NULL) == OCTET_OK) {
            run_args(&report, &args, (uint64_t)i + 1000);
        }
    }
    finish(&report, 40);
}

TEST_MAIN(cuda_run__every_option_under_every_recipe, cuda_run__options_at_random)
