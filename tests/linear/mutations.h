/* mutations.h - ways to spoil a good chain of plans, each with the law that it breaks. */
#ifndef OCTET_MUTATIONS_H
#define OCTET_MUTATIONS_H

#include "check_plan.h"

/* Spoils the chain; false when the chain has nothing of the kind. */
typedef bool (*mutate_fn)(check_chain *chain);

typedef struct mutation {
    const char *name;
    check_law law;
    mutate_fn spoil;
} mutation;

static inline octet_plan *fwd(check_chain *chain) {
    return &chain->plans[OCTET_PLAN_LINEAR];
}

static inline octet_plan *bwd(check_chain *chain) {
    return &chain->plans[OCTET_PLAN_LINEAR_BACKWARD];
}

/* ---- finding a place to spoil: -1 when there is none ----------------------------------- */

static inline int find_op(const octet_plan *plan, octet_op op) {
    for (int i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].op == op) {
            return i;
        }
    }
    return -1;
}

static inline int find_place(const octet_plan *plan, octet_place place) {
    for (int i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].place == place && plan->buffers[i].bytes > 0) {
            return i;
        }
    }
    return -1;
}

/* A slot that is stored (or an alias). */
static inline int find_slot(const octet_plan *plan, bool stored) {
    for (int i = 0; i < plan->saved_count; i++) {
        if ((plan->buffers[plan->saved[i]].place == OCTET_PLACE_SAVED) == stored) {
            return i;
        }
    }
    return -1;
}

/* A buffer that one step makes and a later one reads. */
static inline int find_between(const octet_plan *plan) {
    uint64_t mask = check_all_reads(plan) & check_all_writes(plan) &
                    ~check_place_mask(plan, OCTET_PLACE_ARG, -1);
    for (int i = 0; i < plan->buffer_count; i++) {
        if (check_has(mask, i)) {
            return i;
        }
    }
    return -1;
}

static inline int find_quantized(const octet_plan *plan) {
    for (int i = 0; i < plan->tensor_count; i++) {
        if (check_is_quantized(&plan->tensors[i])) {
            return i;
        }
    }
    return -1;
}

static inline void unwrite(octet_plan *plan, int buffer) {
    for (int i = 0; i < plan->step_count; i++) {
        plan->steps[i].writes &= ~check_bit(buffer);
    }
}

/* ---- reads ----------------------------------------------------------------------------- */

static inline bool drop_a_write(check_chain *chain) {
    int buffer = find_between(fwd(chain));
    if (buffer >= 0) {
        unwrite(fwd(chain), buffer);
    }
    return buffer >= 0;
}

/* The last step first: what it reads is not there yet. */
static inline bool reverse_steps(check_chain *chain) {
    octet_plan *plan = bwd(chain);
    if (chain->count < 2 || plan->phases > 1 || find_between(plan) < 0) {
        return false;
    }
    octet_plan before = *plan;
    for (int i = 0; i < plan->step_count; i++) {
        plan->steps[i] = before.steps[plan->step_count - 1 - i];
    }
    return true;
}

static inline bool advance_a_step(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    if (plan->phases < 2 || plan->steps[0].op == OCTET_OP_COLLECTIVE) {
        return false;
    }
    plan->steps[0].phase = (uint8_t)(plan->phases - 1);
    return true;
}

static inline bool hasten_after_collective(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    int last = plan->step_count - 1;
    if (plan->phases < 2 || plan->steps[last].op == OCTET_OP_COLLECTIVE) {
        return false;
    }
    for (int i = 0; i <= last; i++) {
        plan->steps[i].phase = 0;
    }
    plan->phases = 1;
    return true;
}

static inline bool add_a_phase(check_chain *chain) {
    fwd(chain)->phases++;
    return true;
}

/* ---- writes ---------------------------------------------------------------------------- */

static inline bool write_twice(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    int buffer = find_between(plan);
    if (buffer >= 0) {
        plan->steps[plan->step_count - 1].writes |= check_bit(buffer);
        plan->steps[0].writes |= check_bit(buffer);
    }
    return buffer >= 0 && plan->step_count > 1;
}

static inline bool write_an_argument(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    int buffer = find_place(plan, OCTET_PLACE_ARG);
    plan->steps[0].writes |= check_bit(buffer);
    return true;
}

