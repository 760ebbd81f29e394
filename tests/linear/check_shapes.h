/* check_shapes.h - dims, numbers and bytes agree; layouts have all their buffers. */
#ifndef OCTET_CHECK_SHAPES_H
#define OCTET_CHECK_SHAPES_H

#include "check_view.h"

/* The dims as numbers; -1 where they cannot be evaluated. */
static inline int64_t check_dim(const octet_plan *plan, const octet_dim *dim) {
    int64_t value = -1;
    return octet_dim_eval(&value, dim, &plan->extents, NULL) == OCTET_OK ? value : -1;
}

/* What a port and a buffer have in common. */
typedef struct check_extent {
    const octet_dim *dims;
    const int64_t *shape;
    int64_t bytes;
    int ndim, dtype;
    bool ragged; /* no bytes unless a dim is rounded up */
    bool sized;  /* its bytes are its device's, and another law's: check_scratch_bytes */
} check_extent;

static inline bool check_rounds_up(const octet_plan *plan, const check_extent *extent) {
    bool rounds = false;
    for (int i = 0; i < extent->ndim; i++) {
        octet_dim up = extent->dims[i], exact = extent->dims[i];
        exact.align = 1;
        rounds = rounds || check_dim(plan, &up) != check_dim(plan, &exact);
    }
    return rounds;
}

static inline bool check_numbers(const octet_plan *plan, const check_extent *extent) {
    uint64_t bytes = (uint64_t)octet_dtype_bits((octet_dtype)extent->dtype) / 8;
    for (int i = 0; i < extent->ndim; i++) {
        if (extent->shape[i] != check_dim(plan, &extent->dims[i])) {
            return false;
        }
        bytes *= (uint64_t)extent->shape[i];
    }
    bool none = extent->ragged && !check_rounds_up(plan, extent);
    return extent->sized || extent->bytes == (none ? 0 : (int64_t)bytes);
}

static inline bool check_port_numbers(const octet_plan *plan, const octet_port *port) {
    check_extent extent = {port->dims,  port->shape, port->bytes, port->ndim,
                           port->dtype, false,       false};
    return check_numbers(plan, &extent);
}

static inline void check_port_shapes(check_report *report, const octet_plan *plan) {
    for (int i = 0; i < plan->arg_count; i++) {
        CHECK_LAW(report, LAW_SHAPES, check_port_numbers(plan, &plan->args[i]),
                  "argument %d: dims, shape and bytes disagree", i);
    }
    for (int i = 0; i < plan->out_count; i++) {
        CHECK_LAW(report, LAW_SHAPES, check_port_numbers(plan, &plan->outs[i]),
                  "output %d: dims, shape and bytes disagree", i);
    }
    for (int i = 0; i < plan->exchange_count; i++) {
        CHECK_LAW(report, LAW_SHAPES, check_port_numbers(plan, &plan->exchanges[i]),
                  "exchange %d: dims, shape and bytes disagree", i);
    }
}

static inline const octet_port *check_port_of(const octet_plan *plan,
                                              const octet_plan_buffer *buffer) {
    switch (buffer->place) {
    case OCTET_PLACE_ARG:
        return &plan->args[buffer->port];
    case OCTET_PLACE_OUT:
        return &plan->outs[buffer->port];
    case OCTET_PLACE_EXCHANGE:
        return &plan->exchanges[buffer->port];
    default:
        return NULL;
    }
}

/* A buffer that is its whole port looks like it; one of several in a port shares its dtype. */
static inline bool check_fits_port(const octet_plan *plan, const octet_plan_buffer *buffer,
                                   const octet_port *port) {
    const octet_plan_tensor *tensor = &plan->tensors[buffer->tensor];
    bool whole = buffer->bytes == port->bytes && buffer->ndim == port->ndim;
    return buffer->dtype == port->dtype &&
           (!whole || (buffer->part == port->part && tensor->name == port->name &&
                       tensor->form == port->form &&
                       memcmp(buffer->dims, port->dims, sizeof port->dims) == 0));
}

