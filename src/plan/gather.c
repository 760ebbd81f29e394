/* gather.c - collectives, and quantized shards joined into one tensor. */
#include "plan/ops.h"
#include "quant/layout.h"

void oct_collective(oct_builder *b, octet_collective kind, uint8_t from, uint8_t to) {
    octet_step *step = oct_step(b, OCTET_OP_COLLECTIVE);
    step->collective = (uint8_t)kind;
    step->from = from;
    step->to = to;
    oct_step_done(b, step);
}

octet_dim oct_all_rows(const oct_builder *b, octet_dim rows) {
    if (rows.div == b->plan->tp_size) {
        /* dy of row parallel: a rank has m / tp rows, and all of them are m.
         * e.g. `parallel=row sequence tp=2`: "grad_output.gathered bf16 (256, 256)" */
        rows.div = 1;
    } else {
        /* x of column parallel: a rank has m rows, and all of them are m * tp.
         * e.g. `parallel=column sequence tp=2`: "input.gathered bf16 (512, 256)" */
        rows.mul = (uint16_t)(rows.mul * b->plan->tp_size);
    }
    return rows;
}

uint8_t oct_gather_values(oct_builder *b, uint8_t tensor, octet_place place) {
    octet_plan_tensor from = *oct_tensor_at(b, tensor);
    uint8_t made =
        oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_GATHERED, from.dtype, NULL);
    oct_tensor_shape(b, made, oct_all_rows(b, from.rows), from.cols);
    oct_place(b, made, OCT_ALL_PARTS, place == OCTET_PLACE_WORK ? OCTET_PLACE_EXCHANGE : place);
    oct_collective(b, OCTET_ALL_GATHER, oct_buffer_of(b, tensor), oct_buffer_of(b, made));
    return made;
}

oct_part_gathering oct_part_gathering_of(const octet_buffer *entry) {
    const octet_dim *first = &entry->dims[0];
    bool per_rank = false;
    for (int i = 0; i < entry->ndim; i++) {
        per_rank |=
            entry->dims[i].axis == OCTET_AXIS_M || entry->dims[i].axis == OCTET_AXIS_LEADING;
    }
    bool rows_first = first->axis == OCTET_AXIS_M || first->axis == OCTET_AXIS_LEADING;
    bool unpadded = first->div == 1 && first->align == 1;
    return !per_rank                ? OCT_PART_SAME
           : rows_first && unpadded ? OCT_PART_CONCATENATED
                                    : OCT_PART_REARRANGED;
}

/* One part of the whole: its buffer, and the collective that brings it or its shards. */
static void gather_part(oct_builder *b, oct_gathering *made, uint8_t tensor,
                        const octet_buffer *entry, octet_place place) {
    octet_plan_tensor from = *oct_tensor_at(b, tensor);
    oct_part_gathering how = oct_part_gathering_of(entry);
    /* The whole reads the buffer of the shard. Where the whole is saved and the shard is not,
     * the buffer belongs to the whole from now on.
     * e.g. `recipe=current parallel=row sequence tp=2 delay_wgrad`: "grad_output.gathered
     * scale_inv f32 (1) 4 B, stored" */
    if (how == OCT_PART_SAME) {
        oct_share(b, made->whole, tensor, 1u << entry->part);
        if (place == OCTET_PLACE_SAVED) {
            b->plan->buffers[from.buffers[entry->part]].tensor = made->whole;
        }
        return;
    }
    /* Concatenated shards go straight into the whole, in memory that a collective sees. */
    uint8_t to = made->whole;
    bool seen = how == OCT_PART_CONCATENATED && place == OCTET_PLACE_WORK;
    oct_place_entry(b, to, entry, seen ? OCTET_PLACE_EXCHANGE : place);
    /* Others are received one after the other, and put together by a step (ASSEMBLE). All
     * parts of the tensor that need this share one tensor of shards. */
    if (how == OCT_PART_REARRANGED && made->stacked == OCTET_ABSENT) {
        made->stacked = oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_STACKED,
                                   from.dtype, &oct_tensor_at(b, to)->quantizer);
        oct_tensor_shape(b, made->stacked, from.rows, from.cols);
    }
    if (how == OCT_PART_REARRANGED) {
        to = made->stacked;
        oct_place_entry(b, to, entry, OCTET_PLACE_EXCHANGE);
    }
    oct_collective(b, OCTET_ALL_GATHER, from.buffers[entry->part],
                   oct_tensor_at(b, to)->buffers[entry->part]);
}

oct_gathering oct_gather_start(oct_builder *b, uint8_t tensor, octet_use use,
                               octet_place place) {
    octet_plan_tensor from = *oct_tensor_at(b, tensor);
    octet_quantizer q = from.quantizer;
    q.rowwise = use == OCTET_USE_ROW;
    q.columnwise = use == OCTET_USE_COL;
    octet_layout layout;
    oct_layout_fill(&layout, &q);
    oct_gathering made = {OCTET_ABSENT, OCTET_ABSENT};
    made.whole = oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_GATHERED, from.dtype, &q);
    oct_tensor_shape(b, made.whole, oct_all_rows(b, from.rows), from.cols);
    for (int i = 0; i < layout.count; i++) {
        gather_part(b, &made, tensor, &layout.buffers[i], place);
    }
    return made;
}

uint8_t oct_gather_finish(oct_builder *b, oct_gathering gathering) {
    /* Some part could not be concatenated.
     * e.g. `recipe=mxfp8 parallel=column sequence tp=2`: "assemble input.stacked ->
     * input.gathered"
     * e.g. `recipe=current parallel=column sequence tp=2`: no "assemble" */
    if (gathering.stacked != OCTET_ABSENT) {
        octet_step *step = oct_step(b, OCTET_OP_ASSEMBLE);
        step->a = gathering.stacked;
        step->dst = gathering.whole;
        oct_step_done(b, step);
    }
    return gathering.whole;
}

uint8_t oct_gather_bytes(oct_builder *b, uint8_t tensor, octet_use use, octet_place place) {
    return oct_gather_finish(b, oct_gather_start(b, tensor, use, place));
}