static inline bool write_a_restored_slot(check_chain *chain) {
    int buffer = chain->count > 1 ? find_place(bwd(chain), OCTET_PLACE_RESTORED) : -1;
    if (buffer >= 0) {
        bwd(chain)->steps[0].writes |= check_bit(buffer);
    }
    return buffer >= 0;
}

static inline bool shift_an_offset(check_chain *chain) {
    int buffer = find_place(fwd(chain), OCTET_PLACE_WORK);
    if (buffer >= 0) {
        fwd(chain)->buffers[buffer].offset += 16;
        fwd(chain)->workspace_bytes += 16;
    }
    return buffer >= 0;
}

static inline bool overlap_two(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    int first = -1;
    for (int i = 0; i < plan->buffer_count; i++) {
        octet_plan_buffer *buffer = &plan->buffers[i];
        if (buffer->bytes == 0 || buffer->place != OCTET_PLACE_SAVED) {
            continue;
        }
        if (first >= 0) {
            buffer->offset = plan->buffers[first].offset;
            return true;
        }
        first = i;
    }
    return false;
}

/* Two operands of one step. */
static inline bool overlap_two_of_a_step(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    for (int i = 0; i < plan->step_count; i++) {
        uint64_t used = plan->steps[i].reads | plan->steps[i].writes;
        for (int a = 0, first = -1; a < plan->buffer_count; a++) {
            octet_plan_buffer *buffer = &plan->buffers[a];
            if (!check_has(used, a) || !buffer->bytes || buffer->place != OCTET_PLACE_WORK) {
                continue;
            }
            if (first >= 0) {
                buffer->offset = plan->buffers[first].offset;
                return true;
            }
            first = a;
        }
    }
    return false;
}

static inline bool shrink_the_workspace(check_chain *chain) {
    int buffer = find_place(fwd(chain), OCTET_PLACE_WORK);
    fwd(chain)->workspace_bytes = buffer >= 0 ? fwd(chain)->buffers[buffer].offset : 0;
    return buffer >= 0;
}

static inline bool leave_a_port(check_chain *chain) {
    int buffer = find_place(fwd(chain), OCTET_PLACE_OUT);
    if (buffer < 0) {
        return false;
    }
    octet_plan_buffer *out = &fwd(chain)->buffers[buffer];
    out->offset += octet_dtype_bits((octet_dtype)out->dtype) / 8;
    return true;
}

/* ---- outputs --------------------------------------------------------------------------- */

static inline bool leave_an_output_unwritten(check_chain *chain) {
    unwrite(fwd(chain), find_place(fwd(chain), OCTET_PLACE_OUT));
    return true;
}

static inline bool promise_another_output(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    plan->outs[plan->out_count] = plan->outs[0];
    plan->out_count++;
    return true;
}

static inline bool call_an_output_an_alias(check_chain *chain) {
    fwd(chain)->outs[0].alias = 0;
    return true;
}

static inline bool call_an_argument_mutable(check_chain *chain) {
    fwd(chain)->args[0].is_mutable = 1;
    return true;
}

static inline bool compute_in_vain(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    int buffer = find_between(plan);
    for (int i = 0; buffer >= 0 && i < plan->step_count; i++) {
        plan->steps[i].reads &= ~check_bit(buffer);
    }
    return buffer >= 0 && plan->buffers[buffer].place == OCTET_PLACE_WORK;
}

static inline bool forget_an_exchange(check_chain *chain) {
    octet_plan *plan = fwd(chain);
    int step = find_op(plan, OCTET_OP_COLLECTIVE);
    int buffer = step < 0 ? OCTET_ABSENT : plan->steps[step].to;
    for (int i = 0; step >= 0 && i < plan->step_count; i++) {
        plan->steps[i].reads &= ~check_bit(buffer);
    }
    return step >= 0 && plan->buffers[buffer].place == OCTET_PLACE_EXCHANGE;
}

/* ---- slots ----------------------------------------------------------------------------- */

static inline bool drop_a_saved_slot(check_chain *chain) {
    if (fwd(chain)->saved_count == 0) {
        return false;
    }
    fwd(chain)->saved_count--;
    return true;
}

