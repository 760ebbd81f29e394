/* test_applied.c - where a cast applies the prologue, and where a step of its own writes f(x).
 */
#include "octet.h"

#include <stdlib.h>

#include "test.h"

/* A call, a line of one of its plans, and whether f(x) has memory there. */
typedef struct row {
    const char *problem, *line;
    int plan;
    bool written;
} row;

static const row rows[] = {
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=rmsnorm eps=1e-5",
     "quantize rmsnorm(input) by statistics, gamma -> input.quantized mxfp8", 0, false},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=block prologue=layernorm beta "
     "zero_centered eps=1e-5",
     "quantize layernorm(input) by statistics, 1 + gamma, beta -> input.quantized", 0, false},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=delayed prologue=swiglu",
     "quantize swiglu(input) -> input.quantized fp8-delayed:e4m3+row by scale", 0, false},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=gelu device=cuda:0/90",
     "gelu of input -> input.prologue", 0, true},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=rmsnorm eps=1e-5 "
     "device=cuda:0/90",
     "quantize rmsnorm(input) by statistics, gamma -> input.quantized mxfp8", 0, false},
    /* The amax comes first, and the step that writes f(x) measures it. */
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=current prologue=rmsnorm eps=1e-5",
     "rmsnorm of input -> input.prologue by statistics, gamma, amax to", 0, true},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=nvfp4 prologue=rmsnorm eps=1e-5",
     "rmsnorm of input -> input.prologue by statistics, gamma", 0, true},
    /* A product reads it. */
    {"linear-backward m=64 k=96 n=32 in=bf16 prologue=rmsnorm eps=1e-5",
     "rmsnorm of input -> input.prologue by statistics, gamma", 0, true},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=silu calibrate",
     "silu of input -> input.prologue", 0, true},
    /* Ranks gather bytes, or values. */
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=silu parallel=column "
     "sequence tp=2",
     "quantize silu(input) -> input.quantized mxfp8", 0, false},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=silu parallel=column "
     "sequence tp=2 gather=high_precision",
     "silu of input -> input.prologue", 0, true},
    /* Backward casts once more, or its product reads f(x). */
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=silu save_original_input",
     "quantize silu(input) -> input.quantized mxfp8", 1, false},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=delayed prologue=rmsnorm eps=1e-5 "
     "save=memory",
     "quantize rmsnorm(input) by statistics, gamma -> input.quantized fp8-delayed:e4m3+row by "
     "input_scale.cast",
     1, false},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=silu save=memory",
     "quantize silu(input.dequantized) -> input.quantized mxfp8:e4m3/1x32+col", 1, false},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=silu save=memory",
     "gradients are those at input.packed: each element within 2^-4", 0, false},
    {"linear-backward m=64 k=96 n=32 in=bf16 recipe=mxfp8:override=high_precision "
     "prologue=silu",
     "silu of input -> input.prologue", 1, true},
};

static bool writes_it(const octet_plan *plan) {
    for (int i = 0; i < plan->tensor_count; i++) {
        const octet_plan_tensor *t = &plan->tensors[i];
        if (t->name == OCTET_NAME_INPUT && t->form == OCTET_FORM_PROLOGUE) {
            return true;
        }
    }
    return false;
}

TEST(applied__a_cast_alone_computes_what_it_alone_reads) {
    static char text[1 << 16];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        octet_linear_backward_args args;
        static octet_chain chain;
        octet_error err = {OCTET_OK, 0, ""};
        octet_status status = octet_linear_backward_parse(&args, rows[i].problem, &err);
        status = status ? status : octet_plan_chain(&chain, &args, &err);
        if (!CHECK_OF(status == OCTET_OK, err.text)) {
            continue;
        }
        const octet_plan *plan = &chain.plans[rows[i].plan];
        (void)octet_plan_print(text, sizeof text, plan);
        if (!CHECK(strstr(text, rows[i].line) && writes_it(plan) == rows[i].written)) {
            printf("    %s\n%s", rows[i].problem, text);
        }
    }
}

/* What is not written takes no memory: f(x) is 64 x 96 of two bytes. */
TEST(applied__takes_no_workspace) {
    octet_linear_args args;
    octet_plan with = OCTET_PLAN_INIT, without = OCTET_PLAN_INIT;
    const char *problem = "linear m=64 k=96 n=32 in=bf16 recipe=mxfp8 prologue=silu";
    CHECK_EQ_INT(octet_linear_parse(&args, problem, NULL), OCTET_OK);
    CHECK_EQ_INT(octet_plan_linear(&with, &args, NULL), OCTET_OK);
    problem = "linear m=64 k=96 n=32 in=bf16 recipe=mxfp8";
    CHECK_EQ_INT(octet_linear_parse(&args, problem, NULL), OCTET_OK);
    CHECK_EQ_INT(octet_plan_linear(&without, &args, NULL), OCTET_OK);
    CHECK_EQ_INT(with.workspace_bytes, without.workspace_bytes);
}

TEST_MAIN(applied__a_cast_alone_computes_what_it_alone_reads, applied__takes_no_workspace)
