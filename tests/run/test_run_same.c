/* test_run_same.c - results do not depend on threads, on what memory held, or on the delay. */
#include "check.h"
#include "linear/matrix.h"
#include "test.h"

static octet_status run_with(run_group *group, const octet_linear_backward_args *args,
                             int threads, int fill) {
    run_options options = {.seed = 77, .fill = fill, .threads = threads, .shared = true};
    octet_status status = run_group_make(group, args, &options);
    return status ? status : run_group_run(group);
}

/* Calls `check` for rows of the matrix, large enough for several threads and tiles. */
static void for_rows(int count, void (*check)(const octet_linear_backward_args *)) {
    static const matrix_size sizes[] = {
        {70, 130, 50}, {1, 300, 260}, {300, 40, 33}, {5, 64, 96}};
    matrix_random random = {23};
    for (int i = 0; i < count; i++) {
        matrix_row row = matrix_draw(&random);
        octet_linear_backward_args args;
        row.level[OPT_DEVICE] = 0;
        row.level[OPT_PARALLEL] = 0;
        row.level[OPT_RECIPE] = (uint8_t)(i % matrix_table[OPT_RECIPE].count);
        if (matrix_args(&args, &row, &sizes[i % 4], NULL) == OCTET_OK) {
            check(&args);
        }
    }
}

/* Threads of a run, and workers that its plan has workspace for. */
static const int crews[][2] = {{2, 2}, {5, 5}, {5, 2}, {2, 7}};

static void check_threads(const octet_linear_backward_args *args) {
    run_group serial, parallel;
    CHECK_EQ_INT(run_with(&serial, args, 0, 0xFF), OCTET_OK);
    for (size_t i = 0; i < sizeof crews / sizeof crews[0]; i++) {
        run_options options = {
            .seed = 77, .threads = crews[i][0], .lanes = crews[i][1], .shared = true};
        octet_status status = run_group_make(&parallel, args, &options);
        status = status ? status : run_group_run(&parallel);
        CHECK_EQ_INT(status, OCTET_OK);
        if (!CHECK(run_same_results(&serial, &parallel))) {
            char problem[OCTET_LINEAR_TEXT];
            octet_linear_backward_print(problem, sizeof problem, args);
            printf("    %d threads: %s\n", crews[i][0], problem);
        }
        run_group_free(&parallel);
    }
    run_group_free(&serial);
}

TEST(run__threads_do_not_change_a_byte) {
    for_rows(120, check_threads);
}

static void check_fill(const octet_linear_backward_args *args) {
    static const int fills[] = {0x00, 0x7F, 0x80};
    run_group first, other;
    CHECK_EQ_INT(run_with(&first, args, 0, 0xFF), OCTET_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(run_with(&other, args, 0, fills[i]), OCTET_OK);
        CHECK(run_same_results(&first, &other));
        run_group_free(&other);
    }
    run_group_free(&first);
}

TEST(run__what_memory_held_before_does_not_matter) {
    for_rows(120, check_fill);
}

static int smaller;

static void check_places(const octet_linear_backward_args *args) {
    run_options apart = {.seed = 77, .fill = 0xFF};
    run_group first, other;
    octet_status status = run_group_make(&first, args, &apart);
    CHECK_EQ_INT(status ? status : run_group_run(&first), OCTET_OK);
    CHECK_EQ_INT(run_with(&other, args, 0, 0x7F), OCTET_OK);
    CHECK(run_same_results(&first, &other));
    for (int i = 0; i < first.count; i++) {
        smaller += other.plans[i].workspace_bytes < first.plans[i].workspace_bytes;
    }
    run_group_free(&first);
    run_group_free(&other);
}

/* Buffers share bytes of the workspace, and results are those without that. */
TEST(run__what_shares_bytes_of_the_workspace_does_not_matter) {
    smaller = 0;
    for_rows(300, check_places);
    CHECK(smaller > 15);
}

/* The result of wgrad, wherever it goes. */
static const void *weight_grad(const run_group *group, int64_t *bytes) {
    const octet_plan *p = &group->plans[group->count - 1];
    for (int i = 0; i < p->buffer_count; i++) {
        const octet_plan_buffer *b = &p->buffers[i];
        int name = p->tensors[b->tensor].name, form = p->tensors[b->tensor].form;
        bool result = (name == OCTET_NAME_GRAD_WEIGHT && b->place == OCTET_PLACE_OUT) ||
                      (name == OCTET_NAME_MAIN_GRAD && form == OCTET_FORM_GIVEN);
        if (result && b->part <= OCTET_PART_ROW_DATA) {
            *bytes = b->bytes;
            return run_at(group, 0, group->count - 1, i);
        }
    }
    return NULL;
}

static int64_t delayed_pairs;

static void check_delay(const octet_linear_backward_args *args) {
    octet_linear_backward_args now = *args, later = *args;
    run_group a, b;
    int64_t bytes = 0, later_bytes = 0;
    now.forward.delay_wgrad = 0;
    later.forward.delay_wgrad = 1;
    if (!args->forward.weight_requires_grad) {
        return;
    }
    CHECK_EQ_INT(run_with(&a, &now, 0, 0xFF), OCTET_OK);
    CHECK_EQ_INT(run_with(&b, &later, 0, 0xFF), OCTET_OK);
    const void *x = weight_grad(&a, &bytes), *y = weight_grad(&b, &later_bytes);
    if (CHECK(x && y && bytes == later_bytes)) {
        CHECK(memcmp(x, y, (size_t)bytes) == 0);
        delayed_pairs++;
    }
    run_group_free(&a);
    run_group_free(&b);
}

TEST(run__delayed_wgrad_is_the_same_bit_for_bit) {
    delayed_pairs = 0;
    for_rows(200, check_delay);
    CHECK(delayed_pairs > 50);
}

/* Forward's output, in its first buffer. */
static int output_port(const octet_plan *plan) {
    int at = 0;
    while (at < plan->out_count && plan->outs[at].name != OCTET_NAME_OUTPUT) {
        at++;
    }
    return at;
}

/* A later microbatch reads what the first one cached, and gets the same. */
static void check_cache(const octet_linear_backward_args *args) {
    octet_linear_backward_args first = *args, later = *args;
    run_group a, b;
    first.forward.weight_cache = OCTET_CACHE_WRITE;
    later.forward.weight_cache = OCTET_CACHE_READ;
    CHECK_EQ_INT(run_with(&a, &first, 0, 0xFF), OCTET_OK);
    CHECK_EQ_INT(run_with(&b, &later, 0, 0xFF), OCTET_OK);
    int x = output_port(&a.plans[0]), y = output_port(&b.plans[0]);
    int64_t bytes = a.plans[0].outs[x].bytes;
    CHECK_EQ_INT(bytes, b.plans[0].outs[y].bytes);
    CHECK(memcmp(a.memory[0][0].outs[x], b.memory[0][0].outs[y], (size_t)bytes) == 0);
    run_group_free(&a);
    run_group_free(&b);
}

TEST(run__a_cached_weight_gives_the_same_output) {
    for_rows(120, check_cache);
}

TEST_MAIN(run__threads_do_not_change_a_byte, run__what_memory_held_before_does_not_matter,
          run__what_shares_bytes_of_the_workspace_does_not_matter,
          run__delayed_wgrad_is_the_same_bit_for_bit,
          run__a_cached_weight_gives_the_same_output)
