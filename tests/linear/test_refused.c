/* test_refused.c - structs and texts that mean nothing are refused, and say which part of them.
 */
#include <stdlib.h>

#include "octet.h"
#include "test.h"

static octet_linear_args parsed(const char *text) {
    octet_linear_args args;
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(octet_linear_parse(&args, text, &err) == OCTET_OK, err.text);
    return args;
}

static octet_linear_args usual(void) {
    return parsed("linear m=8 k=64 n=32 in=bf16 recipe=mxfp8");
}

static void refuses(const octet_linear_args *args, const char *word) {
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_EQ_INT(octet_linear_check(args, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, word) != NULL, err.text);
}

/* An axis of 0 beside one whose product with the ranks leaves 64 bits. */
TEST(refused__an_axis_that_a_zero_hides) {
    octet_linear_args args;
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_EQ_INT(octet_linear_parse(&args,
                                    "linear m=9223372036854775807x0 k=64 n=32 in=bf16 "
                                    "recipe=mxfp8 parallel=column tp=2 sequence",
                                    &err),
                 OCTET_INVALID);
    CHECK_OF(strstr(err.text, "9223372036854775807, which times 2 ranks") != NULL, err.text);
    CHECK_EQ_INT(octet_linear_parse(&args,
                                    "linear m=4611686018427387903x0 k=64 n=32 in=bf16 "
                                    "recipe=mxfp8 parallel=column tp=2 sequence",
                                    &err),
                 OCTET_OK);
    octet_linear_backward_args back = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_plan plan = OCTET_PLAN_INIT;
    CHECK_EQ_INT(octet_linear_backward_make(&back, &args, &err), OCTET_OK);
    CHECK_EQ_INT(octet_plan_linear_backward(&plan, &back, &err), OCTET_OK);
}

TEST(refused__an_absent_tensor_with_leftovers) {
    octet_linear_args args = usual();
    CHECK_EQ_INT(octet_linear_check(&args, NULL), OCTET_OK);
    octet_proto *protos[] = {&args.bias, &args.gamma, &args.beta};
    static const char *const names[] = {"bias has dtype none", "gamma has dtype none",
                                        "beta has dtype none"};
    for (int i = 0; i < 3; i++) {
        octet_proto was = *protos[i];
        protos[i]->rank = 1;
        refuses(&args, names[i]);
        *protos[i] = was;
        protos[i]->shape[0] = 32;
        refuses(&args, names[i]);
        *protos[i] = was;
        protos[i]->quantizer.scheme = OCTET_MXFP8;
        refuses(&args, names[i]);
        *protos[i] = was;
        protos[i]->size = 7;
        refuses(&args, names[i]);
        *protos[i] = was;
    }
}

TEST(refused__reserved_bytes_that_are_not_zero) {
    octet_linear_args args = usual();
    args.reserved[sizeof args.reserved - 1] = 1;
    refuses(&args, "octet_linear_args.reserved");
    args = usual();
    args.recipe.reserved[sizeof args.recipe.reserved - 1] = 9;
    refuses(&args, "octet_recipe.reserved");
    args = usual();
    args.input.reserved = 1;
    refuses(&args, "octet_proto.reserved");
    args = usual();
    args.weight.reserved2 = 1u << 31;
    refuses(&args, "octet_proto.reserved2");
    octet_quantizer q;
    octet_error err;
    CHECK_EQ_INT(octet_quantizer_parse(&q, "mxfp8:e4m3", NULL), OCTET_OK);
    q.reserved0 = 1;
    CHECK_EQ_INT(octet_quantizer_check(&q, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "octet_quantizer.reserved0") != NULL);
    q.reserved0 = 0;
    q.reserved[1] = 1;
    CHECK_EQ_INT(octet_quantizer_check(&q, &err), OCTET_INVALID);
    octet_linear_backward_args back;
    args = usual();
    octet_plan plan = OCTET_PLAN_INIT;
    CHECK_EQ_INT(octet_linear_backward_make(&back, &args, NULL), OCTET_OK);
    back.reserved = 1;
    CHECK_EQ_INT(octet_plan_linear_backward(&plan, &back, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, "octet_linear_backward_args.reserved") != NULL, err.text);
    float scale = 1, history = 0, amax = 1;
    octet_delayed state = OCTET_DELAYED_INIT;
    state.format = OCTET_E4M3;
    state.length = 1;
    state.slots = 1;
    state.scale = &scale;
    state.history = &history;
    CHECK_EQ_INT(octet_delayed_step(&state, &amax, NULL, &err), OCTET_OK);
    state.reserved[0] = 1;
    CHECK_EQ_INT(octet_delayed_step(&state, &amax, NULL, &err), OCTET_INVALID);
    state.reserved[0] = 0;
    state.margin = 65;
    CHECK_EQ_INT(octet_delayed_step(&state, &amax, NULL, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, "margin is 65") != NULL, err.text);
    state.margin = INT32_MIN;
    CHECK_EQ_INT(octet_delayed_step(&state, &amax, NULL, &err), OCTET_INVALID);
}