static inline bool swap_two_slots(check_chain *chain) {
    octet_plan *plan = bwd(chain);
    if (chain->count < 2 || plan->restored_count < 2) {
        return false;
    }
    uint8_t first = plan->restored[0];
    plan->restored[0] = plan->restored[1];
    plan->restored[1] = first;
    return true;
}

static inline bool look_elsewhere(check_chain *chain) {
    int buffer = chain->count > 1 ? find_place(bwd(chain), OCTET_PLACE_RESTORED) : -1;
    if (buffer >= 0) {
        bwd(chain)->buffers[buffer].offset += OCTET_ALIGN;
    }
    return buffer >= 0;
}

static inline bool ignore_a_slot(check_chain *chain) {
    octet_plan *plan = bwd(chain);
    if (chain->count < 2 || plan->restored_count == 0) {
        return false;
    }
    for (int i = 0; i < plan->step_count; i++) {
        plan->steps[i].reads &= ~check_bit(plan->restored[0]);
    }
    plan->saved_count = 0;
    return true;
}

static inline bool misread_a_slot(check_chain *chain) {
    int buffer = chain->count > 1 ? find_place(bwd(chain), OCTET_PLACE_RESTORED) : -1;
    if (buffer < 0) {
        return false;
    }
    octet_plan_tensor *tensor = &bwd(chain)->tensors[bwd(chain)->buffers[buffer].tensor];
    tensor->quantizer.format = tensor->quantizer.format == OCTET_E4M3 ? OCTET_E5M2 : OCTET_E4M3;
    return check_is_quantized(tensor) && tensor->quantizer.scheme < OCTET_NVFP4;
}

static inline bool take_what_was_not_saved(check_chain *chain) {
    octet_plan *plan = bwd(chain);
    if (chain->count < 2 || plan->arg_count == OCTET_PLAN_ARGS) {
        return false;
    }
    plan->args[plan->arg_count] = fwd(chain)->args[0];
    plan->arg_count++;
    return true;
}

/* ---- saved ----------------------------------------------------------------------------- */

static inline bool alias_without_mark(check_chain *chain) {
    int slot = find_slot(fwd(chain), false);
    if (slot >= 0) {
        octet_plan_buffer *alias = &fwd(chain)->buffers[fwd(chain)->saved[slot]];
        alias->place = OCTET_PLACE_SAVED;
        alias->port = 0;
    }
    return slot >= 0;
}

static inline bool save_scratch(check_chain *chain) {
    int slot = find_slot(fwd(chain), true);
    if (slot >= 0) {
        fwd(chain)->buffers[fwd(chain)->saved[slot]].place = OCTET_PLACE_WORK;
    }
    return slot >= 0;
}

static inline bool count_too_much(check_chain *chain) {
    fwd(chain)->saved_bytes += OCTET_ALIGN;
    return true;
}

static inline bool count_aliases_wrong(check_chain *chain) {
    fwd(chain)->aliased_bytes++;
    return true;
}

/* ---- shapes ---------------------------------------------------------------------------- */

static inline bool change_a_shape(check_chain *chain) {
    fwd(chain)->buffers[0].shape[0]++;
    return true;
}

static inline bool change_a_dim(check_chain *chain) {
    fwd(chain)->buffers[0].dims[0].mul++;
    return true;
}

static inline bool change_bytes(check_chain *chain) {
    fwd(chain)->args[0].bytes++;
    return true;
}

static inline bool take_anothers_buffer(check_chain *chain) {
    fwd(chain)->buffers[0].tensor = (uint8_t)(fwd(chain)->tensor_count - 1);
    return fwd(chain)->tensor_count > 1;
}

static inline bool lose_a_buffer(check_chain *chain) {
    int tensor = find_quantized(fwd(chain));
    for (int part = 0; tensor >= 0 && part < OCTET_PARTS; part++) {
        fwd(chain)->tensors[tensor].buffers[part] = OCTET_ABSENT;
    }
    return tensor >= 0;
}

static inline bool change_a_layout(check_chain *chain) {
    int tensor = find_quantized(fwd(chain));
    if (tensor >= 0) {
        fwd(chain)->tensors[tensor].cols.mul++;
    }
    return tensor >= 0;
}

#endif
