/* signature.c - the plans of a call as a front end indexes them. */
#include <string.h>

#include "plan/names.h"

size_t octet_call_tensor_print(char *text, size_t size, const octet_call_tensor *tensor) {
    oct_writer writer = oct_writer_start(text, size);
    if (!tensor) {
        return 0;
    }
    oct_write_name(&writer, tensor->name, tensor->form);
    return writer.length;
}

/* ---- tensors ----------------------------------------------------------------------------- */

/* The quantizer of the tensor that a port is part of. */
static const octet_quantizer *quantizer_of(const octet_plan *plan, octet_place place,
                                           int port) {
    static const octet_quantizer plain;
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        if (b->place == place && b->port == port) {
            return &plan->tensors[b->tensor].quantizer;
        }
    }
    return &plain;
}

/* Adds a port to the tensors: to the last one where it is a buffer of the same, unless
 * the caller counts buffers one by one (flat). Example: a weight in MXFP8 with both directions
 * is four ports and one tensor; flat, it is four. `at` is the port as the caller counts
 * it. */
static void add_port(octet_call_tensor *tensors, uint8_t *count, const octet_port *port, int at,
                     bool flat) {
    octet_call_tensor *last = *count ? &tensors[*count - 1] : NULL;
    if (last && !flat && last->name == port->name && last->form == port->form) {
        last->count++;
        return;
    }
    tensors[(*count)++] = (octet_call_tensor){.name = port->name,
                                              .form = port->form,
                                              .start = (uint8_t)at,
                                              .count = 1,
                                              .is_mutable = port->is_mutable};
}

static void add_arguments(octet_call_tensor *tensors, uint8_t *count, const octet_plan *plan,
                          bool flat) {
    for (int i = 0; i < plan->arg_count; i++) {
        add_port(tensors, count, &plan->args[i], i, flat);
        tensors[*count - 1].quantizer = *quantizer_of(plan, OCTET_PLACE_ARG, i);
    }
}

/* The tensors that a call makes; gives how many buffers they have. An output that is an
 * argument (return_bias) is not made: the caller has it. */
static uint8_t add_outputs(octet_call_tensor *tensors, uint8_t *count, const octet_plan *plan) {
    uint8_t made = 0;
    for (int i = 0; i < plan->out_count; i++) {
        if (plan->outs[i].alias == OCTET_ABSENT) {
            add_port(tensors, count, &plan->outs[i], made++, false);
            tensors[*count - 1].quantizer = *quantizer_of(plan, OCTET_PLACE_OUT, i);
        }
    }
    return made;
}

/* The tensor that a port belongs to. */
static uint8_t tensor_of(const octet_call_tensor *tensors, int count, int port) {
    for (int i = 0; i < count; i++) {
        if (tensors[i].start <= port && port < tensors[i].start + tensors[i].count) {
            return (uint8_t)i;
        }
    }
    return OCTET_ABSENT;
}

/* Whether a plan leaves bytes of its own for the next one. */
static bool saves_arena(const octet_plan *plan) {
    bool found = false;
    for (int i = 0; i < plan->buffer_count; i++) {
        found = found || plan->buffers[i].place == OCTET_PLACE_SAVED;
    }
    return found;
}

/* Whether it reads the arena of forward (0) or of backward (1). */
static bool reads_arena(const octet_plan *plan, int of) {
    bool found = false;
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        found = found || (b->place == OCTET_PLACE_RESTORED && b->port == of);
    }
    return found;
}

/* ---- what lives until backward ----------------------------------------------------------- */

/* An output's place among the tensors that a call returns, which has no arguments in it. */
static uint8_t returned_index(const octet_plan *plan, int out) {
    uint8_t index = 0;
    for (int i = 0; i < out; i++) {
        index = (uint8_t)(index + (plan->outs[i].alias == OCTET_ABSENT));
    }
    return index;
}

