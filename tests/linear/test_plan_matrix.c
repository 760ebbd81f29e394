/* test_plan_matrix.c - every option with every other, at every size: plans keep the laws. */
#include "check_plan.h"
#include "matrix.h"
#include "test.h"

#define RANDOM_ROWS 40000
#define GATHER_ROWS 2000
#define PAIR_TRIES 60 /* fillings of the other options before two levels count as exclusive */

typedef struct tally {
    check_report report;
    int64_t tried, accepted, plans;
    int64_t silent; /* refusals without a text, or with another status than OCTET_INVALID */
    int64_t late;   /* refusals of forward's plan that the check of its arguments did not see */
} tally;

/* What occurred in some plan: a matrix that never comes by a corner does not check it. */
typedef struct coverage {
    bool op[OCTET_OPS], place[OCTET_PLACES], form[OCTET_FORMS], name[OCTET_NAMES];
    bool collective[OCTET_ALL_REDUCE_MAX + 1], alias[OCTET_PLACES];
} coverage;

static coverage seen;

static const matrix_size base_size = {96, 64, 80};
static const matrix_size sizes[] = {
    {0, 64, 80},   {1, 64, 80},  {7, 1, 80},    {31, 33, 1},    {32, 32, 32},
    {33, 129, 31}, {100, 7, 48}, {128, 256, 8}, {4096, 65, 14},
};
#define SIZES ((int)(sizeof sizes / sizeof sizes[0]))

static bool is_refusal(tally *sum, octet_status status, const octet_error *err) {
    sum->silent += status != OCTET_OK && (status != OCTET_INVALID || err->text[0] == '\0');
    return status != OCTET_OK;
}

/* Plans of one size, bound to the sizes of others, are those, byte by byte. */
static void check_bound(tally *sum, const check_chain *base, const check_chain *other) {
    octet_plan previous = {0};
    for (int i = 0; i < base->count; i++) {
        octet_plan bound = base->plans[i];
        octet_error err = {OCTET_OK, 0, ""};
        octet_status status =
            octet_plan_bind(&bound, i ? &previous : NULL, &other->plans[i].extents, &err);
        CHECK_LAW(&sum->report, LAW_SIZES,
                  status == OCTET_OK && octet_plan_equal(&bound, &other->plans[i]),
                  "plan %d bound to m=%lld is not the plan of that size: %.80s", i,
                  (long long)other->plans[i].extents.m, err.text);
        previous = bound;
    }
}

/* The row at another size: accepted, lawful and of the same structure. */
static void check_at(tally *sum, const matrix_row *row, const check_chain *base,
                     const matrix_size *size) {
    octet_linear_backward_args args = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    check_chain chain;
    octet_status status = matrix_args(&args, row, size, &err);
    status = status ? status : check_chain_make(&chain, &args, &err);
    if (CHECK_LAW(&sum->report, LAW_SIZES, status == OCTET_OK, "m=%lld is refused: %.80s",
                  (long long)size->m, err.text)) {
        sum->plans += chain.count;
        check_chain_laws(&sum->report, &chain);
        check_chain_structure(&sum->report, base, &chain);
        check_bound(sum, base, &chain);
    }
}

/* A wgrad plan is made only where wgrad is delayed, a backward plan only where one is wanted.
 */
static void check_absent_plans(tally *sum, const check_chain *chain) {
    octet_plan plan = OCTET_PLAN_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = OCTET_INVALID;
    if (!chain->args.forward.delay_wgrad) {
        status = octet_plan_linear_wgrad(&plan, &chain->args, &err);
        CHECK_LAW(&sum->report, LAW_MEANING, is_refusal(sum, status, &err),
                  "wgrad is planned although it is not delayed");
    }
    if (chain->count == 1) {
        status = octet_plan_linear_backward(&plan, &chain->args, &err);
        CHECK_LAW(&sum->report, LAW_MEANING,
                  is_refusal(sum, status, &err) || plan.out_count == 0,
                  "backward has results that nobody wants");
    }
}

static void mark_seen(const octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        seen.op[plan->steps[i].op] = true;
        seen.collective[plan->steps[i].collective] = true;
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        seen.place[plan->buffers[i].place] = true;
    }
    for (int i = 0; i < plan->tensor_count; i++) {
        seen.form[plan->tensors[i].form] = true;
        seen.name[plan->tensors[i].name] = true;
    }
    for (int i = 0; i < plan->saved_count; i++) {
        seen.alias[plan->buffers[plan->saved[i]].place] = true;
    }
}

