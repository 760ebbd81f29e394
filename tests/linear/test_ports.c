/* test_ports.c - ports by name and in print, slots of delayed scaling, plans as values. */
#include "octet.h"

#include "test.h"

/* Forward and backward of one problem. */
static octet_plan plan_of(const char *problem, bool backward) {
    octet_linear_args args;
    octet_linear_backward_args back = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_linear_parse(&args, problem, &err);
    status = status ? status : octet_linear_backward_make(&back, &args, &err);
    status = status     ? status
             : backward ? octet_plan_linear_backward(&plan, &back, &err)
                        : octet_plan_linear(&plan, &args, &err);
    CHECK_OF(status == OCTET_OK, err.text);
    return plan;
}

static void finds(const octet_port *ports, int count, int index, const char *printed) {
    char text[128], name[64];
    size_t length = octet_port_print(text, sizeof text, &ports[index]);
    CHECK_EQ_STR(text, printed);
    CHECK_EQ_INT(length, strlen(text));
    const char *end = strstr(printed, "  ");
    (void)snprintf(name, sizeof name, "%.*s", (int)(end - printed), printed);
    CHECK_EQ_INT(octet_port_find(ports, count, name), index);
}

TEST(port__is_found_by_the_name_it_prints) {
    octet_plan plan = plan_of("linear m=8 k=64 n=32 in=bf16 bias recipe=mxfp8 cache=read "
                              "device=cuda:0/100",
                              false);
    finds(plan.args, plan.arg_count, 0, "input  bf16 (8, 64)");
    finds(plan.args, plan.arg_count, 1, "weight  bf16 (32, 64)");
    finds(plan.args, plan.arg_count, 2, "bias  bf16 (32)");
    finds(plan.args, plan.arg_count, 3, "weight.cached rowwise data  u8 (32, 64)");
    finds(plan.outs, plan.out_count, 0, "output  bf16 (8, 32)");
}

TEST(port__of_every_plan_is_found) {
    static const char *const problems[] = {
        "linear m=8 k=64 n=32 in=bf16 recipe=delayed cache=write quantize_output",
        "linear m=8 k=64 n=32 in=bf16 bias recipe=nvfp4 main_grad=add bias_main_grad=add",
        "linear m=256 k=64 n=32 in=bf16 recipe=current parallel=row sequence tp=2",
        "linear m=8 k=64 n=32 in=bf16 recipe=mxfp8 qin=mxfp8:e4m3 qw=mxfp8:e4m3",
    };
    for (size_t i = 0; i < 2 * sizeof problems / sizeof problems[0]; i++) {
        octet_plan plan = plan_of(problems[i / 2], i % 2);
        const octet_port *all[] = {plan.args, plan.outs, plan.exchanges};
        const int counts[] = {plan.arg_count, plan.out_count, plan.exchange_count};
        for (int place = 0; place < 3; place++) {
            for (int j = 0; j < counts[place]; j++) {
                char text[128];
                (void)octet_port_print(text, sizeof text, &all[place][j]);
                *strstr(text, "  ") = 0;
                CHECK_EQ_INT(octet_port_find(all[place], counts[place], text), j);
            }
        }
    }
}

TEST(port__that_is_not_there_is_minus_one) {
    octet_plan plan = plan_of("linear m=8 k=64 n=32 in=bf16 recipe=mxfp8", false);
    CHECK_EQ_INT(octet_port_find(plan.args, plan.arg_count, "bias"), -1);
    CHECK_EQ_INT(octet_port_find(plan.args, plan.arg_count, "weigh"), -1);
    CHECK_EQ_INT(octet_port_find(plan.args, plan.arg_count, "weight "), -1);
    CHECK_EQ_INT(octet_port_find(plan.args, plan.arg_count, ""), -1);
    CHECK_EQ_INT(octet_port_find(plan.args, plan.arg_count, NULL), -1);
    CHECK_EQ_INT(octet_port_find(plan.args, 0, "input"), -1);
    CHECK_EQ_INT(octet_port_find(NULL, 3, "input"), -1);
}

