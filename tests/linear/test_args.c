/* test_args.c - a Linear call as a struct and as one line, and what is refused. */
#include <math.h>

#include "octet.h"
#include "test.h"

static octet_linear_args parsed(const char *text) {
    octet_linear_args args = OCTET_LINEAR_ARGS_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(octet_linear_parse(&args, text, &err) == OCTET_OK, err.text);
    return args;
}

TEST(args__canonical_texts_are_fixpoints) {
    static const char *const pairs[][2] = {
        {"linear m=8192 k=4096 n=14336 in=bf16 recipe=mxfp8 bias",
         "linear m=8192 k=4096 n=14336 in=bf16 bias recipe=mxfp8"},
        {" linear\tin=f32  k=3 n=2 m=1 ", "linear m=1 k=3 n=2 in=f32"},
        {"linear m=none k=3 n=2 in=f32", "linear m=none k=3 n=2 in=f32"},
        {"linear m=4x5x6 k=0 n=2 in=f32 w=f32", "linear m=4x5x6 k=0 n=2 in=f32"},
        {"linear m=1 k=3 n=2 in=bf16 w=f32 bias=bf16 grad=xwb",
         "linear m=1 k=3 n=2 in=bf16 w=f32 bias=bf16"},
        {"linear m=1 k=3 n=2 in=bf16 bias grad=xw", "linear m=1 k=3 n=2 in=bf16 bias grad=xw"},
        {"linear m=1 k=3 n=2 in=bf16 grad=none", "linear m=1 k=3 n=2 in=bf16 grad=none"},
        {"linear m=1 k=3 n=2 in=bf16 grad=w qin=mxfp8:e4m3+row qw=fp8-tensor:e4m3 "
         "recipe=nvfp4+norht",
         "linear m=1 k=3 n=2 in=bf16 qin=mxfp8:e4m3/1x32+row qw=fp8-tensor:e4m3+row+col "
         "recipe=nvfp4+norht grad=w"},
        {"linear m=1 k=3 n=2 in=bf16 bias delay_wgrad bias_main_grad_dtype=f16 "
         "bias_main_grad=overwrite main_grad=add",
         "linear m=1 k=3 n=2 in=bf16 bias main_grad=add bias_main_grad=overwrite "
         "bias_main_grad_dtype=f16 delay_wgrad"},
        {"linear m=1 k=3 n=2 in=bf16 eps=1e-05 prologue=rmsnorm gamma=bf16 grad=xwg",
         "linear m=1 k=3 n=2 in=bf16 prologue=rmsnorm eps=1e-5"},
        {"linear m=1 k=3 n=2 in=bf16 w=f32 zero_centered eps=0.25 prologue=layernorm beta "
         "gamma=bf16 grad=xwge",
         "linear m=1 k=3 n=2 in=bf16 w=f32 gamma=bf16 beta prologue=layernorm zero_centered "
         "eps=0.25"},
        {"linear m=1 k=3 n=2 in=bf16 prologue=layernorm eps=1 beta=f32 grad=ge",
         "linear m=1 k=3 n=2 in=bf16 beta=f32 grad=ge prologue=layernorm eps=1"},
        {"linear m=1 k=3 n=2 in=f16 prologue=swiglu", "linear m=1 k=3 n=2 in=f16 "
                                                      "prologue=swiglu"},
        {"linear m=1 k=3 n=2 in=f16 temporary_weight save=memory prologue=swiglu",
         "linear m=1 k=3 n=2 in=f16 prologue=swiglu save=memory temporary_weight"},
        {"linear m=1 k=3 n=2 in=f16 save=speed", "linear m=1 k=3 n=2 in=f16"},
        {"linear m=8 k=3 n=2 in=bf16 recipe=current cache=write main_grad=add "
         "main_grad_dtype=bf16 delay_wgrad fsdp threads=3 device=cuda:1/90 out=f32 "
         "quantize_output quantize_grad_input save_original_input parallel=row sequence tp=2 "
         "gather=high_precision",
         "linear m=8 k=3 n=2 in=bf16 recipe=current out=f32 quantize_output "
         "quantize_grad_input save_original_input cache=write main_grad=add "
         "main_grad_dtype=bf16 delay_wgrad parallel=row sequence gather=high_precision fsdp "
         "tp=2 threads=3 device=cuda:1/90"},
    };
    char text[OCTET_LINEAR_TEXT];
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        octet_linear_args args = parsed(pairs[i][0]);
        CHECK(octet_linear_print(text, sizeof text, &args) < sizeof text);
        CHECK_EQ_STR(text, pairs[i][1]);
        octet_linear_args back = parsed(text);
        CHECK_OF(octet_linear_equal(&args, &back), text);
        CHECK_EQ_INT(octet_linear_hash(&args), octet_linear_hash(&back));
    }
}

