/* check.c - whether a plan that somebody else made may be run.
 *
 * First its indices, so that the rest may follow them; then its numbers, made anew from its
 * dimensions; then who writes and reads what, and when; and for each step whether its operands
 * fit (check_steps.c). What passes reads and writes no byte outside of the memory it asks for.
 */
#include "plan/check.h"

#include <string.h>

#include "core/dtype.h"
#include "core/fail.h"
#include "format/prologue.h"
#include "quant/layout.h"
#include "quant/proto.h"
#include "quant/quantizer.h"

static octet_status wrong(octet_error *err, const char *what, int index, const char *why) {
    return oct_fail(err, OCTET_INVALID, "%s %d of the plan %s", what, index, why);
}

/* ---- fields: afterwards every index may be followed -------------------------------------- */

static bool is_index(uint8_t index, int count) {
    return index == OCTET_ABSENT || index < count;
}

static bool are_counts(const octet_plan *p) {
    return p->kind < OCTET_PLAN_KINDS && p->recipe < OCTET_RECIPES && p->phases > 0 &&
           p->phases <= OCTET_PLAN_STEPS + 1 && p->arg_count <= OCTET_PLAN_ARGS &&
           p->out_count <= OCTET_PLAN_OUTS && p->exchange_count <= OCTET_PLAN_EXCHANGES &&
           p->saved_count <= OCTET_PLAN_SAVED && p->restored_count <= OCTET_PLAN_SAVED &&
           p->tensor_count <= OCTET_PLAN_TENSORS && p->buffer_count <= OCTET_PLAN_BUFFERS &&
           p->step_count <= OCTET_PLAN_STEPS && p->chunks >= 1 &&
           p->chunks <= OCTET_MOST_CHUNKS && p->tp_size >= 1 && p->tp_size <= OCT_MOST_RANKS &&
           p->row_multiple >= 1 && p->chunk_multiple >= 1 && p->prologue < OCTET_PROLOGUES &&
           p->zero_centered <= 1 && p->by_rows <= 1 && !p->reserved && p->extents.m >= 0 &&
           p->extents.k >= 0 && p->extents.n >= 0;
}

static bool is_dim(const octet_dim *dim) {
    return dim->axis <= OCTET_AXIS_LEADING && dim->mul && dim->div && dim->align &&
           !dim->reserved;
}

static bool are_dims(const octet_dim dims[3], int ndim) {
    static const octet_dim none;
    bool good = ndim <= 3;
    for (int i = 0; i < 3 && good; i++) {
        good = i < ndim ? is_dim(&dims[i]) : memcmp(&dims[i], &none, sizeof none) == 0;
    }
    return good;
}

static bool is_port(const octet_port *port, int args) {
    return port->name < OCTET_NAMES && port->form < OCTET_FORMS && port->part < OCTET_PARTS &&
           octet_dtype_bits((octet_dtype)port->dtype) >= 8 &&
           are_dims(port->dims, port->ndim) && port->is_mutable <= 1 && !port->reserved &&
           is_index(port->alias, args);
}

static bool is_buffer(const octet_plan *p, const octet_plan_buffer *b) {
    const int ports[OCTET_PLACES] = {
        [OCTET_PLACE_ARG] = p->arg_count, [OCTET_PLACE_OUT] = p->out_count,
        [OCTET_PLACE_SAVED] = 1,          [OCTET_PLACE_RESTORED] = 2,
        [OCTET_PLACE_WORK] = 1,           [OCTET_PLACE_EXCHANGE] = p->exchange_count,
    };
    return b->tensor < p->tensor_count && b->part < OCTET_PARTS && b->place < OCTET_PLACES &&
           b->port < ports[b->place] && octet_dtype_bits((octet_dtype)b->dtype) >= 8 &&
           are_dims(b->dims, b->ndim) && b->ragged <= 1 && b->sized <= 1 &&
           (b->place == OCTET_PLACE_WORK || !(b->ragged | b->sized)) && b->offset >= 0 &&
           b->bytes >= 0;
}

