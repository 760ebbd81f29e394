/* build.c - tensors, buffers and ports of a plan. */
#include "plan/build.h"

#include <string.h>

#include "core/fail.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

_Static_assert(OCTET_PLAN_BUFFERS <= 64, "a step's reads and writes are 64-bit sets");
_Static_assert(sizeof(octet_step) == 48 && sizeof(octet_plan_buffer) == 72 &&
                   sizeof(octet_plan_tensor) == 60 && sizeof(octet_port) == 64,
               "plans are compared byte by byte, so their rows have no padding");
_Static_assert(sizeof(octet_plan) ==
                   40 + sizeof(octet_extents) + 24 +
                       sizeof(octet_port) *
                           (OCTET_PLAN_ARGS + OCTET_PLAN_OUTS + OCTET_PLAN_EXCHANGES) +
                       2 * OCTET_PLAN_SAVED + sizeof(octet_plan_tensor) * OCTET_PLAN_TENSORS +
                       sizeof(octet_plan_buffer) * OCTET_PLAN_BUFFERS +
                       sizeof(octet_step) * OCTET_PLAN_STEPS,
               "a plan has no padding");

oct_builder oct_build_start(octet_plan *plan, const oct_build_options *options,
                            octet_error *err) {
    oct_builder b = {.plan = plan,
                     .device = options->device,
                     .target = oct_target_of(&options->device),
                     .dtype = options->dtype,
                     .exact = options->exact,
                     .invariant = options->invariant,
                     .err = err,
                     .seed = OCTET_ABSENT,
                     .slots = options->slots,
                     .raises = options->raises,
                     .skips = options->skips,
                     .threads = options->threads > 1 ? options->threads : 1,
                     .scratch = OCTET_ABSENT,
                     .applied = {.x = OCTET_ABSENT}};
    memset(b.scale, OCTET_ABSENT, sizeof b.scale);
    memset(b.amax, OCTET_ABSENT, sizeof b.amax);
    memset(plan, 0, sizeof *plan);
    plan->size = sizeof *plan;
    plan->kind = (uint8_t)options->kind;
    plan->recipe = (uint8_t)options->recipe;
    plan->tp_size = options->ranks;
    plan->row_multiple = plan->chunk_multiple = 1;
    plan->chunks = 1;
    plan->device = b.device;
    plan->extents = options->extents;
    if (b.target->check) {
        b.status = b.target->check(&b.device, err);
    }
    return b;
}

void oct_build_fail(oct_builder *b, const char *why) {
    if (!b->status) {
        b->status = oct_fail(b->err, OCTET_UNSUPPORTED, "%s", why);
    }
}

octet_dim oct_axis_times(octet_axis axis, uint32_t times) {
    octet_dim dim = oct_dim_of(axis, 1, 1);
    dim.mul = (uint16_t)times;
    return dim;
}

octet_dim oct_axis_over(octet_axis axis, uint32_t over) {
    return oct_dim_of(axis, (int)over, 1);
}

uint8_t oct_tensor(oct_builder *b, octet_plan_name name, octet_plan_form form, uint8_t dtype,
                   const octet_quantizer *quantizer) {
    octet_plan *plan = b->plan;
    if (plan->tensor_count == OCTET_PLAN_TENSORS) {
        oct_build_fail(b, "the plan needs more tensors than OCTET_PLAN_TENSORS");
        return 0;
    }
    octet_plan_tensor *tensor = &plan->tensors[plan->tensor_count];
    tensor->name = (uint8_t)name;
    tensor->form = (uint8_t)form;
    tensor->dtype = dtype;
    tensor->rows = tensor->cols = oct_dim_of(OCTET_AXIS_ONE, 1, 1);
    memset(tensor->buffers, OCTET_ABSENT, sizeof tensor->buffers);
    tensor->quantizer = quantizer ? *quantizer : oct_quantizer_default(OCTET_SCHEME_NONE);
    return plan->tensor_count++;
}

octet_plan_tensor *oct_tensor_at(oct_builder *b, uint8_t tensor) {
    return &b->plan->tensors[tensor];
}

void oct_tensor_shape(oct_builder *b, uint8_t tensor, octet_dim rows, octet_dim cols) {
    oct_tensor_at(b, tensor)->rows = rows;
    oct_tensor_at(b, tensor)->cols = cols;
}

bool oct_tensor_has(const oct_builder *b, uint8_t tensor, octet_part part) {
    return b->plan->tensors[tensor].buffers[part] != OCTET_ABSENT;
}

bool oct_tensor_is_plain(const oct_builder *b, uint8_t tensor) {
    return !oct_quantizer_is(&b->plan->tensors[tensor].quantizer);
}