TEST(args__every_scalar_field_counts_in_equality_and_hash) {
    octet_linear_args args = parsed("linear m=8 k=16 n=4 in=bf16 bias recipe=mxfp8");
    int fields = 0;
    for (const octet_field *row = octet_fields(OCTET_STRUCT_LINEAR_ARGS); row->name; row++) {
        octet_linear_args other = args;
        size_t at = row->type == OCTET_FIELD_STRUCT ? row->fields[0].offset : 0;
        ((unsigned char *)&other)[row->offset + at] ^= 1;
        CHECK_OF(!octet_linear_equal(&args, &other), row->name);
        CHECK_OF(octet_linear_hash(&args) != octet_linear_hash(&other), row->name);
        fields++;
    }
    CHECK(fields > 20);
    octet_linear_args other = args;
    other.input.requires_grad = 1; /* the call says so itself */
    CHECK(octet_linear_equal(&args, &other));
}

TEST(args__backward_text_carries_the_gradient) {
    octet_linear_backward_args args, back;
    char text[OCTET_LINEAR_TEXT];
    octet_error err = {OCTET_OK, 0, ""};
    const char *line = "linear-backward m=4x8 k=16 n=4 in=bf16 recipe=mxfp8 dy=f32 "
                       "qdy=mxfp8:e5m2/1x32+row+col";
    CHECK_OF(octet_linear_backward_parse(&args, line, &err) == OCTET_OK, err.text);
    CHECK(octet_linear_backward_print(text, sizeof text, &args) < sizeof text);
    CHECK_EQ_STR(text, line);
    CHECK_EQ_INT(octet_linear_backward_parse(&back, text, NULL), OCTET_OK);
    CHECK(octet_linear_backward_equal(&args, &back));
    CHECK_EQ_INT(octet_linear_backward_hash(&args), octet_linear_backward_hash(&back));
    CHECK(args.grad_output.rank == 3 && args.grad_output.shape[2] == 4);
    back.grad_output.dtype = OCTET_F16;
    CHECK(!octet_linear_backward_equal(&args, &back));
}

TEST(args__sequence_parallel_shapes_the_gradient) {
    octet_linear_backward_args back;
    octet_linear_args args =
        parsed("linear m=8x3 k=16 n=4 in=bf16 parallel=column sequence tp=2");
    CHECK_EQ_INT(octet_linear_backward_make(&back, &args, NULL), OCTET_OK);
    CHECK(back.grad_output.shape[0] == 16 && back.grad_output.shape[1] == 3);
    args = parsed("linear m=8x3 k=16 n=4 in=bf16 parallel=row sequence tp=2");
    CHECK_EQ_INT(octet_linear_backward_make(&back, &args, NULL), OCTET_OK);
    CHECK(back.grad_output.shape[0] == 4 && back.grad_output.shape[1] == 3);
}

#define SMALL "linear m=8 k=16 n=4 in=bf16 "

/* A text, the column that the refusal names, and what it says. */
typedef struct refusal {
    const char *text;
    int column;
    const char *says;
} refusal;

static void check_refused(const refusal *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        octet_linear_args args = {.size = 77};
        octet_error err = {OCTET_OK, 0, ""};
        CHECK_EQ_INT(octet_linear_parse(&args, cases[i].text, &err), OCTET_INVALID);
        CHECK_OF(err.column == cases[i].column, err.text);
        CHECK_OF(strstr(err.text, cases[i].says), err.text);
        CHECK_EQ_INT(args.size, 77);
    }
}