static bool is_tensor(const octet_plan *p, const octet_plan_tensor *t) {
    bool good = t->name < OCTET_NAMES && t->form < OCTET_FORMS && !t->reserved &&
                octet_dtype_bits((octet_dtype)t->dtype) >= 8 && is_dim(&t->rows) &&
                is_dim(&t->cols) && octet_quantizer_check(&t->quantizer, NULL) == OCTET_OK &&
                (!oct_quantizer_is(&t->quantizer) || oct_dtype_is_high_precision(t->dtype));
    for (int part = 0; part < OCTET_PARTS; part++) {
        uint8_t at = t->buffers[part];
        good = good && is_index(at, p->buffer_count) &&
               (at == OCTET_ABSENT || p->buffers[at].part == part);
    }
    return good;
}

static bool is_step(const octet_plan *p, const octet_step *s) {
    const uint8_t tensors[] = {s->dst, s->a, s->b, s->a_copy, s->b_copy, s->sums, s->stats};
    const uint8_t buffers[] = {s->from, s->to,   s->bias,  s->scale,
                               s->amax, s->seed, s->gamma, s->scratch};
    uint64_t known = p->buffer_count < 64 ? ((uint64_t)1 << p->buffer_count) - 1 : UINT64_MAX;
    bool good = s->op < OCTET_OPS && s->phase < p->phases && s->a_use <= OCTET_USE_COL &&
                s->b_use <= OCTET_USE_COL && s->gemm < OCTET_GEMMS && s->accumulate <= 1 &&
                s->split <= 1 && s->native <= 1 && s->row_unread <= 1 && s->col_unread <= 1 &&
                s->invariant <= (s->op == OCTET_OP_GEMM && s->gemm != OCTET_WGRAD) &&
                s->apply <= 1 && (!s->apply || s->op == OCTET_OP_QUANTIZE) &&
                s->collective <= OCTET_ALL_REDUCE_MAX &&
                (s->collective != OCTET_COLLECTIVE_NONE) == (s->op == OCTET_OP_COLLECTIVE) &&
                is_index(s->chunk, p->chunks) && s->stream <= OCTET_STREAM_GRAD_WEIGHT &&
                !((s->reads | s->writes) & ~known);
    for (size_t i = 0; i < sizeof tensors; i++) {
        good = good && is_index(tensors[i], p->tensor_count);
    }
    for (size_t i = 0; i < sizeof buffers; i++) {
        good = good && is_index(buffers[i], p->buffer_count);
    }
    for (size_t i = 0; i < sizeof s->reserved; i++) {
        good = good && !s->reserved[i];
    }
    return good;
}

static octet_status check_ports(const octet_port *ports, int count, int args, const char *what,
                                octet_error *err) {
    octet_status status = OCTET_OK;
    for (int i = 0; i < count && !status; i++) {
        status = is_port(&ports[i], args) ? OCTET_OK
                                          : wrong(err, what, i, "has a field out of range");
    }
    return status;
}

static octet_status check_saved(const octet_plan *p, octet_error *err) {
    for (int i = 0; i < p->saved_count; i++) {
        uint8_t at = p->saved[i];
        if (at >= p->buffer_count || p->buffers[at].place == OCTET_PLACE_WORK) {
            return wrong(err, "saved buffer", i, "is no buffer that outlives the call");
        }
    }
    for (int i = 0; i < p->restored_count; i++) {
        if (p->restored[i] >= p->buffer_count) {
            return wrong(err, "restored buffer", i, "is no buffer");
        }
    }
    return OCTET_OK;
}

/* Entries that are not used are zero, as the library leaves them: plans are compared as bytes.
 */