TEST(refused__nothing_is_printed_of_nothing) {
    char text[32] = "left";
    size_t lengths[] = {
        octet_quantizer_print(text, sizeof text, NULL),
        octet_proto_print(text, sizeof text, NULL),
        octet_device_print(text, sizeof text, NULL),
        octet_recipe_print(text, sizeof text, NULL),
        octet_linear_print(text, sizeof text, NULL),
        octet_linear_print_words(text, sizeof text, NULL),
        octet_linear_backward_print(text, sizeof text, NULL),
        octet_linear_backward_print_words(text, sizeof text, NULL),
        octet_plan_print(text, sizeof text, NULL),
        octet_port_print(text, sizeof text, NULL),
        octet_plan_tensor_print(text, sizeof text, NULL, 0),
        octet_plan_buffer_print(text, sizeof text, NULL, 0),
        octet_call_tensor_print(text, sizeof text, NULL),
        octet_cuda_print(text, sizeof text, NULL),
    };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        CHECK_EQ_INT(lengths[i], 0);
    }
    CHECK_EQ_STR(text, "");
}

TEST(refused__messages_say_what_is_wrong_and_point_at_it) {
    static const struct {
        const char *problem, *says, *at;
    } cases[] = {
        {"linear m=99999999999999999999 k=64 n=32 in=bf16",
         "'99999999999999999999' is no size: sizes are from 0 to 9223372036854775807", "99999"},
        {"linear m=8 k=64 n=32 in=bf16 recipe=delayed:margin=99999999999999999999",
         "is no number from -2147483648 to 2147483647", "99999"},
        {"linear m=8 k=64 n=32 in=bf16 recipe=delayed:margin=x", "is not a whole number", "x"},
        {"linear m=8 k=64 n=32 in=bf16 recipe=current:eps=1e-46", "fits a float", "1e-46"},
        {"linear m=8 k=64 n=32 in=bf16 recipe=current:eps=1e39", "fits a float", "1e39"},
        {"linear m=8 k=64 n=32 in=bf16 recipe=delayed:history=4,margin=1000",
         "margin is 1000; it is from -64 to 64", "margin"},
        {"linear m=8 k=64 n=32 in=bf16 recipe=nvfp4+rowscaled", "rowscaled", "rowscaled"},
        {"linear m=8 k=64 n=32 in=bf16 qin=nvfp4:e2m1/1x16+rht+rowscaled", "rowscaled", "rht"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_linear_args args;
        octet_error err = {OCTET_OK, 0, ""};
        const char *problem = cases[i].problem, *at = strstr(problem, cases[i].at);
        if (cases[i].at[0] == 'x') {
            at = problem + strlen(problem) - 1;
        }
        CHECK_EQ_INT(octet_linear_parse(&args, problem, &err), OCTET_INVALID);
        CHECK_OF(strstr(err.text, cases[i].says) != NULL, err.text);
        CHECK_OF(err.column == at - problem + 1, err.text);
    }
}

TEST(refused__an_architecture_below_the_least_is_not_planned) {
    octet_linear_args args = parsed("linear m=8 k=64 n=32 in=bf16 device=cuda:0/75");
    octet_plan plan = OCTET_PLAN_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_EQ_INT(octet_plan_linear(&plan, &args, &err), OCTET_UNSUPPORTED);
    CHECK_OF(strstr(err.text, "compute capability 7.5") != NULL, err.text);
    CHECK_OF(strstr(err.text, "8.0 or more") != NULL, err.text);
    args.input.device.arch = args.weight.device.arch = 80;
    CHECK_EQ_INT(octet_plan_linear(&plan, &args, &err), OCTET_OK);
}

/* 45 columns in 2 chunks would be 23 and 23: one more than the weight has. */
TEST(refused__chunks_that_do_not_divide_the_columns) {
    octet_linear_args args =
        parsed("linear m=8 k=64 n=45 in=bf16 parallel=row sequence tp=2 chunks=2");
    octet_linear_backward_args back;
    octet_error err = {OCTET_OK, 0, ""};
    static octet_chain chain;
    CHECK_EQ_INT(octet_linear_backward_make(&back, &args, &err), OCTET_OK);
    CHECK_EQ_INT(octet_plan_chain(&chain, &back, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, "n is 45; a product in 2 chunks has a multiple of 32 columns"),
             err.text);
}

TEST_MAIN(refused__an_axis_that_a_zero_hides, refused__an_absent_tensor_with_leftovers,
          refused__reserved_bytes_that_are_not_zero, refused__nothing_is_printed_of_nothing,
          refused__messages_say_what_is_wrong_and_point_at_it,
          refused__an_architecture_below_the_least_is_not_planned,
          refused__chunks_that_do_not_divide_the_columns)