TEST(args__wrong_text_and_combinations_say_what_and_why) {
    static const refusal cases[] = {
        {"", 1, "a problem begins with 'linear', not ''"},
        {"linaer m=1", 1, "a problem begins with 'linear', not 'linaer'"},
        {"linear m=1 k=2 n=3", 19, "'in=' is missing"},
        {"linear m=1 k=2 n=3 in=int8", 23,
         "'int8' is not a dtype here; allowed: f32, bf16, f16"},
        {"linear m=-1 k=2 n=3 in=f32", 10, "'-1' is not a whole number"},
        {"linear m=1x k=2 n=3 in=f32", 12, "'' is not a whole number"},
        {"linear m=99999999999999999999 k=2 n=3 in=f32", 10,
         "is no size: sizes are from 0 to 9223372036854775807"},
        {"linear m=1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1 k=2 n=3 in=f32", 40, "more than 16 axes"},
        {SMALL "m=3", 29, "'m' is given twice"},
        {SMALL "fsdp fsdp", 34, "'fsdp' is given twice"},
        {SMALL "rceipe=mxfp8", 29, "'rceipe' is not a word of a problem; allowed: m, k, n"},
        {SMALL "dy=f32", 29, "'dy' is not a word"},
        {SMALL "recipe", 29, "'recipe' needs a value"},
        {SMALL "recipe=mxfp9", 36, "'mxfp9' is not a recipe"},
        {SMALL "qin=mxfp8:e4m4", 39, "'e4m4' is not a format"},
        {SMALL "grad=xz", 35, "'xz' is not a set of gradients"},
        {SMALL "grad=xx", 35, "'xx' is not a set of gradients"},
        {SMALL "device=tpu", 36, "'tpu' is not a device"},
        {SMALL "device=cuda:0/90x", 36, "is not a device"},
        {SMALL "cache=maybe", 35,
         "'maybe' is not a value of cache; allowed: none, write, read"},
        {SMALL "tp=many", 32, "'many' is not a whole number"},
        {SMALL "quantize_output", 0, "needs a recipe with an output quantizer"},
        {SMALL "return_bias", 0, "return_bias without a bias"},
        {SMALL "grad=b", 0, "bias_requires_grad without a bias"},
        {SMALL "bias_main_grad=add", 0, "bias_main_grad without a bias"},
        {SMALL "bias return_bias bias_main_grad=add", 0, "bias_main_grad with return_bias"},
        {SMALL "bias bias_main_grad=sum", 49, "allowed: none, add, overwrite"},
        {SMALL "calibrate", 0, "there is none"},
        {SMALL "recipe=delayed save_original_input", 0, "delayed scaling's scales are updated"},
        {SMALL "sequence tp=2", 0, "sequence_parallel without a parallel mode"},
        {SMALL "parallel=row sequence tp=3", 0, "first axis is 8, which 3 ranks cannot share"},
        {SMALL "parallel=row tp=300", 0, "at most 256 ranks"},
        {SMALL "recipe=mxfp8 parallel=column sequence tp=2", 0,
         "each rank holds 8 rows, which are not whole blocks"},
        {"linear m=none k=16 n=4 in=bf16 parallel=column sequence tp=2", 0, "only its columns"},
        {"linear m=4611686018427387904 k=4 n=4 in=bf16", 0, "exceed 64 bits"},
        {SMALL "recipe=custom:input=nvfp4:e2m1+rht,grad_output=nvfp4:e2m1", 0, "differ"},
        {SMALL "recipe=custom:weight=nvfp4:e2m1+rht", 0, "which nothing in dgrad undoes"},
        {SMALL "recipe=custom:grad_weight=mxfp8:e4m3 main_grad=add", 0,
         "quantizes grad_weight"},
    };
    check_refused(cases, sizeof cases / sizeof cases[0]);
}