static octet_status check_rest(const octet_plan *p, octet_error *err) {
    const struct {
        const void *start;
        size_t each;
        int used, all;
    } lists[] = {
        {p->args, sizeof p->args[0], p->arg_count, OCTET_PLAN_ARGS},
        {p->outs, sizeof p->outs[0], p->out_count, OCTET_PLAN_OUTS},
        {p->exchanges, sizeof p->exchanges[0], p->exchange_count, OCTET_PLAN_EXCHANGES},
        {p->saved, 1, p->saved_count, OCTET_PLAN_SAVED},
        {p->restored, 1, p->restored_count, OCTET_PLAN_SAVED},
        {p->tensors, sizeof p->tensors[0], p->tensor_count, OCTET_PLAN_TENSORS},
        {p->buffers, sizeof p->buffers[0], p->buffer_count, OCTET_PLAN_BUFFERS},
        {p->steps, sizeof p->steps[0], p->step_count, OCTET_PLAN_STEPS},
    };
    octet_status status = OCTET_OK;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && !status; i++) {
        const char *rest = (const char *)lists[i].start + (size_t)lists[i].used * lists[i].each;
        status = oct_need_zero(rest, (size_t)(lists[i].all - lists[i].used) * lists[i].each,
                               "what the plan does not use", err);
    }
    return status;
}

static octet_status check_fields(const octet_plan *p, octet_error *err) {
    octet_status status =
        are_counts(p) ? OCTET_OK
                      : oct_fail(err, OCTET_INVALID, "a count of the plan is out of range");
    status = status ? status
                    : oct_fields_check(oct_device_fields, &p->device, 0, "octet_device", err);
    status = status ? status : check_rest(p, err);
    status = status ? status : check_ports(p->args, p->arg_count, 0, "argument", err);
    status = status ? status : check_ports(p->outs, p->out_count, p->arg_count, "output", err);
    status = status ? status : check_ports(p->exchanges, p->exchange_count, 0, "exchange", err);
    for (int i = 0; i < p->buffer_count && !status; i++) {
        status = is_buffer(p, &p->buffers[i])
                     ? OCTET_OK
                     : wrong(err, "buffer", i, "has a field out of range");
    }
    for (int i = 0; i < p->tensor_count && !status; i++) {
        status = is_tensor(p, &p->tensors[i])
                     ? OCTET_OK
                     : wrong(err, "tensor", i, "has a field out of range");
    }
    for (int i = 0; i < p->step_count && !status; i++) {
        status = is_step(p, &p->steps[i]) ? OCTET_OK
                                          : wrong(err, "step", i, "has a field out of range");
    }
    return status ? status : check_saved(p, err);
}

/* ---- numbers ----------------------------------------------------------------------------- */

/* Parts that a tensor may do without: what is stacked or measured is no tensor yet. */
static bool may_lack(const octet_plan_tensor *t, int part) {
    return t->form == OCTET_FORM_STACKED ||
           (t->form == OCTET_FORM_MEASURED && !(OCT_AMAX_PARTS >> part & 1));
}

/* Whether a tensor has the buffers of its layout, each with the dimensions that follow from its
 * own rows and columns: they are placed anew, in a plan that has this tensor alone. */