/* True when the row was accepted. */
static bool run_row(tally *sum, const matrix_row *row, int first_size, int size_count) {
    octet_linear_backward_args args = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    char problem[OCTET_LINEAR_TEXT];
    check_chain chain;
    sum->tried++;
    if (is_refusal(sum, matrix_args(&args, row, &base_size, &err), &err)) {
        return false;
    }
    octet_linear_backward_print(problem, sizeof problem, &args);
    sum->report.problem = problem;
    sum->report.stage = check_stages[0];
    if (is_refusal(sum, check_chain_make(&chain, &args, &err), &err)) {
        sum->late += octet_plan_linear(&chain.plans[0], &args.forward, &err) != OCTET_OK;
        return false;
    }
    sum->accepted++;
    sum->plans += chain.count;
    check_chain_laws(&sum->report, &chain);
    check_absent_plans(sum, &chain);
    for (int i = 0; i < chain.count; i++) {
        mark_seen(&chain.plans[i]);
    }
    for (int i = 0; i < size_count; i++) {
        check_at(sum, row, &chain, &sizes[(first_size + i) % SIZES]);
    }
    return true;
}

static void report(const tally *sum, const char *what) {
    printf("%s: %lld plans checked, %lld of %lld rows accepted\n", what, (long long)sum->plans,
           (long long)sum->accepted, (long long)sum->tried);
    for (int law = 0; law < LAWS; law++) {
        if (sum->report.broken[law]) {
            printf("    law %s is broken %lld times\n", check_law_names[law],
                   (long long)sum->report.broken[law]);
        }
    }
}

static void check_tally(const tally *sum) {
    for (int law = 0; law < LAWS; law++) {
        CHECK_EQ_INT(sum->report.broken[law], 0);
    }
    CHECK_EQ_INT(sum->silent, 0);
    CHECK_EQ_INT(sum->late, 0);
}

/* ---- every pair ------------------------------------------------------------------------ */

#define MAX_LEVELS 40
_Static_assert(MATRIX_NAMED + MATRIX_CUSTOMS <= MAX_LEVELS, "recipes are the longest option");

static bool paired[OPTIONS][MAX_LEVELS][OPTIONS][MAX_LEVELS];

static void mark_pairs(const matrix_row *row) {
    for (int i = 0; i < OPTIONS; i++) {
        for (int j = i + 1; j < OPTIONS; j++) {
            paired[i][row->level[i]][j][row->level[j]] = true;
        }
    }
}

/* One option at one level. */
typedef struct setting {
    int option, level;
} setting;

/* Some accepted row has both; false when every filling of the other options was refused. */
static bool cover(tally *sum, matrix_random *random, setting a, setting b) {
    for (int i = 0; i < PAIR_TRIES && !paired[a.option][a.level][b.option][b.level]; i++) {
        matrix_row row = matrix_draw(random);
        row.level[a.option] = (uint8_t)a.level;
        row.level[b.option] = (uint8_t)b.level;
        if (run_row(sum, &row, 0, SIZES)) {
            mark_pairs(&row);
        }
    }
    return paired[a.option][a.level][b.option][b.level];
}

TEST(plan_matrix__every_pair_of_options_keeps_the_laws) {
    tally sum = {.tried = 0};
    matrix_random random = {1};
    int64_t pairs = 0, exclusive = 0;
    for (int i = 0; i < OPTIONS; i++) {
        for (int j = i + 1; j < OPTIONS; j++) {
            for (int at = 0; at < matrix_table[i].count * matrix_table[j].count; at++) {
                setting a = {i, at % matrix_table[i].count};
                setting b = {j, at / matrix_table[i].count};
                pairs++;
                exclusive += !cover(&sum, &random, a, b);
            }
        }
    }
    report(&sum, "pairs");
    printf("pairs: %lld of %lld exclude each other\n", (long long)exclusive, (long long)pairs);
    check_tally(&sum);
    CHECK(exclusive * 100 < pairs);
}

/* ---- everything at random -------------------------------------------------------------- */

TEST(plan_matrix__random_rows_keep_the_laws) {
    tally sum = {.tried = 0};
    matrix_random random = {2};
    for (int i = 0; i < RANDOM_ROWS; i++) {
        matrix_row row = matrix_draw(&random);
        run_row(&sum, &row, i, 2);
    }
    report(&sum, "random");
    check_tally(&sum);
    CHECK(sum.accepted * 10 >= sum.tried * 6);
}

/* ---- gathers --------------------------------------------------------------------------- */

