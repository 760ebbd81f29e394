/* pieces.c - what ranks gather in chunks of their rows, each while the one before is used.
 *
 * Rows of 2 ranks in 2 chunks, as they travel and as they are put together:
 *     rank 0: a b    rank 1: c d    pieces: (a c) (b d)    whole: a b c d */
#include "plan/ops.h"
#include "quant/layout.h"

/* Sends a chunk of the rows of `from`. */
static void gather_chunk(oct_builder *b, uint8_t from, uint8_t to, int chunk) {
    octet_step *step = oct_step(b, OCTET_OP_COLLECTIVE);
    step->collective = OCTET_ALL_GATHER;
    step->from = from;
    step->to = to;
    step->chunk = (uint8_t)chunk;
    oct_step_done(b, step);
}

static bool is_data(const octet_buffer *entry) {
    return entry->part == OCTET_PART_VALUES || entry->part == OCTET_PART_ROW_DATA;
}

/* Scales, and amaxes of rows, are few bytes: they are gathered whole, before the first chunk,
 * and each piece takes its own of them. What all ranks have alike is shared.
 * e.g. `recipe=mxfp8 parallel=column sequence tp=2 gather_chunks=2`: "all-gather
 * input.quantized rowwise scale -> input.stacked rowwise scale"
 * e.g. `recipe=current parallel=column sequence tp=2 gather_chunks=2`: no "stacked" */
static void gather_scales(oct_builder *b, oct_pieces *pieces, const octet_buffer *entry) {
    octet_plan_tensor from = *oct_tensor_at(b, pieces->local);
    bool same = oct_part_gathering_of(entry) == OCT_PART_SAME;
    for (int i = 0; i < pieces->count; i++) {
        if (same) {
            oct_share(b, pieces->at[i], pieces->local, 1u << entry->part);
        } else {
            oct_place_entry(b, pieces->at[i], entry, OCTET_PLACE_WORK);
        }
    }
    if (same) {
        return;
    }
    if (pieces->stacked == OCTET_ABSENT) {
        pieces->stacked = oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_STACKED,
                                     from.dtype, &oct_tensor_at(b, pieces->at[0])->quantizer);
        oct_tensor_shape(b, pieces->stacked, from.rows, from.cols);
    }
    oct_place_entry(b, pieces->stacked, entry, OCTET_PLACE_EXCHANGE);
    oct_collective(b, OCTET_ALL_GATHER, from.buffers[entry->part],
                   oct_tensor_at(b, pieces->stacked)->buffers[entry->part]);
}

static void gather_data(oct_builder *b, const oct_pieces *pieces, uint8_t part) {
    for (int i = 0; i < pieces->count; i++) {
        gather_chunk(b, oct_tensor_at(b, pieces->local)->buffers[part],
                     oct_tensor_at(b, pieces->at[i])->buffers[part], i);
    }
}

/* A piece without parts. */
static uint8_t new_piece(oct_builder *b, const octet_plan_tensor *from,
                         const octet_quantizer *q) {
    octet_dim rows = oct_all_rows(b, from->rows);
    rows.div = (uint16_t)(rows.div * b->plan->chunks);
    uint8_t made = oct_tensor(b, (octet_plan_name)from->name, OCTET_FORM_PIECE, from->dtype, q);
    oct_tensor_shape(b, made, rows, from->cols);
    return made;
}

oct_pieces oct_gather_pieces(oct_builder *b, uint8_t tensor, octet_use use) {
    octet_plan_tensor from = *oct_tensor_at(b, tensor);
    octet_quantizer q = from.quantizer;
    octet_layout layout = {.count = 0};
    oct_pieces made = {.count = b->plan->chunks,
                       .local = tensor,
                       .stacked = OCTET_ABSENT,
                       .use = (uint8_t)use};
    if (use == OCTET_USE_ROW) {
        q.rowwise = 1;
        q.columnwise = 0;
        oct_layout_fill(&layout, &q);
    }
    for (int i = 0; i < made.count; i++) {
        made.at[i] = new_piece(b, &from, &q);
    }
    for (int i = 0; i < layout.count; i++) {
        if (!is_data(&layout.buffers[i])) {
            gather_scales(b, &made, &layout.buffers[i]);
        }
    }
    uint8_t data = use == OCTET_USE_ROW ? OCTET_PART_ROW_DATA : OCTET_PART_VALUES;
    for (int i = 0; i < made.count; i++) {
        oct_place(b, made.at[i], 1u << data, OCTET_PLACE_EXCHANGE);
    }
    gather_data(b, &made, data);
    return made;
}

oct_operand oct_piece(oct_builder *b, const oct_pieces *pieces, int chunk) {
    /* Its scales are among those that arrived before.
     * e.g. `recipe=mxfp8 parallel=column sequence tp=2 gather_chunks=2`: "assemble
     * input.stacked
     * -> input.piece, chunk 1 of 2" */
    if (pieces->stacked != OCTET_ABSENT) {
        octet_step *step = oct_step(b, OCTET_OP_ASSEMBLE);
        step->a = pieces->stacked;
        step->dst = pieces->at[chunk];
        step->chunk = (uint8_t)chunk;
        oct_step_done(b, step);
    }
    return (oct_operand){pieces->at[chunk], pieces->use};
}

void oct_join(oct_builder *b, uint8_t piece, uint8_t whole, int chunk) {
    octet_step *step = oct_step(b, OCTET_OP_JOIN);
    step->a = piece;
    step->dst = whole;
    step->chunk = (uint8_t)chunk;
    oct_step_done(b, step);
}

uint8_t oct_join_pieces(oct_builder *b, const oct_pieces *pieces, octet_place place) {
    octet_plan_tensor from = *oct_tensor_at(b, pieces->local);
    octet_quantizer q = oct_tensor_at(b, pieces->at[0])->quantizer;
    uint8_t whole =
        oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_GATHERED, from.dtype, &q);
    oct_tensor_shape(b, whole, oct_all_rows(b, from.rows), from.cols);
    /* One scale: the whole reads the shard's, which is the whole's own where that is saved.
     * e.g. `recipe=current parallel=row sequence tp=2 gather_chunks=2 delay_wgrad`:
     * "grad_output.gathered scale_inv f32 (1) 4 B, stored" */
    oct_share(b, whole, pieces->local, OCT_PART(SCALE));
    if (place == OCTET_PLACE_SAVED && oct_tensor_has(b, whole, OCTET_PART_SCALE)) {
        b->plan->buffers[from.buffers[OCTET_PART_SCALE]].tensor = whole;
    }
    oct_place(b, whole, OCT_ALL_PARTS, place);
    for (int i = 0; i < pieces->count; i++) {
        oct_join(b, pieces->at[i], whole, i);
    }
    return whole;
}