/* A dimension of a layout, with the tensor's rows and columns in the place of M and K. Factors
 * multiply, and so do divisors: ceil(ceil(M / 4) / 32) is ceil(M / 128). Where a tensor's rows
 * are rounded up, a dimension that counts rows is rounded up, too. One that counts blocks is
 * not: only folded tensors have both, and their rows are rounded up to what divides a block,
 * which adds no block. */
static octet_dim compose(const octet_dim *dim, const octet_plan_tensor *tensor) {
    bool along_rows = dim->axis == OCTET_AXIS_M || dim->axis == OCTET_AXIS_LEADING;
    /* A count that no size changes. Example: one scale for the whole tensor. */
    if (dim->axis == OCTET_AXIS_ONE) {
        return *dim;
    }
    /* Example: a layout's ceil(M / 32) over a weight, whose rows are N, is ceil(N / 32). */
    const octet_dim *axis = along_rows ? &tensor->rows : &tensor->cols;
    octet_dim whole = *dim;
    whole.axis = dim->axis == OCTET_AXIS_LEADING && axis->axis == OCTET_AXIS_M
                     ? OCTET_AXIS_LEADING
                     : axis->axis;
    whole.mul = (uint16_t)(dim->mul * axis->mul);
    whole.div = (uint16_t)(dim->div * axis->div);
    bool rounded = axis->align > dim->align && dim->div == 1;
    whole.align = rounded ? axis->align : dim->align;
    return whole;
}

/* The port that a new buffer of this tensor lives in, when its place has ports. */
static uint8_t add_port(oct_builder *b, const octet_plan_tensor *tensor,
                        const octet_plan_buffer *buffer) {
    octet_plan *plan = b->plan;
    octet_port *ports = plan->args;
    uint8_t *count = &plan->arg_count;
    int most = OCTET_PLAN_ARGS;
    if (buffer->place == OCTET_PLACE_OUT) {
        ports = plan->outs, count = &plan->out_count, most = OCTET_PLAN_OUTS;
    } else if (buffer->place == OCTET_PLACE_EXCHANGE) {
        ports = plan->exchanges, count = &plan->exchange_count, most = OCTET_PLAN_EXCHANGES;
    } else if (buffer->place != OCTET_PLACE_ARG) {
        /* In an arena, at an offset that binding gives. */
        return 0;
    }
    if (*count == most) {
        oct_build_fail(b,
                       "the plan needs more arguments, outputs or exchanges than it can list");
        return 0;
    }
    octet_port *port = &ports[*count];
    port->name = tensor->name;
    port->form = tensor->form;
    port->part = buffer->part;
    port->dtype = buffer->dtype;
    port->ndim = buffer->ndim;
    port->alias = OCTET_ABSENT;
    memcpy(port->dims, buffer->dims, sizeof port->dims);
    return (*count)++;
}

void oct_place_entry(oct_builder *b, uint8_t index, const octet_buffer *entry,
                     octet_place place) {
    octet_plan *plan = b->plan;
    if (plan->buffer_count == OCTET_PLAN_BUFFERS) {
        oct_build_fail(b, "the plan needs more buffers than OCTET_PLAN_BUFFERS");
        return;
    }
    octet_plan_tensor *tensor = &plan->tensors[index];
    octet_plan_buffer *buffer = &plan->buffers[plan->buffer_count];
    buffer->tensor = index;
    buffer->part = entry->part;
    buffer->dtype = entry->dtype;
    buffer->place = (uint8_t)place;
    buffer->ndim = entry->ndim;
    bool stacked = tensor->form == OCTET_FORM_STACKED;
    for (int i = 0; i < entry->ndim; i++) {
        buffer->dims[i + stacked] = compose(&entry->dims[i], tensor);
    }
    /* Every rank's shard: one more axis, in front. */
    if (stacked) {
        buffer->dims[0] = oct_axis_times(OCTET_AXIS_ONE, plan->tp_size);
        buffer->ndim++;
    }
    buffer->port = add_port(b, tensor, buffer);
    tensor->buffers[entry->part] = plan->buffer_count++;
}

/* A plain tensor's one buffer: a matrix, or a vector where it has one row by nature. */
static octet_buffer plain_buffer(const octet_plan_tensor *tensor) {
    octet_buffer only = {.part = OCTET_PART_VALUES, .dtype = tensor->dtype, .ndim = 2};
    only.dims[0] = oct_dim_of(OCTET_AXIS_LEADING, 1, 1);
    only.dims[1] = oct_dim_of(OCTET_AXIS_K, 1, 1);
    if (tensor->rows.axis == OCTET_AXIS_ONE && tensor->rows.mul == 1) {
        only.ndim = 1;
        only.dims[0] = only.dims[1];
        only.dims[1] = (octet_dim){0, 0, 0, 0, 0};
    }
    return only;
}