TEST(port__print_cuts_as_snprintf_does) {
    octet_plan plan = plan_of("linear m=8 k=64 n=32 in=bf16", false);
    char text[8];
    CHECK_EQ_INT(octet_port_print(text, sizeof text, &plan.args[0]), 19);
    CHECK_EQ_STR(text, "input  ");
    CHECK_EQ_INT(octet_port_print(NULL, 0, &plan.args[0]), 19);
}

/* Which slot a role's scale is in: the offset of what its QUANTIZE step reads. */
static int slot_of(const octet_plan *plan, octet_plan_name name) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE && plan->tensors[step->a].name == name) {
            CHECK_EQ_INT(plan->buffers[step->scale].offset, plan->buffers[step->amax].offset);
            return (int)(plan->buffers[step->scale].offset / (int64_t)sizeof(float));
        }
    }
    return -1;
}

TEST(slots__are_where_the_header_says) {
    const char *problem = "linear m=8 k=64 n=32 in=bf16 recipe=custom:input=fp8-delayed:e4m3,"
                          "weight=fp8-delayed:e4m3,output=fp8-delayed:e4m3,"
                          "grad_output=fp8-delayed:e5m2,grad_input=fp8-delayed:e5m2 "
                          "quantize_output quantize_grad_input";
    octet_plan forward = plan_of(problem, false), backward = plan_of(problem, true);
    CHECK_EQ_INT(slot_of(&forward, OCTET_NAME_INPUT), OCTET_SLOT_INPUT);
    CHECK_EQ_INT(slot_of(&forward, OCTET_NAME_WEIGHT), OCTET_SLOT_WEIGHT);
    CHECK_EQ_INT(slot_of(&forward, OCTET_NAME_OUTPUT), OCTET_SLOT_OUTPUT);
    CHECK_EQ_INT(slot_of(&backward, OCTET_NAME_GRAD_OUTPUT), OCTET_SLOT_GRAD_OUTPUT);
    CHECK_EQ_INT(slot_of(&backward, OCTET_NAME_GRAD_INPUT), OCTET_SLOT_GRAD_INPUT);
    int scale = octet_port_find(forward.args, forward.arg_count, "scale");
    int grad = octet_port_find(backward.args, backward.arg_count, "scale");
    if (CHECK(scale >= 0 && grad >= 0)) {
        CHECK_EQ_INT(forward.args[scale].shape[0], OCTET_FORWARD_SLOTS);
        CHECK_EQ_INT(backward.args[grad].shape[0], OCTET_BACKWARD_SLOTS);
    }
}

/* What a front end must lend and gets back where the bias's gradient is no output. */
TEST(signature__has_a_bias_main_grad) {
    octet_linear_args args;
    octet_linear_backward_args back = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_signature forward;
    octet_backward_signature backward;
    octet_chain chain;
    const char *problem = "linear m=8 k=64 n=32 in=bf16 recipe=mxfp8 bias main_grad=add "
                          "bias_main_grad=add";
    CHECK_EQ_INT(octet_linear_parse(&args, problem, NULL), OCTET_OK);
    CHECK_EQ_INT(octet_linear_backward_make(&back, &args, NULL), OCTET_OK);
    CHECK_EQ_INT(octet_plan_chain(&chain, &back, NULL), OCTET_OK);
    octet_signature_of(&forward, &chain, false);
    octet_backward_signature_of(&backward, &chain, false);
    CHECK_EQ_INT(forward.lent_count, 2);
    CHECK_EQ_INT(forward.lent[0], OCTET_LENT_MAIN_GRAD);
    CHECK_EQ_INT(forward.lent[1], OCTET_LENT_BIAS_MAIN_GRAD);
    int first = 1 + forward.saved_count + forward.saves_arena;
    CHECK_EQ_INT(backward.written_count, 2);
    CHECK_EQ_INT(backward.written[0], first);
    CHECK_EQ_INT(backward.written[1], first + 1);
    CHECK(backward.grads[0].count == 1 && !backward.grads[1].count && !backward.grads[2].count);
}

