/* test_bind.c - sizes and plans that cannot be bound, and names of what a plan has not. */
#include <string.h>

#include "octet.h"
#include "test.h"

static octet_chain chain_of(const char *words, int64_t m, int64_t k, int64_t n) {
    octet_linear_backward_args args;
    octet_chain chain;
    octet_error err = {OCTET_OK, 0, ""};
    int64_t sizes[] = {m, k, n};
    memset(&chain, 0, sizeof chain);
    CHECK_OF(!octet_linear_backward_parse_words(&args, words, sizes, 3, &err), err.text);
    CHECK_OF(!octet_plan_chain(&chain, &args, &err), err.text);
    return chain;
}

/* Binds a copy, which a refusal leaves as it is. */
static void refuses(const octet_plan *plan, const octet_plan *previous,
                    const octet_extents *sizes, const char *words) {
    octet_plan was = *plan, tried = *plan;
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_EQ_INT(octet_plan_bind(&tried, previous, sizes, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, words) != NULL, err.text);
    CHECK(octet_plan_equal(&was, &tried));
}

TEST(bind__a_plan_before_that_is_none_of_the_chain) {
    octet_chain chain = chain_of("in=bf16 recipe=mxfp8", 64, 64, 64);
    octet_chain other = chain_of("in=bf16 recipe=none grad=none", 64, 64, 64);
    octet_chain large = chain_of("in=bf16 recipe=mxfp8", 128, 64, 64);
    octet_extents sizes = chain.plans[0].extents;
    refuses(&chain.plans[1], NULL, &sizes, "previous is NULL");
    refuses(&chain.plans[1], &other.plans[0], &sizes, "previous saves 0 buffers");
    refuses(&chain.plans[1], &large.plans[0], &sizes, "previous is bound to m=128 k=64 n=64");
}

TEST(bind__sizes_that_break_a_rule) {
    octet_chain chain = chain_of("in=bf16 recipe=mxfp8", 64, 64, 64);
    octet_chain ranks =
        chain_of("in=bf16 recipe=mxfp8 parallel=column tp=2 sequence", 64, 64, 64);
    octet_plan empty = OCTET_PLAN_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    const octet_extents sizes = {64, 64, 64};
    refuses(&empty, NULL, &sizes, "plan is empty");
    refuses(&chain.plans[0], NULL, &(octet_extents){64, -1, 64}, "none may be negative");
    refuses(&chain.plans[0], NULL, &(octet_extents){INT64_MAX, 64, 64}, "exceed 64-bit sizes");
    refuses(&ranks.plans[0], NULL, &(octet_extents){17, 64, 64}, "share rows by 32");
    CHECK_EQ_INT(octet_plan_bind(NULL, NULL, &sizes, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_bind(&chain.plans[0], NULL, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_chain_bind(NULL, &sizes, &err), OCTET_INVALID);
    chain.plans[0].size = 1;
    CHECK_EQ_INT(octet_plan_bind(&chain.plans[0], NULL, &sizes, &err), OCTET_INVALID);
}

TEST(bind__what_a_plan_has_not_has_no_name) {
    octet_chain chain = chain_of("in=bf16 recipe=delayed", 64, 64, 64);
    const octet_plan *plan = &chain.plans[0];
    const int none[] = {-1, 255, 1 << 20};
    for (int i = 0; i < 3; i++) {
        char text[64] = "";
        CHECK_EQ_INT(octet_plan_tensor_print(text, sizeof text, plan, none[i]), 1);
        CHECK_EQ_STR(text, "?");
        CHECK_EQ_INT(octet_plan_buffer_print(text, sizeof text, plan, none[i]), 1);
        CHECK_EQ_STR(text, "?");
    }
    CHECK_EQ_INT(octet_plan_tensor_print(NULL, 0, NULL, 0), 0);
    CHECK_EQ_INT(octet_plan_buffer_print(NULL, 0, NULL, 0), 0);
}

TEST_MAIN(bind__a_plan_before_that_is_none_of_the_chain, bind__sizes_that_break_a_rule,
          bind__what_a_plan_has_not_has_no_name)