/* A buffer that forward saved, as a front end finds it. There are three cases:
 * - an argument, such as x without a recipe: that argument must live until backward;
 * - an output, such as a weight that was cast into the caller's cache: likewise;
 * - bytes in forward's arena: false. The arena is one tensor, and is saved as a whole. */
static bool saved_of(octet_saved *out, const octet_signature *s, const octet_plan *forward,
                     uint8_t buffer) {
    const octet_plan_buffer *b = &forward->buffers[buffer];
    if (b->place == OCTET_PLACE_ARG) {
        *out = (octet_saved){1, tensor_of(s->args, s->arg_count, b->port)};
    } else if (b->place == OCTET_PLACE_OUT) {
        *out = (octet_saved){0, returned_index(forward, b->port)};
    }
    return b->place == OCTET_PLACE_ARG || b->place == OCTET_PLACE_OUT;
}

/* Its index in `saved`; saved_count: it is not there. */
static int find_saved(const octet_signature *s, octet_saved wanted) {
    int at = 0;
    while (at < s->saved_count && (s->saved[at].is_argument != wanted.is_argument ||
                                   s->saved[at].index != wanted.index)) {
        at++;
    }
    return at;
}

/* A quantized argument is saved once, whichever of its buffers backward reads. */
static void add_saved(octet_signature *s, const octet_plan *forward) {
    for (int i = 0; i < forward->saved_count; i++) {
        octet_saved saved;
        if (saved_of(&saved, s, forward, forward->saved[i]) &&
            find_saved(s, saved) == s->saved_count) {
            s->saved[s->saved_count++] = saved;
        }
    }
}

/* ---- what a layer lends ------------------------------------------------------------------ */

/* Whether a plan has an argument of that name. */
static bool takes(const octet_plan *plan, octet_plan_name name) {
    bool found = false;
    for (int i = 0; i < plan->arg_count; i++) {
        found = found || plan->args[i].name == name;
    }
    return found;
}

/* What backward needs that is not a tensor of the call but live state of its layer. A backward
 * that raises amaxes gets their history, and the scales, too, even if it reads none: they are
 * updated right after it. Example: delayed scaling with raise_amax lends SCALE and HISTORY. */
static void add_lent(octet_signature *s, const octet_plan *backward) {
    bool raises = takes(backward, OCTET_NAME_AMAX);
    const bool lent[OCTET_LENTS] = {
        [OCTET_LENT_SCALE] = raises || takes(backward, OCTET_NAME_SCALE),
        [OCTET_LENT_HISTORY] = raises,
        [OCTET_LENT_SEED] = takes(backward, OCTET_NAME_SEED),
        [OCTET_LENT_MAIN_GRAD] = takes(backward, OCTET_NAME_MAIN_GRAD),
        [OCTET_LENT_BIAS_MAIN_GRAD] = takes(backward, OCTET_NAME_BIAS_MAIN_GRAD),
        [OCTET_LENT_QUEUE] = s->delays_wgrad,
    };
    for (int i = 0; i < OCTET_LENTS; i++) {
        if (lent[i]) {
            s->lent[s->lent_count++] = (uint8_t)i;
        }
    }
}

/* Whether amaxes are an output. With raise_amax they are an argument instead. */
static bool returns_amaxes(const octet_plan *plan) {
    bool found = false;
    for (int i = 0; i < plan->out_count; i++) {
        found = found || plan->outs[i].name == OCTET_NAME_AMAX;
    }
    return found;
}

static octet_lent lent_of(uint8_t name) {
    return name == OCTET_NAME_SCALE            ? OCTET_LENT_SCALE
           : name == OCTET_NAME_AMAX           ? OCTET_LENT_HISTORY
           : name == OCTET_NAME_MAIN_GRAD      ? OCTET_LENT_MAIN_GRAD
           : name == OCTET_NAME_BIAS_MAIN_GRAD ? OCTET_LENT_BIAS_MAIN_GRAD
                                               : OCTET_LENT_SEED;
}

