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

/* The step that computes f(x): its own, or a cast that applies. */
static inline octet_step *find_apply(octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        if (check_applies(&plan->steps[i])) {
            return &plan->steps[i];
        }
    }
    return NULL;
}

/* The step says what it reads and writes now. */
static inline void set_masks(octet_plan *plan, octet_step *step) {
    step->reads = check_expect(plan, step).reads;
    step->writes = check_expect(plan, step).writes;
}

static inline bool forget_beta(check_chain *chain) {
    octet_step *step = find_apply(fwd(chain));
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
    octet_step *step = find_apply(fwd(chain));
    if (!step || step->bias == OCTET_ABSENT) {
        return false;
    }
    step->gamma = step->bias;
    set_masks(fwd(chain), step);
    return true;
}

static inline bool norm_without_statistics(check_chain *chain) {
    octet_step *step = find_apply(fwd(chain));
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

/* Multiplies x where f(x) is wanted: the cast reads the prologue's input, or applies none. */
static inline bool cast_x_itself(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    octet_step *apply = find_apply(plan);
    for (int i = 0; apply && i < plan->step_count; i++) {
        octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE && (step->apply || step->a == apply->dst)) {
            step->a = apply->a;
            step->apply = 0;
            step->stats = step->gamma = step->bias = OCTET_ABSENT;
            set_masks(plan, step);
            return true;
        }
    }
    return false;
}

/* A cast of another tensor applies the prologue, too. */
static inline bool apply_to_the_weight(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    octet_step *apply = find_apply(plan);
    for (int i = 0; apply && i < plan->step_count; i++) {
        octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE &&
            plan->tensors[step->dst].name == OCTET_NAME_WEIGHT) {
            step->apply = 1;
            step->stats = apply->stats;
            step->gamma = apply->gamma;
            step->bias = apply->bias;
            set_masks(plan, step);
            return true;
        }
    }
    return false;
}

/* The cast that applies says so, and its product's operand is of x's columns. */
static inline bool apply_into_other_columns(check_chain *chain) {
    octet_step *step = find_apply(fwd(chain));
    if (!step || !step->apply) {
        return false;
    }
    fwd(chain)->tensors[step->dst].cols.mul++;
    return true;
}

/* Bytes of f(x) are saved, or an activation's input as it is, and memory was asked for. */
static inline bool ask_for_memory(check_chain *chain) {
    bool quantized = false;
    for (int i = 0; i < fwd(chain)->saved_count; i++) {
        const octet_plan_tensor *t = check_tensor_of(fwd(chain), fwd(chain)->saved[i]);
        quantized |= t->name == OCTET_NAME_INPUT && t->form == OCTET_FORM_QUANTIZED;
    }
    bool speed = ask(chain)->save == OCTET_SAVE_SPEED;
    ask(chain)->save = OCTET_SAVE_MEMORY;
    return quantized && speed && ask(chain)->prologue && ask(chain)->input_requires_grad &&
           !check_wants_of(ask(chain)).role[OCTET_INPUT].stochastic;
}

/* A weight that lives anyway is saved as bytes, and memory was asked for. */
static inline bool ask_for_no_weight(check_chain *chain) {
    bool stored = ask_to_save_no_weight(chain);
    ask(chain)->fsdp = 0;
    ask(chain)->save = OCTET_SAVE_MEMORY;
    return stored && !check_wants_of(ask(chain)).role[OCTET_WEIGHT].stochastic;
}

/* The input is saved in 8 bits, and speed was asked for. */
static inline bool ask_for_speed(check_chain *chain) {
    bool packed = false;
    for (int i = 0; i < fwd(chain)->saved_count; i++) {
        packed |= check_tensor_of(fwd(chain), fwd(chain)->saved[i])->form == OCTET_FORM_PACKED;
    }
    ask(chain)->save = OCTET_SAVE_SPEED;
    return packed;
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
