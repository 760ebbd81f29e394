/* chain.c - all plans of a call: forward, its backward, and the wgrad that is left for later.
 */
#include "core/fail.h"
#include "linear/planner.h"

static bool wants_gradient(const octet_linear_args *args) {
    return args->input_requires_grad || args->weight_requires_grad ||
           args->bias_requires_grad || args->gamma_requires_grad || args->beta_requires_grad;
}

octet_status octet_plan_chain(octet_chain *out, const octet_linear_backward_args *args,
                              octet_error *err) {
    oct_facts facts;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_linear_backward_check(args, &facts, err);
    if (status) {
        return status;
    }
    octet_plan *plans = out->plans;
    *out = OCTET_SIZED(octet_chain);
    out->count = 1;
    status = oct_plan_forward(&plans[0], &args->forward, err);
    /* Inference has no second plan.
     * e.g. `recipe=mxfp8 grad=none`: no "linear backward" */
    if (!status && wants_gradient(&args->forward)) {
        out->count = 2;
        status = oct_plan_backward(&plans[1], &plans[0], args, err);
    }
    /* Backward left wgrad for later: pipeline parallelism computes dx first, because the stage
     * before waits for it, and dw in a gap.
     * e.g. `delay_wgrad`: "linear wgrad: m=256"
     * e.g. `delay_wgrad grad=x`: no "linear wgrad" */
    if (!status && args->forward.delay_wgrad && args->forward.weight_requires_grad) {
        out->count = 3;
        status = oct_plan_later_wgrad(&plans[2], &plans[1], args, err);
    }
    /* Sizes that a plan's chunks do not divide would leave a last chunk that reads too far. */
    for (int i = 0; i < out->count && !status; i++) {
        status = oct_plan_check_chunks(&plans[i], &plans[i].extents, err);
    }
    return status;
}

octet_status octet_chain_bind(octet_chain *chain, const octet_extents *sizes,
                              octet_error *err) {
    octet_status status = oct_need(chain, "chain", err);
    for (int i = 0; !status && i < chain->count; i++) {
        status = octet_plan_bind(&chain->plans[i], i ? &chain->plans[i - 1] : NULL, sizes, err);
    }
    return status;
}