TEST(args__wrong_prologues_say_what_and_why) {
    static const refusal cases[] = {
        {SMALL "prologue=tanh", 38,
         "'tanh' is not a value of prologue; allowed: none, rmsnorm, layernorm, gelu, qgelu, "
         "relu, srelu, silu, glu, geglu, qgeglu, reglu, sreglu, swiglu"},
        {SMALL "prologue=rmsnorm", 0, "eps is 0; rmsnorm takes one above 0, such as 1e-05"},
        {SMALL "prologue=rmsnorm eps=-1e-5", 0, "eps is -1e-05; rmsnorm takes one above 0"},
        {SMALL "prologue=rmsnorm eps=inf", 50, "'inf' is not a number"},
        {SMALL "prologue=rmsnorm eps=1 beta", 0, "rmsnorm with a beta; only layernorm"},
        {SMALL "prologue=gelu eps=1", 0, "eps without a norm: prologue is gelu"},
        {SMALL "zero_centered", 0, "zero_centered without a norm: prologue is none"},
        {SMALL "prologue=glu gamma=f32", 0, "gamma without a norm: prologue is glu"},
        {SMALL "prologue=glu qin=mxfp8:e4m3", 0,
         "input is quantized, but glu is computed from its values: pass the input as it was"},
        {SMALL "prologue=glu grad=g", 0, "gamma_requires_grad without a gamma"},
        {SMALL "prologue=rmsnorm eps=1 grad=e", 0, "beta_requires_grad without a beta"},
        {SMALL "gamma", 29, "'gamma' needs a value"},
        {SMALL "prologue=rmsnorm eps=1 parallel=row tp=2", 0,
         "rmsnorm with parallel=row: each of 2 ranks has some columns of a row"},
    };
    check_refused(cases, sizeof cases / sizeof cases[0]);
}