static octet_status check_layout(octet_plan *room, const octet_plan *p, int index,
                                 octet_error *err) {
    oct_builder b = {.plan = room, .device = p->device};
    const octet_plan_tensor *t = &p->tensors[index];
    memset(room, 0, sizeof *room);
    room->tp_size = p->tp_size;
    room->tensor_count = 1;
    room->tensors[0] = *t;
    memset(room->tensors[0].buffers, OCTET_ABSENT, sizeof t->buffers);
    oct_place(&b, 0, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    for (int part = 0; part < OCTET_PARTS && !b.status; part++) {
        uint8_t has = t->buffers[part], wants = room->tensors[0].buffers[part];
        if (has == OCTET_ABSENT && wants != OCTET_ABSENT && !may_lack(t, part)) {
            return wrong(err, "tensor", index, "lacks a buffer of its layout");
        }
        if (has == OCTET_ABSENT) {
            continue;
        }
        const octet_plan_buffer *x = &p->buffers[has];
        const octet_plan_buffer *y = wants == OCTET_ABSENT ? NULL : &room->buffers[wants];
        if (!y || x->dtype != y->dtype || x->ndim != y->ndim ||
            memcmp(x->dims, y->dims, sizeof x->dims) != 0) {
            return wrong(err, "tensor", index, "has a buffer that is not of its layout");
        }
    }
    return b.status;
}

static octet_status check_numbers(const octet_plan *p, octet_error *err) {
    const octet_extents *e = &p->extents;
    if (e->m % p->row_multiple) {
        return oct_fail(err, OCTET_INVALID,
                        "the plan is bound to m=%lld k=%lld n=%lld, which it cannot have",
                        (long long)e->m, (long long)e->k, (long long)e->n);
    }
    octet_plan again = *p;
    octet_status status = oct_plan_check_chunks(p, e, err);
    status = status ? status : oct_plan_number(&again, err);
    if (!status && memcmp(&again, p, sizeof again) != 0) {
        status = oct_fail(err, OCTET_INVALID,
                          "the plan's shapes, bytes or offsets are not those of its dimensions "
                          "at m=%lld k=%lld n=%lld",
                          (long long)e->m, (long long)e->k, (long long)e->n);
    }
    for (int i = 0; i < p->tensor_count && !status; i++) {
        status = check_layout(&again, p, i, err);
    }
    return status;
}

/* The port of a buffer; NULL: it lies in an arena. */
static const octet_port *port_of(const octet_plan *p, const octet_plan_buffer *b) {
    return b->place == OCTET_PLACE_ARG        ? &p->args[b->port]
           : b->place == OCTET_PLACE_OUT      ? &p->outs[b->port]
           : b->place == OCTET_PLACE_EXCHANGE ? &p->exchanges[b->port]
                                              : NULL;
}

static octet_status check_places(const octet_plan *p, octet_error *err) {
    for (int i = 0; i < p->buffer_count; i++) {
        const octet_plan_buffer *b = &p->buffers[i];
        const octet_port *port = port_of(p, b);
        int size = octet_dtype_bits((octet_dtype)b->dtype) / 8;
        if (port && (b->bytes > port->bytes || b->offset > port->bytes - b->bytes ||
                     b->offset % size || b->dtype != port->dtype)) {
            return wrong(err, "buffer", i, "does not lie in its port");
        }
        if (b->place == OCTET_PLACE_RESTORED &&
            (b->offset % OCTET_ALIGN || b->offset > INT64_MAX - b->bytes)) {
            return wrong(err, "buffer", i, "does not lie in its arena");
        }
        /* A matrix that is the whole argument may have a stride; a part of one may not. */
        if (port && b->bytes != port->bytes && b->ndim > 1) {
            return wrong(err, "buffer", i, "is a matrix that is a part of its port");
        }
    }
    return OCTET_OK;
}

/* ---- order ------------------------------------------------------------------------------- */

/* Buffers of some places, as bits. */
static uint64_t in_place(const octet_plan *p, octet_place place) {
    uint64_t bits = 0;
    for (int i = 0; i < p->buffer_count; i++) {
        bits |= p->buffers[i].place == place ? (uint64_t)1 << i : 0;
    }
    return bits;
}

/* Two buffers that share bytes of one port. */
static bool collide(const octet_plan_buffer *x, const octet_plan_buffer *y) {
    return x->place == y->place && x->port == y->port && x->bytes && y->bytes &&
           x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

/* Buffers of the workspace that share bytes with what a step writes, as bits: what they had is
 * gone. */
static uint64_t spoiled(const octet_plan *p, const octet_step *step) {
    uint64_t bits = 0;
    for (int i = 0; i < p->buffer_count; i++) {
        const octet_plan_buffer *b = &p->buffers[i];
        for (int j = 0; (step->writes >> i & 1) && j < p->buffer_count; j++) {
            bool lost = j != i && b->place == OCTET_PLACE_WORK && collide(b, &p->buffers[j]);
            bits |= lost ? (uint64_t)1 << j : 0;
        }
    }
    return bits;
}

/* What a step writes, the caller lets it write, and no other buffer has a part in it; of the
 * workspace, none that the step reads or writes, too. */
static octet_status check_writes(const octet_plan *p, int step, octet_error *err) {
    if (spoiled(p, &p->steps[step]) & (p->steps[step].reads | p->steps[step].writes)) {
        return wrong(err, "step", step, "writes a buffer that overlaps another");
    }
    for (int i = 0; i < p->buffer_count; i++) {
        const octet_plan_buffer *b = &p->buffers[i];
        if (!(p->steps[step].writes >> i & 1)) {
            continue;
        }
        bool open = b->place == OCTET_PLACE_ARG        ? p->args[b->port].is_mutable
                    : b->place == OCTET_PLACE_OUT      ? p->outs[b->port].alias == OCTET_ABSENT
                    : b->place == OCTET_PLACE_RESTORED ? false
                                                       : true;
        if (!open) {
            return wrong(err, "step", step, "writes what is the caller's to read");
        }
        for (int j = 0; j < p->buffer_count; j++) {
            if (j != i && b->place != OCTET_PLACE_WORK && collide(b, &p->buffers[j])) {
                return wrong(err, "step", step, "writes a buffer that overlaps another");
            }
        }
    }
    return OCTET_OK;
}

/* Notes that casts leave for products are in the masks of both, besides what the operands say.
 */
static bool are_masks(const octet_plan *p, const octet_step *made, int index) {
    const octet_step *step = &p->steps[index];
    uint64_t reads = step->reads ^ made->reads, writes = step->writes ^ made->writes;
    uint64_t notes = 0, amaxes = 0;
    for (int i = 0; i < p->step_count; i++) {
        const octet_step *s = &p->steps[i];
        notes |= s->op == OCTET_OP_QUANTIZE && s->scratch != OCTET_ABSENT
                     ? (uint64_t)1 << s->scratch
                     : 0;
    }
    for (int i = 0; i < p->buffer_count; i++) {
        amaxes |= OCT_AMAX_PARTS >> p->buffers[i].part & 1 ? (uint64_t)1 << i : 0;
    }
    bool casts = step->op == OCTET_OP_QUANTIZE && step->scratch != OCTET_ABSENT;
    reads &= ~(step->op == OCTET_OP_GEMM ? notes : casts ? amaxes : 0);
    return !reads && writes == (casts ? (uint64_t)1 << step->scratch : 0);
}

static octet_status check_order(const octet_plan *p, octet_plan *room, octet_error *err) {
    uint64_t given = in_place(p, OCTET_PLACE_ARG) | in_place(p, OCTET_PLACE_RESTORED);
    uint64_t work = in_place(p, OCTET_PLACE_WORK), there = given, arriving = 0;
    oct_builder b = {.plan = room, .device = p->device};
    uint8_t phase = 0;
    octet_status status = OCTET_OK;
    *room = *p;
    for (int i = 0; i < p->step_count && !status; i++) {
        const octet_step *step = &p->steps[i];
        bool collective = step->op == OCTET_OP_COLLECTIVE;
        if (step->phase < phase || step->phase > phase + 1) {
            return wrong(err, "step", i, "is of a phase that does not follow");
        }
        if (step->phase != phase) { /* the workspace lives for one phase */
            there = (there | arriving) & ~work;
            arriving = 0;
            phase = step->phase;
        }
        room->step_count = (uint8_t)(i + 1);
        oct_step_done(&b, &room->steps[i]);
        if (!are_masks(p, &room->steps[i], i)) {
            return wrong(err, "step", i, "says other reads and writes than its operands have");
        }
        if (step->reads & ~there) {
            return wrong(err, "step", i, "reads what no step before it has written");
        }
        status = check_writes(p, i, err);
        arriving |= collective ? step->writes : 0;
        there = collective ? there : (there & ~spoiled(p, step)) | step->writes;
        if (collective && (step->writes | step->reads) & work) {
            return wrong(err, "step", i, "exchanges what lies in the workspace");
        }
    }
    bool ends = p->phases == phase + 1;
    return status ? status
           : ends ? OCTET_OK
                  : oct_fail(err, OCTET_INVALID, "the plan has %u phases, its steps %d",
                             p->phases, phase + 1);
}

octet_status octet_plan_check(const octet_plan *plan, octet_error *err) {
    octet_plan room;
    octet_status status = oct_need(plan, "plan", err);
    status = status ? status : oct_need_size(plan->size, sizeof *plan, "octet_plan", err);
    status = status ? status : check_fields(plan, err);
    for (int i = 0; !status && i < plan->step_count; i++) {
        oct_checking at = {plan, err, i};
        status = oct_check_operands(&at);
    }
    status = status ? status : check_numbers(plan, err);
    status = status ? status : check_places(plan, err);
    return status ? status : check_order(plan, &room, err);
}
