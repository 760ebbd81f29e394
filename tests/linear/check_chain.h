/* check_chain.h - the plans of one layer, and what its arguments ask of them. */
#ifndef OCTET_CHECK_CHAIN_H
#define OCTET_CHECK_CHAIN_H

#include "check_shapes.h"

#define CHECK_STAGES 3 /* octet_plan_kind: forward, backward, wgrad */

static const char *const check_stages[CHECK_STAGES] = {"forward", "backward", "wgrad"};

typedef struct check_chain {
    octet_linear_backward_args args;
    octet_plan plans[CHECK_STAGES]; /* by octet_plan_kind */
    int count;                      /* 1: inference; 3: with a delayed wgrad */
} check_chain;

typedef struct check_wants {
    octet_quantizer role[OCTET_ROLES]; /* scheme NONE where nothing is quantized */
    int64_t m, k, n;
    int tp;
    bool dgrad; /* the product, for dx or for a norm's parameters */
    bool wgrad, bias_grad, dx, gamma_grad, beta_grad;
    bool gated, norm; /* the prologue */
    bool adds_bias, hands_bias_back;
    bool is_delayed; /* the recipe's scales come from the caller's state */
} check_wants;

static inline bool check_wants_backward(const octet_linear_args *args) {
    bool bias = args->bias.dtype != OCTET_NONE && args->bias_requires_grad;
    return args->input_requires_grad || args->weight_requires_grad || bias ||
           args->gamma_requires_grad || args->beta_requires_grad;
}

static inline check_wants check_wants_of(const octet_linear_args *args) {
    bool bias = args->bias.dtype != OCTET_NONE;
    check_wants wants = {
        .m = 1,
        .k = args->weight.shape[1],
        .n = args->weight.shape[0],
        .tp = args->tp_size > 1 ? (int)args->tp_size : 1,
        .dgrad =
            args->input_requires_grad || args->gamma_requires_grad || args->beta_requires_grad,
        .dx = args->input_requires_grad,
        .gamma_grad = args->gamma_requires_grad,
        .beta_grad = args->beta_requires_grad,
        .gated = octet_prologue_is_gated((octet_prologue)args->prologue),
        .norm = octet_prologue_is_norm((octet_prologue)args->prologue),
        .wgrad = args->weight_requires_grad,
        .bias_grad = bias && args->bias_requires_grad && !args->return_bias,
        .adds_bias = bias && !args->return_bias,
        .hands_bias_back = bias && args->return_bias,
        .is_delayed = args->recipe.kind == OCTET_RECIPE_DELAYED,
    };
    for (int i = 0; i + 1 < args->input.rank; i++) {
        wants.m *= args->input.shape[i];
    }
    for (int role = 0; !args->calibrate && role < OCTET_ROLES; role++) {
        octet_status status =
            octet_recipe_quantizer(&wants.role[role], &args->recipe, (octet_role)role, NULL);
        wants.role[role].scheme = status == OCTET_OK ? wants.role[role].scheme : 0;
    }
    return wants;
}

static inline octet_status check_chain_make(check_chain *out,
                                            const octet_linear_backward_args *args,
                                            octet_error *err) {
    const octet_linear_args *forward = &args->forward;
    octet_plan blank = OCTET_PLAN_INIT;
    out->args = *args;
    out->plans[0] = out->plans[1] = out->plans[2] = blank;
    out->count = 1;
    octet_status status = octet_plan_linear(&out->plans[OCTET_PLAN_LINEAR], forward, err);
    if (!status && check_wants_backward(forward)) {
        out->count = 2;
        status = octet_plan_linear_backward(&out->plans[OCTET_PLAN_LINEAR_BACKWARD], args, err);
    }
    if (!status && forward->delay_wgrad && forward->weight_requires_grad) {
        out->count = 3;
        status = octet_plan_linear_wgrad(&out->plans[OCTET_PLAN_LINEAR_WGRAD], args, err);
    }
    return status;
}

/* The plan that does wgrad's work. */
static inline int check_wgrad_stage(const check_chain *chain) {
    return chain->count - 1;
}

/* The role that a tensor of the plan plays; OCTET_ROLES when it has none. */
static inline octet_role check_role(int name) {
    switch (name) {
    case OCTET_NAME_INPUT:
        return OCTET_INPUT;
    case OCTET_NAME_WEIGHT:
        return OCTET_WEIGHT;
    case OCTET_NAME_OUTPUT:
        return OCTET_OUTPUT;
    case OCTET_NAME_GRAD_OUTPUT:
        return OCTET_GRAD_OUTPUT;
    case OCTET_NAME_GRAD_INPUT:
        return OCTET_GRAD_INPUT;
    case OCTET_NAME_GRAD_WEIGHT:
        return OCTET_GRAD_WEIGHT;
    default:
        return OCTET_ROLES;
    }
}

#endif
