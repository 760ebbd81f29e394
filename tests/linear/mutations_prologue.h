/* mutations_prologue.h - plans whose prologue is another than the one asked for. */
#ifndef OCTET_MUTATIONS_PROLOGUE_H
#define OCTET_MUTATIONS_PROLOGUE_H

#include "mutations_meaning.h"

/* The first step of this kind, or NULL. */
static inline octet_step *find_step(octet_plan *plan, octet_op op) {
    int at = find_op(plan, op);
    return at < 0 ? NULL : &plan->steps[at];
}

static inline octet_step *find_back(check_chain *chain, octet_op op) {
    return chain->count > 1 ? find_step(bwd(chain), op) : NULL;
}

/* The step says what it reads and writes now. */
static inline void set_masks(octet_plan *plan, octet_step *step) {
    step->reads = check_expect(plan, step).reads;
    step->writes = check_expect(plan, step).writes;
}

static inline bool forget_beta(check_chain *chain) {
    octet_step *step = find_step(fwd(chain), OCTET_OP_PROLOGUE);
    if (!step || step->bias == OCTET_ABSENT) {
        return false;
    }
    step->bias = OCTET_ABSENT;
    set_masks(fwd(chain), step);
    return true;
}

static inline bool forget_gamma_in_backward(check_chain *chain) {
    octet_step *step = find_back(chain, OCTET_OP_PROLOGUE_GRAD);
    if (!step || step->gamma == OCTET_ABSENT) {
        return false;
    }
    step->gamma = OCTET_ABSENT;
    set_masks(bwd(chain), step);
    return true;
}

static inline bool take_beta_for_gamma(check_chain *chain) {
    octet_step *step = find_step(fwd(chain), OCTET_OP_PROLOGUE);
    if (!step || step->bias == OCTET_ABSENT) {
        return false;
    }
    step->gamma = step->bias;
    set_masks(fwd(chain), step);
    return true;
}

static inline bool norm_without_statistics(check_chain *chain) {
    octet_step *step = find_step(fwd(chain), OCTET_OP_PROLOGUE);
    if (!step || step->stats == OCTET_ABSENT) {
        return false;
    }
    step->stats = OCTET_ABSENT;
    set_masks(fwd(chain), step);
    return true;
}

static inline bool ask_for_another_function(check_chain *chain) {
    bool has = ask(chain)->prologue != OCTET_PROLOGUE_NONE;
    ask(chain)->prologue = OCTET_SILU;
    return has;
}

static inline bool ask_for_zero_centered(check_chain *chain) {
    ask(chain)->zero_centered = !ask(chain)->zero_centered;
    return octet_prologue_is_norm((octet_prologue)ask(chain)->prologue);
}

static inline bool freeze_gamma(check_chain *chain) {
    bool trained = ask(chain)->gamma_requires_grad && ask(chain)->input_requires_grad;
    ask(chain)->gamma_requires_grad = 0;
    return trained;
}

static inline bool freeze_x(check_chain *chain) {
    bool trained = ask(chain)->gamma_requires_grad && ask(chain)->input_requires_grad;
    ask(chain)->input_requires_grad = 0;
    return trained;
}

/* Multiplies x where f(x) is wanted: the cast reads the prologue's input. */
static inline bool cast_x_itself(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    octet_step *apply = find_step(plan, OCTET_OP_PROLOGUE);
    for (int i = 0; apply && i < plan->step_count; i++) {
        octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE && step->a == apply->dst) {
            step->a = apply->a;
            set_masks(plan, step);
            return true;
        }
    }
    return false;
}

/* The gradient of x is made from x again. */
static inline bool grad_of_x_from_x(check_chain *chain) {
    octet_step *step = find_back(chain, OCTET_OP_PROLOGUE_GRAD);
    if (step) {
        step->a = step->b;
        set_masks(bwd(chain), step);
    }
    return step != NULL;
}

#endif