/* Structs that no text can say. */
TEST(args__wrong_structs_are_refused_and_nothing_is_written) {
    octet_linear_args good = parsed(SMALL "bias recipe=mxfp8"), args;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_error err;
#define REFUSED(change, says)                                                                  \
    args = good;                                                                               \
    change;                                                                                    \
    err.text[0] = 0;                                                                           \
    CHECK_EQ_INT(octet_plan_linear(&plan, &args, &err), OCTET_INVALID);                        \
    CHECK_OF(strstr(err.text, says), err.text);                                                \
    CHECK_EQ_INT(plan.arg_count, 0)
    REFUSED(args.size = 4, "octet_linear_args.size is 4");
    REFUSED(args.weight.shape[1] = 60, "weight is (4, 60) but input has 16 columns");
    REFUSED(args.weight.rank = 1; args.weight.shape[1] = 0, "weight has 1 axes");
    REFUSED(args.bias.shape[0] = 5, "bias is (5) but weight has 4 rows");
    REFUSED(args.bias.quantizer = args.recipe.custom[0];
            args.bias.dtype = OCTET_I64, "bias has dtype i64");
    REFUSED(args.input.dtype = OCTET_U8, "input has dtype u8; it must be f32, bf16 or f16");
    REFUSED(args.input.rank = 0; args.input.shape[0] = args.input.shape[1] = 0, "has no axes");
    REFUSED(args.weight.device.kind = OCTET_CUDA, "weight is on cuda:0 but input is on cpu");
    REFUSED(args.parallel = 9, "parallel is 9");
    REFUSED(args.fsdp = 2, "fsdp is 2; a flag is 0 or 1");
    REFUSED(args.recipe.kind = 99, "kind is 99");
    REFUSED(args.input.shape[0] = -1, "input: axis 0 of a rank-2 shape is -1");
    REFUSED(args.input.size = 0, "input: octet_proto.size is 0");
    REFUSED(memset(&args.weight, 0, sizeof args.weight), "weight is not set; octet_proto_make");
    REFUSED(args.main_grad_dtype = OCTET_U8, "main_grad_dtype must be");
    REFUSED(args.bias_main_grad_dtype = OCTET_U8, "bias_main_grad_dtype must be");
    REFUSED(args.bias_main_grad = 3, "bias_main_grad is 3; it must be below 3");
    REFUSED(args.prologue = OCTET_PROLOGUES, "prologue is 14; it must be below 14");
    REFUSED(args.prologue = OCTET_SWIGLU,
            "weight is (4, 16) but input has 16 columns; swiglu takes twice the weight's");
    REFUSED(args.prologue = OCTET_RMSNORM; args.eps = 1, "rmsnorm without a gamma");
    REFUSED(args.eps = INFINITY, "eps is not finite");
    good = parsed(SMALL "prologue=layernorm eps=1 beta");
    REFUSED(args.gamma.shape[0] = 4, "gamma is (4) but weight has 16 columns");
    REFUSED(args.beta.shape[0] = 17, "beta is (17) but weight has 16 columns");
    REFUSED(args.gamma.device.kind = OCTET_CUDA, "gamma is on cuda:0 but input is on cpu");
    REFUSED(args.beta.dtype = OCTET_U8, "beta has dtype u8; it must be f32, bf16 or f16");
    good = parsed(SMALL "prologue=swiglu");
    REFUSED(args.input.shape[1] = 31, "but input has 31 columns; swiglu takes twice");
    CHECK_EQ_INT(octet_plan_linear(NULL, &good, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_plan_linear(&plan, NULL, &err), OCTET_INVALID);
    plan.size = 12;
    CHECK_EQ_INT(octet_plan_linear(&plan, &good, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "octet_plan.size is 12"));
    CHECK_EQ_INT(octet_plan_linear(&plan, &good, NULL), OCTET_INVALID);
}

TEST(args__gradient_of_another_shape_is_refused) {
    octet_linear_args args = parsed(SMALL "recipe=mxfp8");
    octet_linear_backward_args back;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_error err;
    CHECK_EQ_INT(octet_linear_backward_make(&back, &args, NULL), OCTET_OK);
    back.grad_output.shape[0] = 9;
    CHECK_EQ_INT(octet_plan_linear_backward(&plan, &back, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, "grad_output is (9, 4) but output is (8, 4)"), err.text);
    CHECK_EQ_INT(octet_linear_backward_make(&back, &args, NULL), OCTET_OK);
    CHECK_EQ_INT(octet_plan_linear_wgrad(&plan, &back, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, "delay_wgrad is 0"), err.text);
}

/* What a weight is stored as for a call. */
typedef struct stored {
    const char *text, *quantizer;
} stored;

typedef octet_status (*stored_fn)(octet_quantizer *, const octet_linear_args *, octet_error *);

static void check_stored(stored_fn ask, const stored *cases, size_t count) {
    char text[OCTET_QUANTIZER_TEXT];
    for (size_t i = 0; i < count; i++) {
        octet_linear_args args = parsed(cases[i].text);
        octet_quantizer q;
        CHECK_EQ_INT(ask(&q, &args, NULL), OCTET_OK);
        octet_quantizer_print(text, sizeof text, &q);
        CHECK_EQ_STR(text, cases[i].quantizer);
    }
}

TEST(args__cache_quantizer_is_what_the_plan_asks_for) {
    static const stored cases[] = {
        {SMALL "recipe=mxfp8", "mxfp8:e4m3/1x32+row+col"},
        {SMALL "recipe=mxfp8 grad=none", "mxfp8:e4m3/1x32+row"},
        {SMALL "recipe=mxfp8:override=high_precision", "mxfp8:e4m3/1x32+row"},
        {SMALL "recipe=current", "fp8-tensor:e4m3+row"},
        {SMALL "recipe=current device=cuda:0/90", "fp8-tensor:e4m3+row+col"},
        {SMALL "recipe=current device=cuda:0/100", "fp8-tensor:e4m3+row"},
        {SMALL "recipe=mxfp8 device=cuda:0/100", "mxfp8:e4m3/1x32+row+col+swizzled"},
        {SMALL, "none"},
        {SMALL "recipe=mxfp8 qw=mxfp8:e4m3", "none"},
    };
    check_stored(octet_linear_cache_quantizer, cases, sizeof cases / sizeof cases[0]);
}

/* As a cache's, but for the order of scales, which is any device's. */
TEST(args__parameter_quantizer_has_what_both_ways_read) {
    static const stored cases[] = {
        {SMALL "recipe=current", "fp8-tensor:e4m3+row"},
        {SMALL "recipe=current device=cuda:0/80", "fp8-tensor:e4m3+row"},
        {SMALL "recipe=current device=cuda:0/89", "fp8-tensor:e4m3+row+col"},
        {SMALL "recipe=current device=cuda:0/90", "fp8-tensor:e4m3+row+col"},
        {SMALL "recipe=current device=cuda:0/90 grad=w", "fp8-tensor:e4m3+row"},
        {SMALL "recipe=current device=cuda:0/100", "fp8-tensor:e4m3+row"},
        {SMALL "recipe=block device=cuda:0/90", "fp8-block:e4m3/128x128+row+col"},
        {SMALL "recipe=mxfp8 device=cuda:0/100", "mxfp8:e4m3/1x32+row+col"},
        {SMALL "recipe=nvfp4 device=cuda:0/100", "nvfp4:e2m1/16x16+row+col"},
        {SMALL, "none"},
    };
    check_stored(octet_linear_parameter_quantizer, cases, sizeof cases / sizeof cases[0]);
}

/* No step of forward or backward makes such a weight's bytes anew, or turns them. */
TEST(args__parameter_quantizer_leaves_nothing_to_make) {
    static const char *const recipes[] = {"current", "block", "mxfp8"};
    static const char *const devices[] = {"cpu", "cuda:0/80", "cuda:0/89", "cuda:0/90"};
    for (int i = 0; i < 12; i++) {
        char text[256], weight[OCTET_QUANTIZER_TEXT];
        octet_quantizer q;
        octet_linear_backward_args back = OCTET_LINEAR_BACKWARD_ARGS_INIT;
        octet_plan plan = OCTET_PLAN_INIT;
        (void)snprintf(text, sizeof text, SMALL "recipe=%s device=%s", recipes[i / 4],
                       devices[i % 4]);
        octet_linear_args args = parsed(text);
        CHECK_EQ_INT(octet_linear_parameter_quantizer(&q, &args, NULL), OCTET_OK);
        octet_quantizer_print(weight, sizeof weight, &q);
        (void)snprintf(text, sizeof text, SMALL "recipe=%s qw=%s device=%s", recipes[i / 4],
                       weight, devices[i % 4]);
        args = parsed(text);
        CHECK_EQ_INT(octet_linear_backward_make(&back, &args, NULL), OCTET_OK);
        CHECK_EQ_INT(octet_plan_linear_backward(&plan, &back, NULL), OCTET_OK);
        for (int s = 0; s < plan.step_count; s++) {
            const octet_step *step = &plan.steps[s];
            bool weights =
                step->a != OCTET_ABSENT && plan.tensors[step->a].name == OCTET_NAME_WEIGHT;
            CHECK_OF(!weights || step->op == OCTET_OP_GEMM, text);
        }
    }
}

TEST(args__gather_choice_follows_whole_blocks) {
    static const struct {
        const char *text;
        octet_gather gather;
    } cases[] = {
        {"linear m=64 k=16 n=4 in=bf16 recipe=mxfp8 tp=2 parallel=column sequence "
         "gather=high_precision",
         OCTET_GATHER_QUANTIZED},
        {"linear m=65 k=16 n=4 in=bf16 recipe=mxfp8 tp=2 parallel=column sequence "
         "gather=high_precision",
         OCTET_GATHER_HIGH_PRECISION},
        {"linear m=65 k=16 n=4 in=bf16 recipe=mxfp8 tp=2 parallel=column sequence grad=none",
         OCTET_GATHER_QUANTIZED},
        {"linear m=65 k=16 n=4 in=bf16 recipe=current tp=2 parallel=column sequence",
         OCTET_GATHER_QUANTIZED},
        {"linear m=48 k=16 n=4 in=bf16 recipe=nvfp4 tp=3 parallel=row sequence",
         OCTET_GATHER_QUANTIZED},
        {"linear m=24 k=16 n=4 in=bf16 recipe=nvfp4 tp=3 parallel=row sequence "
         "gather=high_precision",
         OCTET_GATHER_HIGH_PRECISION},
        {"linear m=65 k=16 n=4 in=bf16 recipe=mxfp8", OCTET_GATHER_QUANTIZED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_linear_args args = parsed(cases[i].text);
        octet_gather gather = OCTET_GATHER_QUANTIZED;
        CHECK_EQ_INT(octet_linear_choose_gather(&gather, &args, NULL), OCTET_OK);
        CHECK_OF(gather == cases[i].gather, cases[i].text);
    }
}

TEST_MAIN(
    args__canonical_texts_are_fixpoints, args__every_scalar_field_counts_in_equality_and_hash,
    args__backward_text_carries_the_gradient, args__sequence_parallel_shapes_the_gradient,
    args__wrong_text_and_combinations_say_what_and_why, args__wrong_prologues_say_what_and_why,
    args__wrong_structs_are_refused_and_nothing_is_written,
    args__gradient_of_another_shape_is_refused, args__cache_quantizer_is_what_the_plan_asks_for,
    args__parameter_quantizer_has_what_both_ways_read,
    args__parameter_quantizer_leaves_nothing_to_make, args__gather_choice_follows_whole_blocks)
