/* collect.c - collectives, and quantized shards joined into one tensor. */
#include "linear/ops.h"
#include "quant/layout.h"

void oct_collective(oct_builder *b, octet_collective kind, uint8_t from, uint8_t to) {
    octet_step *step = oct_step(b, OCTET_OP_COLLECTIVE);
    step->collective = (uint8_t)kind;
    step->from = from;
    step->to = to;
    oct_step_done(b, step);
}

static octet_dim times_ranks(octet_dim rows, const oct_builder *b) {
    if (rows.div == b->facts.tp) { /* a shard of the ranks' rows: all of them again */
        rows.div = 1;
    } else {
        rows.mul = (uint16_t)(rows.mul * b->facts.tp);
    }
    return rows;
}

uint8_t oct_gather_values(oct_builder *b, uint8_t tensor, octet_place place) {
    octet_plan_tensor from = *oct_tensor_at(b, tensor);
    uint8_t made =
        oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_GATHERED, from.dtype, NULL);
    oct_tensor_shape(b, made, times_ranks(from.rows, b), from.cols);
    oct_place(b, made, OCT_ALL_PARTS, place == OCTET_PLACE_WORK ? OCTET_PLACE_EXCHANGE : place);
    oct_collective(b, OCTET_ALL_GATHER, oct_buffer_of(b, tensor), oct_buffer_of(b, made));
    return made;
}

/* How a part of the whole comes from the parts of the shards. */
typedef enum joining { SAME, CONCATENATED, REARRANGED } joining;

static joining joining_of(const octet_buffer *row) {
    const octet_dim *first = &row->dims[0];
    bool per_rank = false;
    for (int i = 0; i < row->ndim; i++) {
        per_rank |=
            row->dims[i].axis == OCTET_AXIS_M || row->dims[i].axis == OCTET_AXIS_LEADING;
    }
    bool rows_first = first->axis == OCTET_AXIS_M || first->axis == OCTET_AXIS_LEADING;
    bool unpadded = first->div == 1 && first->align == 1;
    return !per_rank ? SAME : rows_first && unpadded ? CONCATENATED : REARRANGED;
}

uint8_t oct_gather_bytes(oct_builder *b, uint8_t tensor, bool row, bool col,
                         octet_place place) {
    octet_plan_tensor from = *oct_tensor_at(b, tensor);
    octet_quantizer q = from.quantizer;
    q.rowwise = row;
    q.columnwise = col;
    octet_place gathered = place == OCTET_PLACE_WORK ? OCTET_PLACE_EXCHANGE : place;
    octet_layout layout;
    oct_layout_fill(&layout, &q);
    uint8_t whole =
        oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_GATHERED, from.dtype, &q);
    oct_tensor_shape(b, whole, times_ranks(from.rows, b), from.cols);
    uint8_t stacked = OCTET_ABSENT;
    for (int i = 0; i < layout.count; i++) {
        uint32_t part = 1u << layout.buffers[i].part;
        joining how = joining_of(&layout.buffers[i]);
        uint8_t to = whole;
        if (how == SAME) {
            oct_share(b, whole, tensor, part);
            if (place == OCTET_PLACE_SAVED) { /* the whole is kept, the shard is not */
                b->plan->buffers[from.buffers[layout.buffers[i].part]].tensor = whole;
            }
            continue;
        }
        oct_place(b, whole, part, how == CONCATENATED ? gathered : place);
        if (how == REARRANGED) {
            if (stacked == OCTET_ABSENT) {
                stacked = oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_STACKED,
                                     from.dtype, &q);
                oct_tensor_shape(b, stacked, from.rows, from.cols);
            }
            oct_place(b, stacked, part, OCTET_PLACE_EXCHANGE);
            to = stacked;
        }
        oct_collective(b, OCTET_ALL_GATHER, from.buffers[layout.buffers[i].part],
                       oct_tensor_at(b, to)->buffers[layout.buffers[i].part]);
    }
    if (stacked != OCTET_ABSENT) {
        octet_step *step = oct_step(b, OCTET_OP_ASSEMBLE);
        step->a = stacked;
        step->dst = whole;
        oct_step_done(b, step);
    }
    return whole;
}
