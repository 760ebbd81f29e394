/* test_plan_cache.c - a remembered plan is the plan, whoever asks, however many there are. */
#include "torch/plan_cache.h"

#include <pthread.h>
#include <stdatomic.h>

#include "test.h"

static const char text[] = "in=bf16 recipe=mxfp8 bias grad=xw";

static oct_request linear(int64_t m) {
    return (oct_request){
        .kind = OCTET_PLAN_LINEAR, .text = text, .sizes = {m, 64, 32}, .rank = 3, .threads = 1};
}

/* Whether what the table gives is what planning gives. */
static bool is_right(const oct_request *request) {
    octet_plan fresh;
    const octet_plan *plan = NULL;
    if (oct_plan_get(&plan, request, NULL) || oct_request_plan(&fresh, request, NULL)) {
        return false;
    }
    bool right = octet_plan_equal(plan, &fresh);
    oct_plan_release(plan);
    return right;
}

/* The chain of a text is made at the sizes that come first. */
TEST(plan_cache__sizes_that_cut_a_chunk_are_refused_whoever_comes_first) {
    static const struct {
        int64_t n;
        octet_status status;
    } calls[] = {
        {68, OCTET_INVALID}, {256, OCTET_OK}, {68, OCTET_INVALID}, {70, OCTET_INVALID}};
    for (int i = 0; i < 4; i++) {
        const octet_plan *plan = NULL;
        octet_error err = {OCTET_OK, 0, ""};
        oct_request request = {.kind = OCTET_PLAN_LINEAR,
                               .text =
                                   "in=bf16 recipe=mxfp8 parallel=row tp=2 sequence chunks=4",
                               .sizes = {64, 64, calls[i].n},
                               .rank = 3,
                               .threads = 1};
        CHECK_EQ_INT(oct_plan_get(&plan, &request, &err), calls[i].status);
        CHECK_EQ_INT(strstr(err.text, "a multiple of 64 columns") != NULL, plan == NULL);
        CHECK(!plan || !octet_plan_check(plan, NULL));
        oct_plan_release(plan);
    }
}

TEST(plan_cache__the_same_request_has_one_plan) {
    oct_request request = linear(8);
    char elsewhere[sizeof text];
    const octet_plan *first = NULL, *second = NULL;
    memcpy(elsewhere, text, sizeof text);
    CHECK_EQ_INT(oct_plan_get(&first, &request, NULL), OCTET_OK);
    request.text = elsewhere;
    CHECK_EQ_INT(oct_plan_get(&second, &request, NULL), OCTET_OK);
    CHECK(first == second && first != NULL);
    CHECK(is_right(&request));
    oct_plan_release(first);
    oct_plan_release(second);
    oct_plan_release(NULL);
}