/* ---- forward ----------------------------------------------------------------------------- */

void octet_signature_of(octet_signature *out, const octet_chain *chain, bool flat) {
    const octet_plan *forward = &chain->plans[0], *backward = &chain->plans[1];
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    out->flat = flat;
    out->saves_arena = saves_arena(forward);
    out->has_backward = chain->count > 1;
    out->delays_wgrad = chain->count > 2;
    add_arguments(out->args, &out->arg_count, forward, flat);
    out->returned = add_outputs(out->outs, &out->out_count, forward);
    out->returned = (uint8_t)(out->returned + out->saves_arena);
    add_saved(out, forward);
    out->phases = forward->phases;
    out->collective_count = (uint8_t)octet_collectives_of(out->collectives, chain, 0);
    out->returns_amaxes = returns_amaxes(forward);
    if (out->has_backward) {
        add_lent(out, backward);
        out->returns_amaxes = out->returns_amaxes || returns_amaxes(backward);
    }
}

/* ---- backward ---------------------------------------------------------------------------- */

/* Arguments of backward come from one list of tensors, the sources. It has, in this order:
 *   the gradient that arrived;
 *   what forward saved besides its arena;
 *   forward's arena, where it saves one;
 *   what the layer lends.
 * Example: delayed scaling with raise_amax has dy at 0, the arena at 1, the scales at 2 and the
 * history at 3. Backward reads 0, 2 and 1, and writes 3. */
typedef struct taken {
    uint8_t name, form, is_mutable;
    uint8_t source; /* its index among the sources */
} taken;

typedef struct takings {
    taken at[OCTET_PLAN_ARGS];
    int count;
} takings;

/* The plans of a call, and forward's signature. */
typedef struct both {
    octet_signature signature;
    const octet_plan *forward, *backward;
} both;

/* Where among the sources what the layer lends begins. */
static int first_lent(const both *p) {
    return 1 + p->signature.saved_count + p->signature.saves_arena;
}

/* The source that the layer lends under this name. */
static uint8_t lent_at(const both *p, uint8_t name) {
    int at = 0;
    while (at < p->signature.lent_count && p->signature.lent[at] != lent_of(name)) {
        at++;
    }
    return (uint8_t)(first_lent(p) + at);
}

/* The saved buffer that an argument of backward restores; false: it restores none. */
static bool restores(octet_saved *out, const both *p, int port) {
    for (int i = 0; i < p->backward->restored_count; i++) {
        const octet_plan_buffer *b = &p->backward->buffers[p->backward->restored[i]];
        if (b->place == OCTET_PLACE_ARG && b->port == port) {
            return saved_of(out, &p->signature, p->forward, p->forward->saved[i]);
        }
    }
    return false;
}

static void take(takings *out, const octet_port *port, int source) {
    out->at[out->count++] = (taken){port->name, port->form, port->is_mutable, (uint8_t)source};
}

/* Where each argument of backward comes from. A tensor that the caller has whole counts once,
 * whatever its buffers are; the others count buffer by buffer:
 * - the gradient, and what the layer lends: whole;
 * - an argument of forward that was saved: whole, or by buffers where the call is flat;
 * - an output of forward that was saved (a cached weight): by buffers, as it was returned. */
static void find_takings(takings *out, const both *p) {
    octet_call_tensor tensors[OCTET_PLAN_ARGS];
    uint8_t count = 0;
    out->count = 0;
    add_arguments(tensors, &count, p->backward, false);
    for (int i = 0; i < count; i++) {
        const octet_call_tensor *g = &tensors[i];
        for (int port = g->start; port < g->start + g->count; port++) {
            octet_saved saved;
            const octet_port *at = &p->backward->args[port];
            bool restored = restores(&saved, p, port);
            bool whole = !restored || (saved.is_argument && !p->signature.flat);
            if (restored) {
                take(out, at, 1 + find_saved(&p->signature, saved));
            } else if (g->name == OCTET_NAME_GRAD_OUTPUT) {
                take(out, at, 0);
            } else {
                take(out, at, lent_at(p, g->name));
            }
            if (whole) {
                break;
            }
        }
    }
}