static inline void check_buffer_shapes(check_report *report, const octet_plan *plan) {
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *buffer = &plan->buffers[i];
        const octet_port *port = check_port_of(plan, buffer);
        check_extent extent = {buffer->dims,      buffer->shape, buffer->bytes,
                               buffer->ndim,      buffer->dtype, buffer->ragged != 0,
                               buffer->sized != 0};
        CHECK_LAW(report, LAW_SHAPES, check_numbers(plan, &extent),
                  "%s: dims, shape and bytes disagree", check_name(plan, i));
        CHECK_LAW(report, LAW_SHAPES, !port || check_fits_port(plan, buffer, port),
                  "%s does not look like the port it is in", check_name(plan, i));
        CHECK_LAW(report, LAW_SHAPES, plan->tensors[buffer->tensor].buffers[buffer->part] == i,
                  "%s is no buffer of its tensor", check_name(plan, i));
    }
}

/* ---- tensors --------------------------------------------------------------------------- */

/* Its buffers in flatten order: parts of a layout, or the one buffer of a plain tensor. */
typedef struct check_parts_list {
    octet_proto buffers[OCTET_MAX_BUFFERS];
    uint8_t parts[OCTET_MAX_BUFFERS];
    int count;
} check_parts_list;

static inline bool check_list_parts(check_parts_list *out, const octet_quantizer *quantizer,
                                    octet_dtype dtype, const int64_t *shape) {
    octet_proto proto = octet_proto_make(dtype, 2, shape);
    octet_layout layout = {.count = 1};
    proto.quantizer = *quantizer;
    memset(out, 0, sizeof *out);
    if (quantizer->scheme != OCTET_SCHEME_NONE &&
        octet_layout_make(&layout, quantizer, NULL) != OCTET_OK) {
        return false;
    }
    out->count = octet_proto_buffer_count(&proto);
    bool good = out->count == layout.count;
    for (int i = 0; good && i < out->count; i++) {
        out->parts[i] = layout.buffers[i].part;
        good = octet_proto_buffer(&out->buffers[i], &proto, i, NULL) == OCTET_OK;
    }
    return good;
}

static inline bool check_like_proto(const octet_plan_buffer *buffer, const octet_proto *proto) {
    uint64_t want = 1, have = 1;
    bool same = buffer->dtype == proto->dtype;
    for (int i = 0; i < proto->rank; i++) {
        want *= (uint64_t)proto->shape[i];
        same = same && (buffer->ndim != proto->rank || buffer->shape[i] == proto->shape[i]);
    }
    for (int i = 0; i < buffer->ndim; i++) {
        have *= (uint64_t)buffer->shape[i];
    }
    return same && want == have;
}

/* Ports of a tensor come in flatten order. */
static inline bool check_in_order(const octet_plan *plan, int before, int after) {
    const octet_plan_buffer *a = &plan->buffers[before], *b = &plan->buffers[after];
    bool ports = a->place == OCTET_PLACE_ARG || a->place == OCTET_PLACE_OUT;
    return !ports || a->place != b->place || a->port < b->port;
}

/* Whether a form of a tensor may do without a part: measuring makes amaxes alone, and of shards
 * that are stacked, (ranks, ...), there are only the parts that are no tensor as they come. */
static inline bool check_may_lack(const octet_plan_tensor *tensor, int part) {
    bool amax = part == OCTET_PART_ROW_AMAX || part == OCTET_PART_COL_AMAX;
    return tensor->form == OCTET_FORM_STACKED ||
           (tensor->form == OCTET_FORM_MEASURED && check_is_quantized(tensor) && !amax);
}