/* Of forward, backward and wgrad; the wgrad that is delayed reads what both have saved. */
TEST(plan_cache__the_blocks_of_a_plan_are_known) {
    static const struct {
        octet_plan_kind kind;
        const char *text;
        oct_plan_arenas wanted;
    } rows[] = {
        {OCTET_PLAN_LINEAR, "in=bf16 recipe=mxfp8 grad=xw", {true, {false, false}}},
        {OCTET_PLAN_LINEAR, "in=bf16 recipe=mxfp8 grad=none", {false, {false, false}}},
        {OCTET_PLAN_LINEAR_BACKWARD,
         "in=bf16 recipe=mxfp8 grad=xw dy=bf16",
         {false, {true, false}}},
        {OCTET_PLAN_LINEAR_BACKWARD,
         "in=bf16 recipe=mxfp8 grad=xw delay_wgrad dy=bf16",
         {true, {true, false}}},
        {OCTET_PLAN_LINEAR_WGRAD,
         "in=bf16 recipe=mxfp8 grad=xw delay_wgrad dy=bf16",
         {false, {true, true}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        oct_request request = linear(32);
        const octet_plan *plan = NULL;
        request.kind = rows[i].kind;
        request.text = rows[i].text;
        if (CHECK_EQ_INT(oct_plan_get(&plan, &request, NULL), OCTET_OK)) {
            const oct_plan_arenas *got = oct_plan_arenas_of(plan);
            CHECK_EQ_INT(got->saves, rows[i].wanted.saves);
            CHECK_EQ_INT(got->restores[0], rows[i].wanted.restores[0]);
            CHECK_EQ_INT(got->restores[1], rows[i].wanted.restores[1]);
        }
        oct_plan_release(plan);
    }
}

TEST(plan_cache__every_part_of_a_request_counts) {
    const octet_plan *first = NULL, *other = NULL;
    oct_request usual = linear(9);
    oct_request others[] = {usual, usual, usual, usual, usual, usual, usual};
    others[0].kind = OCTET_PLAN_LINEAR_BACKWARD;
    others[1].text = "in=bf16 recipe=mxfp8 bias grad=xb";
    others[2].text = "in=bf16 recipe=mxfp8 bias grad=x";
    others[3].sizes[0] = 10;
    others[4].sizes[2] = 33;
    others[5].threads = 2;
    others[6].rank = 4;
    others[6].sizes[3] = 1;
    CHECK_EQ_INT(oct_plan_get(&first, &usual, NULL), OCTET_OK);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        for (int again = 0; again < 2; again++) {
            CHECK_EQ_INT(oct_plan_get(&other, &others[i], NULL), OCTET_OK);
            CHECK(other != first && !octet_plan_equal(other, first));
            CHECK(is_right(&others[i]) && is_right(&usual));
            oct_plan_release(other);
        }
    }
    oct_plan_release(first);
}

TEST(plan_cache__a_failure_is_not_remembered) {
    const octet_plan *plan = NULL;
    octet_error err;
    oct_request wrong = linear(11);
    wrong.text = "in=bf16 recipe=mxfp9";
    int before = oct_plan_count().plans;
    for (int again = 0; again < 3; again++) {
        CHECK_EQ_INT(oct_plan_get(&plan, &wrong, &err), OCTET_INVALID);
        CHECK(strstr(err.text, "mxfp9") && plan == NULL);
    }
    wrong.text = text;
    wrong.sizes[1] = -1;
    CHECK_EQ_INT(oct_plan_get(&plan, &wrong, &err), OCTET_INVALID);
    CHECK_EQ_INT(oct_plan_count().plans, before);
    wrong.sizes[1] = 64;
    CHECK(is_right(&wrong));
}

TEST(plan_cache__is_bounded_and_a_plan_in_use_outlives_its_place) {
    const octet_plan *held = NULL, *again = NULL;
    oct_request first = linear(7);
    octet_plan copy;
    CHECK_EQ_INT(oct_plan_get(&held, &first, NULL), OCTET_OK);
    copy = *held;
    for (int64_t m = 0; m < 20 * OCT_CACHED_PLANS; m++) {
        oct_request request = linear(1000 + m);
        CHECK(is_right(&request));
        CHECK(oct_plan_count().plans <= OCT_CACHED_PLANS);
    }
    CHECK_EQ_INT(oct_plan_count().plans, OCT_CACHED_PLANS);
    CHECK(octet_plan_equal(held, &copy));
    CHECK_EQ_INT(oct_plan_get(&again, &first, NULL), OCTET_OK);
    CHECK(again != held && octet_plan_equal(again, held));
    oct_plan_release(again);
    oct_plan_release(held);
}

TEST(plan_cache__what_is_used_most_recently_stays) {
    const octet_plan *held = NULL, *again = NULL;
    oct_request usual = linear(5);
    CHECK_EQ_INT(oct_plan_get(&held, &usual, NULL), OCTET_OK);
    for (int64_t m = 0; m < 4 * OCT_CACHED_PLANS; m++) {
        oct_request request = linear(100000 + m);
        CHECK(is_right(&request));
        CHECK_EQ_INT(oct_plan_get(&again, &usual, NULL), OCTET_OK);
        CHECK(again == held);
        oct_plan_release(again);
    }
    oct_plan_release(held);
}

enum { THREADS = 4, ASKED = 4000, DIFFERENT = 3 * OCT_CACHED_PLANS };

static atomic_int wrong_plans;

/* Asks for few requests all the time and for many now and then, each thread in its order. */
static void *ask(void *arg) {
    const int64_t *seed = arg;
    int64_t at = *seed;
    for (int i = 0; i < ASKED; i++) {
        at = (at * 1103515245 + 12345) & 0x7fffffff;
        int64_t m = 1 + (i % 3 ? at / 65536 % 5 : at / 65536 % DIFFERENT);
        oct_request request = linear(m);
        const octet_plan *plan = NULL;
        bool good = !oct_plan_get(&plan, &request, NULL) && plan->extents.m == m &&
                    plan->kind == OCTET_PLAN_LINEAR && (i % 16 || is_right(&request));
        atomic_fetch_add(&wrong_plans, !good);
        oct_plan_release(plan);
    }
    return NULL;
}

TEST(plan_cache__threads_ask_at_once) {
    pthread_t threads[THREADS];
    int64_t seeds[THREADS];
    for (int i = 0; i < THREADS; i++) {
        seeds[i] = i + 1;
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, ask, &seeds[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
    }
    CHECK_EQ_INT(atomic_load(&wrong_plans), 0);
    CHECK(oct_plan_count().plans <= OCT_CACHED_PLANS);
}

TEST_MAIN(plan_cache__sizes_that_cut_a_chunk_are_refused_whoever_comes_first,
          plan_cache__the_same_request_has_one_plan, plan_cache__the_blocks_of_a_plan_are_known,
          plan_cache__every_part_of_a_request_counts, plan_cache__a_failure_is_not_remembered,
          plan_cache__is_bounded_and_a_plan_in_use_outlives_its_place,
          plan_cache__what_is_used_most_recently_stays, plan_cache__threads_ask_at_once)