void oct_place(oct_builder *b, uint8_t tensor, uint32_t parts, octet_place place) {
    octet_layout layout = {.count = 1};
    octet_plan_tensor *t = oct_tensor_at(b, tensor);
    if (oct_tensor_is_plain(b, tensor)) {
        layout.buffers[0] = plain_buffer(t);
    } else {
        oct_layout_fill(&layout, &t->quantizer);
    }
    for (int i = 0; i < layout.count; i++) {
        const octet_buffer *entry = &layout.buffers[i];
        if ((parts >> entry->part & 1) && t->buffers[entry->part] == OCTET_ABSENT) {
            oct_place_entry(b, tensor, entry, place);
        }
    }
}

void oct_share(oct_builder *b, uint8_t tensor, uint8_t from, uint32_t parts) {
    octet_plan_tensor *to = oct_tensor_at(b, tensor);
    const octet_plan_tensor *source = oct_tensor_at(b, from);
    for (int part = 0; part < OCTET_PARTS; part++) {
        if ((parts >> part & 1) && to->buffers[part] == OCTET_ABSENT) {
            to->buffers[part] = source->buffers[part];
        }
    }
}

void oct_save(oct_builder *b, uint8_t tensor, uint32_t parts) {
    octet_plan *plan = b->plan;
    octet_layout layout = {.count = 1};
    const octet_plan_tensor *t = oct_tensor_at(b, tensor);
    if (!oct_tensor_is_plain(b, tensor)) {
        oct_layout_fill(&layout, &t->quantizer);
    }
    for (int i = 0; i < layout.count; i++) {
        uint8_t part = layout.buffers[i].part;
        /* Not asked for, or the tensor has not got it. */
        if (!(parts >> part & 1) || t->buffers[part] == OCTET_ABSENT) {
            continue;
        }
        if (plan->saved_count == OCTET_PLAN_SAVED) {
            oct_build_fail(b, "the plan saves more buffers than OCTET_PLAN_SAVED");
            return;
        }
        plan->saved[plan->saved_count++] = t->buffers[part];
    }
}

void oct_output_alias(oct_builder *b, uint8_t tensor) {
    octet_plan_buffer *buffer = &b->plan->buffers[oct_tensor_at(b, tensor)->buffers[0]];
    octet_plan_buffer as_output = *buffer;
    as_output.place = OCTET_PLACE_OUT;
    uint8_t port = add_port(b, oct_tensor_at(b, tensor), &as_output);
    b->plan->outs[port].alias = buffer->port;
}

/* The phases whose steps use a buffer, as bits. */
static uint32_t phases_of(const octet_plan *plan, int buffer) {
    uint32_t phases = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool uses = (step->reads | step->writes) >> buffer & 1;
        phases |= uses ? (uint32_t)1 << step->phase : 0;
    }
    return phases;
}

/* A workspace lives for one phase. What a later phase reads becomes an exchange, which the
 * caller holds between phases: dy's columnwise bytes of the first phase, which wgrad reads
 * after the gather of x.
 * e.g. `recipe=mxfp8 parallel=column sequence tp=2`: "3 grad_output.quantized columnwise data
 * u8 (512, 256) 128.0 KiB" */
static void carry_between_phases(oct_builder *b) {
    octet_plan *plan = b->plan;
    uint64_t read = 0;
    for (int i = 0; i < plan->step_count; i++) {
        read |= plan->steps[i].reads;
    }
    for (int i = 0; i < plan->buffer_count && !b->status; i++) {
        octet_plan_buffer *buffer = &plan->buffers[i];
        uint32_t phases = phases_of(plan, i);
        /* What no step reads, each that uses it writes for itself: a product's copies. */
        bool carried = (phases & (phases - 1)) && (read >> i & 1);
        if (buffer->place == OCTET_PLACE_WORK && carried) {
            buffer->place = OCTET_PLACE_EXCHANGE;
            buffer->port = add_port(b, &plan->tensors[buffer->tensor], buffer);
        }
    }
}

octet_status oct_build_finish(oct_builder *b) {
    octet_plan *plan = b->plan;
    /* Each pass reads all steps. */
    oct_drop_bytes(b);
    oct_place_notes(b);
    carry_between_phases(b);
    plan->phases = (uint8_t)(b->phase + 1);
    return b->status ? b->status : oct_plan_number(plan, b->err);
}