/* Every buffer of the layout, and no other. */
static inline void check_layout(check_report *report, const octet_plan *plan, int index) {
    const octet_plan_tensor *tensor = &plan->tensors[index];
    int64_t shape[2] = {check_dim(plan, &tensor->rows), check_dim(plan, &tensor->cols)};
    bool stack = tensor->form == OCTET_FORM_STACKED;
    check_parts_list list;
    if (!CHECK_LAW(
            report, LAW_SHAPES,
            check_list_parts(&list, &tensor->quantizer, (octet_dtype)tensor->dtype, shape),
            "tensor %d has no layout", index)) {
        return;
    }
    uint64_t seen = 0;
    int last = OCTET_ABSENT;
    for (int i = 0; i < list.count; i++) {
        int at = tensor->buffers[list.parts[i]];
        if (!CHECK_LAW(
                report, LAW_SHAPES, at != OCTET_ABSENT || check_may_lack(tensor, list.parts[i]),
                "tensor %d has no %s", index, octet_part_name((octet_part)list.parts[i])) ||
            at == OCTET_ABSENT) {
            continue;
        }
        const octet_plan_buffer *buffer = &plan->buffers[at];
        CHECK_LAW(report, LAW_SHAPES,
                  stack ? buffer->shape[0] == (int64_t)plan->tp_size
                        : check_like_proto(buffer, &list.buffers[i]),
                  "%s has not the shape of its layout", check_name(plan, at));
        CHECK_LAW(report, LAW_SHAPES, last == OCTET_ABSENT || check_in_order(plan, last, at),
                  "%s is out of flatten order", check_name(plan, at));
        seen |= check_bit(at);
        last = at;
    }
    CHECK_LAW(report, LAW_SHAPES, seen != 0 && check_tensor_mask(plan, index) == seen,
              "tensor %d has other buffers than its layout", index);
}

/* A tensor may share a buffer of another form of itself, which is then the buffer's owner. */
static inline void check_owners(check_report *report, const octet_plan *plan, int index) {
    const octet_plan_tensor *tensor = &plan->tensors[index];
    for (int part = 0; part < OCTET_PARTS; part++) {
        int at = tensor->buffers[part];
        if (at == OCTET_ABSENT) {
            continue;
        }
        const octet_plan_tensor *owner = check_tensor_of(plan, at);
        CHECK_LAW(report, LAW_SHAPES,
                  plan->buffers[at].part == part && owner->name == tensor->name &&
                      check_same_code(&owner->quantizer, &tensor->quantizer, part),
                  "tensor %d calls %s its %s", index, check_name(plan, at),
                  octet_part_name((octet_part)part));
    }
}

static inline void check_shapes(check_report *report, const octet_plan *plan) {
    check_port_shapes(report, plan);
    check_buffer_shapes(report, plan);
    for (int i = 0; i < plan->tensor_count; i++) {
        check_layout(report, plan, i);
        check_owners(report, plan, i);
    }
}

/* ---- structure ------------------------------------------------------------------------- */

/* A plan without its sizes: what must not depend on them. */
static inline void check_strip(octet_plan *plan) {
    memset(&plan->extents, 0, sizeof plan->extents);
    plan->saved_bytes = plan->aliased_bytes = plan->workspace_bytes = 0;
    for (int i = 0; i < OCTET_PLAN_ARGS; i++) {
        memset(plan->args[i].shape, 0, sizeof plan->args[i].shape);
        plan->args[i].bytes = 0;
    }
    for (int i = 0; i < OCTET_PLAN_OUTS; i++) {
        memset(plan->outs[i].shape, 0, sizeof plan->outs[i].shape);
        plan->outs[i].bytes = 0;
    }
    for (int i = 0; i < OCTET_PLAN_EXCHANGES; i++) {
        memset(plan->exchanges[i].shape, 0, sizeof plan->exchanges[i].shape);
        plan->exchanges[i].bytes = 0;
    }
    for (int i = 0; i < OCTET_PLAN_BUFFERS; i++) {
        memset(plan->buffers[i].shape, 0, sizeof plan->buffers[i].shape);
        plan->buffers[i].offset = plan->buffers[i].bytes = 0;
    }
}

static inline void check_structure(check_report *report, const octet_plan *a,
                                   const octet_plan *b) {
    octet_plan one = *a, other = *b;
    check_strip(&one);
    check_strip(&other);
    CHECK_LAW(report, LAW_SIZES, memcmp(&one, &other, sizeof one) == 0,
              "another structure for m=%lld k=%lld n=%lld than for m=%lld k=%lld n=%lld",
              (long long)a->extents.m, (long long)a->extents.k, (long long)a->extents.n,
              (long long)b->extents.m, (long long)b->extents.k, (long long)b->extents.n);
}

#endif
