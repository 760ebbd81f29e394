/* test_share.c - which casts calls may share, and that the plans then make none of their own.
 */
#include <string.h>

#include "octet.h"
#include "test.h"

static octet_linear_backward_args parse(const char *words) {
    octet_linear_backward_args args = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    const int64_t sizes[] = {128, 64, 32};
    octet_error err;
    octet_status status = octet_linear_backward_parse_words(&args, words, sizes, 3, &err);
    if (status) {
        test_report(false, TEST_HERE("words are read"), "%s: %s", words, err.text);
    }
    return args;
}

typedef struct row {
    const char *words, *input, *grad;
} row;

static const row rows[] = {
    {"in=bf16", "none", "none"},
    {"in=bf16 recipe=current", "fp8-tensor:e4m3+row", "fp8-tensor:e5m2+row"},
    {"in=bf16 recipe=current device=cuda:0/90", "fp8-tensor:e4m3+row+col",
     "fp8-tensor:e5m2+row+col"},
    {"in=bf16 recipe=block", "fp8-block:e4m3/1x128+row+col", "fp8-block:e4m3/1x128+row+col"},
    {"in=bf16 recipe=mxfp8", "mxfp8:e4m3/1x32+row+col", "mxfp8:e4m3/1x32+row+col"},
    {"in=bf16 recipe=mxfp8 device=cuda:0/100", "mxfp8:e4m3/1x32+row+col+swizzled",
     "mxfp8:e4m3/1x32+row+col+swizzled"},
    /* Stochastic rounding, which gradients have, draws anew for each layer. */
    {"in=bf16 recipe=nvfp4", "nvfp4:e2m1/1x16+row+col+rht", "none"},
    /* The weight is frozen: no wgrad reads columnwise bytes. Or the input is. */
    {"in=bf16 recipe=mxfp8 grad=x", "mxfp8:e4m3/1x32+row", "mxfp8:e4m3/1x32+row"},
    {"in=bf16 recipe=mxfp8 grad=w", "mxfp8:e4m3/1x32+row+col", "mxfp8:e4m3/1x32+col"},
    {"in=bf16 recipe=mxfp8 grad=none", "mxfp8:e4m3/1x32+row", "none"},
    /* Scales of delayed scaling are a layer's own. */
    {"in=bf16 recipe=delayed", "none", "none"},
    {"in=bf16 recipe=mxfp8 calibrate", "none", "none"},
    {"in=bf16 recipe=mxfp8 save_original_input", "none", "mxfp8:e4m3/1x32+row+col"},
    {"in=bf16 recipe=mxfp8 delay_wgrad", "mxfp8:e4m3/1x32+row+col", "none"},
    {"in=bf16 recipe=mxfp8 bias", "mxfp8:e4m3/1x32+row+col", "none"},
    {"in=bf16 qin=mxfp8:e4m3 recipe=mxfp8", "none", "mxfp8:e4m3/1x32+row+col"},
    {"in=bf16 recipe=mxfp8 prologue=silu", "none", "mxfp8:e4m3/1x32+row+col"},
    {"in=bf16 recipe=mxfp8 parallel=column tp=2 sequence", "none", "mxfp8:e4m3/1x32+row+col"},
    {"in=bf16 recipe=mxfp8 parallel=row tp=2 sequence", "mxfp8:e4m3/1x32+row+col", "none"},
};

TEST(share__a_cast_that_depends_on_values_alone) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        octet_linear_backward_args args = parse(rows[i].words);
        char input[OCTET_QUANTIZER_TEXT], grad[OCTET_QUANTIZER_TEXT];
        octet_quantizer q;
        octet_error err;
        CHECK(!octet_linear_shared_input(&q, &args.forward, &err));
        (void)octet_quantizer_print(input, sizeof input, &q);
        CHECK(!octet_linear_shared_grad(&q, &args, &err));
        (void)octet_quantizer_print(grad, sizeof grad, &q);
        if (strcmp(input, rows[i].input) || strcmp(grad, rows[i].grad)) {
            test_report(false, TEST_HERE("shares as the row says"), "%s: %s and %s",
                        rows[i].words, input, grad);
        }
    }
}

/* Casts of a plan's arguments by name. */
static int casts_of(const octet_plan *plan, octet_plan_name name) {
    int count = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool reads = step->op == OCTET_OP_QUANTIZE || step->op == OCTET_OP_AMAX ||
                     step->op == OCTET_OP_TRANSPOSE;
        count += reads && plan->tensors[step->a].name == name;
    }
    return count;
}

TEST(share__who_gets_the_bytes_casts_nothing_and_saves_an_alias) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        octet_linear_backward_args args = parse(rows[i].words);
        octet_error err;
        octet_chain chain;
        octet_quantizer input, grad;
        CHECK(!octet_linear_shared_input(&input, &args.forward, &err));
        CHECK(!octet_linear_shared_grad(&grad, &args, &err));
        if (input.scheme == OCTET_SCHEME_NONE || grad.scheme == OCTET_SCHEME_NONE) {
            continue;
        }
        args.forward.input.quantizer = input;
        args.grad_output.quantizer = grad;
        CHECK(!octet_plan_chain(&chain, &args, &err));
        CHECK_EQ_INT(chain.count, 2);
        CHECK_EQ_INT(casts_of(&chain.plans[0], OCTET_NAME_INPUT), 0);
        CHECK_EQ_INT(casts_of(&chain.plans[1], OCTET_NAME_INPUT), 0);
        CHECK_EQ_INT(casts_of(&chain.plans[1], OCTET_NAME_GRAD_OUTPUT), 0);
    }
}

TEST(share__bad_arguments_are_refused) {
    octet_linear_backward_args args = parse("in=bf16 recipe=mxfp8");
    octet_quantizer q;
    octet_error err;
    CHECK_EQ_INT(octet_linear_shared_input(NULL, &args.forward, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_linear_shared_input(&q, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_linear_shared_grad(NULL, &args, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_linear_shared_grad(&q, NULL, &err), OCTET_INVALID);
}

TEST_MAIN(share__a_cast_that_depends_on_values_alone,
          share__who_gets_the_bytes_casts_nothing_and_saves_an_alias,
          share__bad_arguments_are_refused)