TEST(plan__hash_follows_equality) {
    const char *problem = "linear m=8 k=64 n=32 in=bf16 recipe=mxfp8 bias";
    octet_plan a = plan_of(problem, false), b = plan_of(problem, false);
    CHECK(octet_plan_equal(&a, &b) && octet_plan_hash(&a) == octet_plan_hash(&b));
    for (size_t i = 0; i < sizeof b; i++) {
        ((unsigned char *)&b)[i] ^= 1;
        CHECK(!octet_plan_equal(&a, &b) && octet_plan_hash(&a) != octet_plan_hash(&b));
        ((unsigned char *)&b)[i] ^= 1;
    }
}

/* ---- products ---------------------------------------------------------------------------- */

static int gemm_of(const octet_plan *plan) {
    int at = 0;
    while (at < plan->step_count && plan->steps[at].op != OCTET_OP_GEMM) {
        at++;
    }
    return at;
}

TEST(step__says_how_its_device_multiplies) {
    static const struct {
        const char *problem;
        octet_support support;
        bool padded;
    } rows[] = {
        {"linear m=8 k=64 n=32 in=bf16 recipe=mxfp8", OCTET_SUPPORT_NATIVE, false},
        {"linear m=16 k=64 n=32 in=bf16 recipe=mxfp8 device=cuda:0/90", OCTET_SUPPORT_FOLDED,
         false},
        {"linear m=16 k=64 n=32 in=bf16 recipe=nvfp4 device=cuda:0/90", OCTET_SUPPORT_EMULATED,
         false},
        {"linear m=16 k=64 n=32 in=bf16 recipe=current device=cuda:0/90", OCTET_SUPPORT_NATIVE,
         false},
        {"linear m=16 k=60 n=32 in=bf16 recipe=current device=cuda:0/90", OCTET_SUPPORT_NATIVE,
         true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        octet_plan plan = plan_of(rows[i].problem, false);
        int at = gemm_of(&plan);
        CHECK_EQ_INT(octet_step_support(&plan, at), rows[i].support);
        CHECK_EQ_INT(octet_step_is_padded(&plan, at), rows[i].padded);
    }
}

TEST(step__that_is_no_product_is_not_native) {
    octet_plan plan = plan_of("linear m=8 k=64 n=32 in=bf16 recipe=mxfp8", false);
    const int others[] = {-1, plan.step_count, 0};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        CHECK_EQ_INT(octet_step_support(&plan, others[i]), OCTET_SUPPORT_EMULATED);
        CHECK(!octet_step_is_padded(&plan, others[i]));
    }
    CHECK_EQ_INT(octet_step_support(NULL, 0), OCTET_SUPPORT_EMULATED);
}

TEST(scheme__says_what_its_scales_are) {
    CHECK_EQ_INT(octet_scale_format(OCTET_MXFP8), OCTET_E8M0);
    CHECK_EQ_INT(octet_scale_format(OCTET_NVFP4), OCTET_E4M3);
    CHECK_EQ_INT(octet_scale_format(OCTET_FP8_BLOCK), OCTET_F32);
    CHECK_EQ_INT(octet_scale_format(OCTET_SCHEME_NONE), OCTET_NONE);
    CHECK_EQ_INT(octet_scale_format((octet_scheme)99), OCTET_NONE);
}

TEST_MAIN(port__is_found_by_the_name_it_prints, port__of_every_plan_is_found,
          port__that_is_not_there_is_minus_one, port__print_cuts_as_snprintf_does,
          slots__are_where_the_header_says, signature__has_a_bias_main_grad,
          plan__hash_follows_equality, step__says_how_its_device_multiplies,
          step__that_is_no_product_is_not_native, scheme__says_what_its_scales_are)