/* Which sources backward takes: those that it writes, and those that it reads, with
 * forward's arena last. */
static void add_arguments_of_backward(octet_backward_signature *out, const both *p,
                                      const takings *from) {
    for (int i = 0; i < from->count; i++) {
        const taken *s = &from->at[i];
        if (s->is_mutable) {
            out->written[out->written_count++] = s->source;
            out->raises_amaxes = out->raises_amaxes || s->name == OCTET_NAME_AMAX;
        } else {
            out->read[out->read_count++] = s->source;
        }
    }
    if (reads_arena(p->backward, 0)) {
        out->read[out->read_count++] = (uint8_t)(1 + p->signature.saved_count);
    }
}

/* Which of the tensors that backward makes is which gradient. One that goes to main_grad is
 * none of them: its tensor stays empty. */
static void add_grads(octet_backward_signature *out, const octet_plan *backward) {
    static const uint8_t names[OCTET_GRADS] = {OCTET_NAME_GRAD_INPUT, OCTET_NAME_GRAD_WEIGHT,
                                               OCTET_NAME_GRAD_BIAS, OCTET_NAME_GRAD_GAMMA,
                                               OCTET_NAME_GRAD_BETA};
    octet_call_tensor made[OCTET_PLAN_OUTS];
    uint8_t count = 0;
    out->returned = add_outputs(made, &count, backward);
    out->returned = (uint8_t)(out->returned + saves_arena(backward));
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < OCTET_GRADS; j++) {
            if (made[i].name == names[j]) {
                out->grads[j] = made[i];
            }
        }
    }
}

/* What a later weight gradient takes: sources that backward took; the arena of
 * forward; and that of backward, which is no source (OCTET_ABSENT).
 * main_grad is not among them: the caller finds it when the gradient is computed. Example:
 * MXFP8 takes the two arenas, with x in forward's and dy in backward's. */
static void add_later(octet_backward_signature *out, const both *p, const takings *from,
                      const octet_plan *wgrad) {
    octet_call_tensor tensors[OCTET_PLAN_ARGS];
    uint8_t count = 0;
    add_arguments(tensors, &count, wgrad, false);
    for (int i = 0; i < count; i++) {
        uint8_t at = OCTET_ABSENT;
        for (int j = 0; j < from->count; j++) {
            bool same =
                from->at[j].name == tensors[i].name && from->at[j].form == tensors[i].form;
            at = same ? from->at[j].source : at;
        }
        if (tensors[i].name != OCTET_NAME_MAIN_GRAD) {
            out->later[out->later_count++] = at;
        }
    }
    if (reads_arena(wgrad, 0)) {
        out->later[out->later_count++] = (uint8_t)(1 + p->signature.saved_count);
    }
    if (reads_arena(wgrad, 1)) {
        out->later[out->later_count++] = OCTET_ABSENT;
    }
}

void octet_backward_signature_of(octet_backward_signature *out, const octet_chain *chain,
                                 bool flat) {
    both p = {.forward = &chain->plans[0], .backward = &chain->plans[1]};
    takings from;
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    if (chain->count < 2) {
        return;
    }
    octet_signature_of(&p.signature, chain, flat);
    find_takings(&from, &p);
    add_arguments_of_backward(out, &p, &from);
    add_grads(out, p.backward);
    out->phases = p.backward->phases;
    out->collective_count = (uint8_t)octet_collectives_of(out->collectives, chain, 1);
    if (chain->count > 2) {
        add_later(out, &p, &from, &chain->plans[2]);
    }
}
