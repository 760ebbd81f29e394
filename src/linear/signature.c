/* signature.c - a Linear's plans as a front end indexes them. */
#include <string.h>

#include "plan/names.h"

size_t octet_group_print(char *text, size_t size, const octet_group *group) {
    oct_writer writer = oct_writer_start(text, size);
    if (!group) {
        return 0;
    }
    oct_write_name(&writer, group->name, group->form);
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

/* Adds a port to the groups: to the last one where it is a buffer of the same tensor, unless
 * the caller counts buffers one by one (flat). Example: a weight in MXFP8 with both directions
 * is four ports and one group; flat, it is four groups. `at` is the port as the caller counts
 * it. */
static void add_port(octet_group *groups, uint8_t *count, const octet_port *port, int at,
                     bool flat) {
    octet_group *last = *count ? &groups[*count - 1] : NULL;
    if (last && !flat && last->name == port->name && last->form == port->form) {
        last->count++;
        return;
    }
    groups[(*count)++] = (octet_group){.name = port->name,
                                       .form = port->form,
                                       .start = (uint8_t)at,
                                       .count = 1,
                                       .is_mutable = port->is_mutable};
}

static void add_arguments(octet_group *groups, uint8_t *count, const octet_plan *plan,
                          bool flat) {
    for (int i = 0; i < plan->arg_count; i++) {
        add_port(groups, count, &plan->args[i], i, flat);
        groups[*count - 1].quantizer = *quantizer_of(plan, OCTET_PLACE_ARG, i);
    }
}

/* The tensors that a call makes; gives how many buffers they have. An output that is an
 * argument (return_bias) is not made: the caller has it. */
static uint8_t add_outputs(octet_group *groups, uint8_t *count, const octet_plan *plan) {
    uint8_t made = 0;
    for (int i = 0; i < plan->out_count; i++) {
        if (plan->outs[i].alias == OCTET_ABSENT) {
            add_port(groups, count, &plan->outs[i], made++, false);
            groups[*count - 1].quantizer = *quantizer_of(plan, OCTET_PLACE_OUT, i);
        }
    }
    return made;
}

/* The group that a port belongs to. */
static uint8_t group_of(const octet_group *groups, int count, int port) {
    for (int i = 0; i < count; i++) {
        if (groups[i].start <= port && port < groups[i].start + groups[i].count) {
            return (uint8_t)i;
        }
    }
    return OCTET_ABSENT;
}

/* Whether a plan leaves bytes of its own for the next one. */
static bool saves_block(const octet_plan *plan) {
    bool found = false;
    for (int i = 0; i < plan->buffer_count; i++) {
        found = found || plan->buffers[i].place == OCTET_PLACE_SAVED;
    }
    return found;
}

/* Whether it reads the block of forward (0) or of backward (1). */
static bool reads_block(const octet_plan *plan, int of) {
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
 * - bytes in forward's block: false. The block is one tensor, and is saved as a whole. */
static bool saved_of(octet_saved *out, const octet_signature *s, const octet_plan *forward,
                     uint8_t buffer) {
    const octet_plan_buffer *b = &forward->buffers[buffer];
    if (b->place == OCTET_PLACE_ARG) {
        *out = (octet_saved){1, group_of(s->args, s->arg_count, b->port)};
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
    bool records = takes(backward, OCTET_NAME_AMAX);
    const bool lent[OCTET_LENTS] = {
        [OCTET_LENT_SCALE] = records || takes(backward, OCTET_NAME_SCALE),
        [OCTET_LENT_HISTORY] = records,
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

/* ---- phases ------------------------------------------------------------------------------ */

/* The phases that run before a collective: up to the last step that writes what it sends. An
 * input's bytes that forward saved are there from the start, so their gather runs beside the
 * product of the first phase. */
static uint8_t begin_of(const octet_plan *plan, int collective) {
    uint64_t sent = (uint64_t)1 << plan->steps[collective].from;
    uint8_t begin = 0;
    for (int i = 0; i < collective; i++) {
        if (plan->steps[i].writes & sent) {
            begin = (uint8_t)(plan->steps[i].phase + 1);
        }
    }
    return begin;
}

/* The first phase that reads what a collective brings. No phase of its own plan reads an
 * input's gradient, so its sum over ranks runs beside the weight's product. */
static uint8_t end_of(const octet_plan *plan, int collective) {
    uint64_t brought = (uint64_t)1 << plan->steps[collective].to;
    for (int i = collective + 1; i < plan->step_count; i++) {
        if (plan->steps[i].reads & brought) {
            return plan->steps[i].phase;
        }
    }
    return plan->phases;
}

/* Where a buffer lies: its place and port, and in a block which of its buffers it is. */
typedef struct spot {
    uint8_t place, port, item;
} spot;

static uint8_t item_of(const octet_plan *plan, uint8_t buffer) {
    uint8_t buffers[OCTET_PLAN_BUFFERS];
    int count = octet_block_buffers(buffers, plan), item = 0;
    while (item < count && buffers[item] != buffer) {
        item++;
    }
    return (uint8_t)item;
}

/* Finds a buffer that a collective sends or receives. One that this plan restored lies in an
 * earlier plan's block, and that plan may have restored it, too: so this goes back to the plan
 * that made it. Example: a later wgrad gathers x, which backward passed on and forward saved.
 */
static spot spot_of(const octet_chain *chain, int at, uint8_t buffer) {
    const octet_plan *plan = &chain->plans[at];
    const octet_plan_buffer *b = &plan->buffers[buffer];
    spot found = {b->place, b->port, 0};
    while (b->place == OCTET_PLACE_RESTORED && at > 0) {
        int slot = 0;
        while (slot < plan->restored_count && plan->restored[slot] != buffer) {
            slot++;
        }
        plan = &chain->plans[--at];
        buffer = plan->saved[slot];
        b = &plan->buffers[buffer];
    }
    if (b->place == OCTET_PLACE_SAVED) {
        found.item = item_of(plan, buffer);
    }
    return found;
}

int octet_collectives_of(octet_collective_call out[OCTET_PLAN_EXCHANGES],
                         const octet_chain *chain, int at) {
    const octet_plan *plan = &chain->plans[at];
    int count = 0;
    for (int i = 0; i < plan->step_count && count < OCTET_PLAN_EXCHANGES; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_COLLECTIVE) {
            spot from = spot_of(chain, at, step->from), to = spot_of(chain, at, step->to);
            out[count++] = (octet_collective_call){.kind = step->collective,
                                                   .phase = step->phase,
                                                   .from_place = from.place,
                                                   .from_port = from.port,
                                                   .to_place = to.place,
                                                   .to_port = to.port,
                                                   .from_item = from.item,
                                                   .to_item = to.item,
                                                   .begin = begin_of(plan, i),
                                                   .end = end_of(plan, i),
                                                   .chunk = step->chunk,
                                                   .chunks = plan->chunks};
        }
    }
    return count;
}

/* Adds a buffer's region, once; it is written if one of its buffers is. All of a block is one
 * region: steps may touch any part of it. */
static void add_region(octet_regions *out, const octet_plan_buffer *b, bool is_written) {
    uint8_t port = b->place == OCTET_PLACE_SAVED ? 0 : b->port;
    int at = 0;
    while (at < out->count && (out->at[at].place != b->place || out->at[at].port != port)) {
        at++;
    }
    if (at == out->count && at < OCTET_REGIONS) {
        out->at[out->count++] = (octet_region){.place = b->place, .port = port};
    }
    out->at[at].is_written = out->at[at].is_written || is_written;
}

void octet_phase_regions(octet_regions *out, const octet_plan *plan, int phase) {
    uint64_t reads = 0, writes = 0;
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->phase == phase && step->op != OCTET_OP_COLLECTIVE) {
            reads |= step->reads;
            writes |= step->writes;
        }
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        bool used = (reads | writes) >> i & 1;
        if (used && plan->buffers[i].place != OCTET_PLACE_WORK) {
            add_region(out, &plan->buffers[i], writes >> i & 1);
        }
    }
}

/* ---- forward ----------------------------------------------------------------------------- */

void octet_signature_of(octet_signature *out, const octet_chain *chain, bool flat) {
    const octet_plan *forward = &chain->plans[0], *backward = &chain->plans[1];
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    out->flat = flat;
    out->saves_block = saves_block(forward);
    out->has_backward = chain->count > 1;
    out->delays_wgrad = chain->count > 2;
    add_arguments(out->args, &out->arg_count, forward, flat);
    out->returned = add_outputs(out->outs, &out->out_count, forward);
    out->returned = (uint8_t)(out->returned + out->saves_block);
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

/* Arguments of backward come from one list of tensors, the pool. It has, in this order:
 *   the gradient that arrived;
 *   what forward saved besides its block;
 *   forward's block, where it saves one;
 *   what the layer lends.
 * Example: delayed scaling with raise_amax has dy at 0, the block at 1, the scales at 2 and the
 * history at 3. Backward reads 0, 2 and 1, and writes 3. */
typedef struct source {
    uint8_t name, form, is_mutable;
    uint8_t at; /* its index in the pool */
} source;

typedef struct sources {
    source at[OCTET_PLAN_ARGS];
    int count;
} sources;

/* The plans of a call, and forward's signature. */
typedef struct pair {
    octet_signature signature;
    const octet_plan *forward, *backward;
} pair;

/* Where in the pool what the layer lends begins. */
static int first_lent(const pair *p) {
    return 1 + p->signature.saved_count + p->signature.saves_block;
}

/* The index in the pool of what the layer lends under this name. */
static uint8_t lent_at(const pair *p, uint8_t name) {
    int at = 0;
    while (at < p->signature.lent_count && p->signature.lent[at] != lent_of(name)) {
        at++;
    }
    return (uint8_t)(first_lent(p) + at);
}

/* The slot that an argument of backward restores, as forward saved it; false: it has none. */
static bool restores(octet_saved *out, const pair *p, int port) {
    for (int i = 0; i < p->backward->restored_count; i++) {
        const octet_plan_buffer *b = &p->backward->buffers[p->backward->restored[i]];
        if (b->place == OCTET_PLACE_ARG && b->port == port) {
            return saved_of(out, &p->signature, p->forward, p->forward->saved[i]);
        }
    }
    return false;
}

static void add_source(sources *out, const octet_port *port, int at) {
    out->at[out->count++] = (source){port->name, port->form, port->is_mutable, (uint8_t)at};
}

/* Where each argument of backward comes from. A tensor that the caller has whole counts once,
 * whatever its buffers are; the others count buffer by buffer:
 * - the gradient, and what the layer lends: whole;
 * - an argument of forward that was saved: whole, or by buffers where the call is flat;
 * - an output of forward that was saved (a cached weight): by buffers, as it was returned. */
static void find_sources(sources *out, const pair *p) {
    octet_group groups[OCTET_PLAN_ARGS];
    uint8_t count = 0;
    out->count = 0;
    add_arguments(groups, &count, p->backward, false);
    for (int i = 0; i < count; i++) {
        const octet_group *g = &groups[i];
        for (int port = g->start; port < g->start + g->count; port++) {
            octet_saved saved;
            const octet_port *at = &p->backward->args[port];
            bool restored = restores(&saved, p, port);
            bool whole = !restored || (saved.is_argument && !p->signature.flat);
            if (restored) {
                add_source(out, at, 1 + find_saved(&p->signature, saved));
            } else if (g->name == OCTET_NAME_GRAD_OUTPUT) {
                add_source(out, at, 0);
            } else {
                add_source(out, at, lent_at(p, g->name));
            }
            if (whole) {
                break;
            }
        }
    }
}

/* Which tensors of the pool backward takes: those that it writes, and those that it reads, with
 * forward's block last. */
static void add_arguments_of_backward(octet_backward_signature *out, const pair *p,
                                      const sources *from) {
    for (int i = 0; i < from->count; i++) {
        const source *s = &from->at[i];
        if (s->is_mutable) {
            out->written[out->written_count++] = s->at;
            out->records = out->records || s->name == OCTET_NAME_AMAX;
        } else {
            out->read[out->read_count++] = s->at;
        }
    }
    if (reads_block(p->backward, 0)) {
        out->read[out->read_count++] = (uint8_t)(1 + p->signature.saved_count);
    }
}

/* Which of the tensors that backward makes is which gradient. One that goes to main_grad is
 * none of them: its group stays empty. */
static void add_grads(octet_backward_signature *out, const octet_plan *backward) {
    static const uint8_t names[OCTET_GRADS] = {OCTET_NAME_GRAD_INPUT, OCTET_NAME_GRAD_WEIGHT,
                                               OCTET_NAME_GRAD_BIAS, OCTET_NAME_GRAD_GAMMA,
                                               OCTET_NAME_GRAD_BETA};
    octet_group made[OCTET_PLAN_OUTS];
    uint8_t count = 0;
    out->returned = add_outputs(made, &count, backward);
    out->returned = (uint8_t)(out->returned + saves_block(backward));
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < OCTET_GRADS; j++) {
            if (made[i].name == names[j]) {
                out->grads[j] = made[i];
            }
        }
    }
}

/* What a later weight gradient takes: tensors that backward took, by their index in the pool;
 * the block of forward; and that of backward, which is not in the pool (OCTET_ABSENT).
 * main_grad is not among them: the caller finds it when the gradient is computed. Example:
 * MXFP8 takes the two blocks, with x in forward's and dy in backward's. */
static void add_later(octet_backward_signature *out, const pair *p, const sources *from,
                      const octet_plan *wgrad) {
    octet_group groups[OCTET_PLAN_ARGS];
    uint8_t count = 0;
    add_arguments(groups, &count, wgrad, false);
    for (int i = 0; i < count; i++) {
        uint8_t at = OCTET_ABSENT;
        for (int j = 0; j < from->count; j++) {
            bool same =
                from->at[j].name == groups[i].name && from->at[j].form == groups[i].form;
            at = same ? from->at[j].at : at;
        }
        if (groups[i].name != OCTET_NAME_MAIN_GRAD) {
            out->later[out->later_count++] = at;
        }
    }
    if (reads_block(wgrad, 0)) {
        out->later[out->later_count++] = (uint8_t)(1 + p->signature.saved_count);
    }
    if (reads_block(wgrad, 1)) {
        out->later[out->later_count++] = OCTET_ABSENT;
    }
}

void octet_backward_signature_of(octet_backward_signature *out, const octet_chain *chain,
                                 bool flat) {
    pair p = {.forward = &chain->plans[0], .backward = &chain->plans[1]};
    sources from;
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    if (chain->count < 2) {
        return;
    }
    octet_signature_of(&p.signature, chain, flat);
    find_sources(&from, &p);
    add_arguments_of_backward(out, &p, &from);
    add_grads(out, p.backward);
    out->phases = p.backward->phases;
    out->collective_count = (uint8_t)octet_collectives_of(out->collectives, chain, 1);
    if (chain->count > 2) {
        add_later(out, &p, &from, &chain->plans[2]);
    }
}