/* The row with the gather that its rows allow: bytes where every shard is whole blocks. */
static bool run_chosen(tally *sum, matrix_row row, const matrix_size *size) {
    octet_linear_backward_args args = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    octet_gather gather = OCTET_GATHER_QUANTIZED;
    char problem[OCTET_LINEAR_TEXT];
    check_chain chain;
    row.level[OPT_GATHER] = 1;
    if (matrix_args(&args, &row, size, &err) != OCTET_OK) {
        return false;
    }
    args.forward.gather = OCTET_GATHER_QUANTIZED;
    CHECK_EQ_INT(octet_linear_choose_gather(&gather, &args.forward, &err), OCTET_OK);
    args.forward.gather = (uint8_t)gather;
    octet_linear_backward_print(problem, sizeof problem, &args);
    sum->report.problem = problem;
    if (!CHECK_EQ_INT(check_chain_make(&chain, &args, &err), OCTET_OK)) {
        printf("    %s\n    %s\n", problem, err.text);
        return false;
    }
    sum->accepted++;
    sum->plans += chain.count;
    check_chain_laws(&sum->report, &chain);
    return gather == OCTET_GATHER_QUANTIZED;
}

TEST(plan_matrix__the_chosen_gather_serves_any_rows) {
    tally sum = {.tried = 0};
    matrix_random random = {3};
    int64_t bytes = 0;
    for (int i = 0; i < GATHER_ROWS; i++) {
        matrix_row row = matrix_draw(&random);
        row.level[OPT_PARALLEL] = (uint8_t)(1 + i % 2);
        row.level[OPT_SEQUENCE] = 1;
        sum.tried++;
        bytes += run_chosen(&sum, row, &sizes[i % SIZES]);
    }
    report(&sum, "gathers");
    check_tally(&sum);
    CHECK(bytes > 0 && bytes < sum.accepted);
}

/* ---- chunks ---------------------------------------------------------------------------- */

TEST(plan_matrix__products_in_chunks_keep_the_laws) {
    tally sum = {.tried = 0};
    matrix_random random = {4};
    for (int i = 0; i < GATHER_ROWS; i++) {
        matrix_row row = matrix_draw(&random);
        row.level[OPT_PARALLEL] = (uint8_t)(1 + i % 2);
        row.level[OPT_SEQUENCE] = 1;
        row.level[OPT_RECIPE] = (uint8_t)(i % matrix_table[OPT_RECIPE].count);
        row.level[OPT_DEVICE] = (uint8_t)(i / 2 % matrix_table[OPT_DEVICE].count);
        row.chunks = (uint8_t)(2 + i / 4 % (OCTET_MOST_CHUNKS - 1));
        run_row(&sum, &row, i, 2);
    }
    report(&sum, "chunks");
    check_tally(&sum);
    CHECK(sum.accepted * 10 >= sum.tried * 6);
}

TEST(plan_matrix__gathers_in_chunks_keep_the_laws) {
    tally sum = {.tried = 0};
    matrix_random random = {5};
    for (int i = 0; i < GATHER_ROWS; i++) {
        matrix_row row = matrix_draw(&random);
        row.level[OPT_PARALLEL] = (uint8_t)(1 + i % 2);
        row.level[OPT_SEQUENCE] = 1;
        row.level[OPT_RECIPE] = (uint8_t)(i % matrix_table[OPT_RECIPE].count);
        row.level[OPT_DEVICE] = (uint8_t)(i / 2 % matrix_table[OPT_DEVICE].count);
        row.gather_chunks = (uint8_t)(2 + i / 4 % (OCTET_MOST_CHUNKS - 1));
        row.chunks = i % 3 ? 0 : row.gather_chunks;
        run_row(&sum, &row, i, 2);
    }
    report(&sum, "gathers in chunks");
    check_tally(&sum);
    CHECK(sum.accepted * 10 >= sum.tried * 6);
}

static void check_all_seen(const bool *flags, int count, const char *what) {
    for (int i = 0; i < count; i++) {
        if (!CHECK(flags[i])) {
            printf("    no plan has %s %d\n", what, i);
        }
    }
}

TEST(plan_matrix__comes_by_every_corner) {
    check_all_seen(seen.op, OCTET_OPS, "step");
    check_all_seen(seen.place, OCTET_PLACES, "place");
    check_all_seen(seen.form, OCTET_FORMS, "form");
    check_all_seen(seen.name, OCTET_NAMES, "name");
    check_all_seen(seen.collective, OCTET_ALL_REDUCE_MAX + 1, "collective");
    check_all_seen(seen.alias, OCTET_PLACE_RESTORED + 1, "slot in place");
}

TEST_MAIN(plan_matrix__every_pair_of_options_keeps_the_laws,
          plan_matrix__random_rows_keep_the_laws,
          plan_matrix__the_chosen_gather_serves_any_rows,
          plan_matrix__products_in_chunks_keep_the_laws,
          plan_matrix__gathers_in_chunks_keep_the_laws, plan_matrix__comes_by_every_corner)
