/* produce.c - the tail of forward and backward: from a product to what the caller sees. */
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

uint32_t oct_wanted_parts(const oct_builder *b, uint8_t tensor, octet_use want,
                          uint8_t hadamard) {
    /* A plain tensor has nothing but its values.
     * e.g. `grad=w`: "saved for the next plan 0 input bf16 (256, 256)" */
    if (oct_tensor_is_plain(b, tensor)) {
        return OCT_PART(VALUES);
    }
    /* It has the bytes that are wanted, and the others need not stay alive.
     * e.g. `recipe=mxfp8 qin=mxfp8:e4m3 grad=w`: "saved for the next plan 0 input columnwise
     * data" */
    if (want != OCTET_USE_VALUES && oct_way_to(b, tensor, want, hadamard) == OCT_WAY_READ) {
        return want == OCTET_USE_ROW ? OCT_ROW_PARTS : OCT_COL_PARTS;
    }
    /* What is wanted is made from the bytes that there are, the rowwise ones by preference:
     * they are decoded, transposed, or read across.
     * e.g. `recipe=current qin=fp8-tensor:e4m3+row grad=w`: "saved for the next plan 0 input
     * rowwise data" */
    return oct_tensor_has(b, tensor, OCTET_PART_ROW_DATA) ? OCT_ROW_PARTS : OCT_COL_PARTS;
}

/* Where the next tensor on the way lives: the last one is the output. */
static uint8_t next_tensor(oct_builder *b, const oct_result *result, octet_plan_form form,
                           octet_dim rows, bool seen_by_collective) {
    bool last = form == OCTET_FORM_GIVEN;
    uint8_t tensor = oct_tensor(b, result->name, form, result->dtype, NULL);
    oct_tensor_shape(b, tensor, rows, result->cols);
    oct_place(b, tensor, OCT_ALL_PARTS,
              last                 ? OCTET_PLACE_OUT
              : seen_by_collective ? OCTET_PLACE_EXCHANGE
                                   : OCTET_PLACE_WORK);
    return tensor;
}

/* The rows of one rank's share of a product. */
static octet_dim scattered(octet_dim rows, uint32_t ranks) {
    if (rows.mul == ranks) {
        /* dx of column parallel: the rows m of every rank were gathered, and m are left.
         * e.g. `parallel=column sequence tp=2`: "grad_input.partial bf16 (512, 256)",
         * "grad_input bf16 (256, 256)" */
        rows.mul = 1;
    } else {
        /* y of row parallel: the product has m rows, of which each rank receives a share.
         * e.g. `parallel=row sequence tp=2`: "output.partial bf16 (256, 256)", "output bf16
         * (128, 256)" */
        rows.div = (uint16_t)(rows.div * ranks);
    }
    return rows;
}

/* The collective after a product; gives the tensor that it brings. */
static uint8_t exchanged(oct_builder *b, uint8_t partial, const oct_result *result,
                         octet_plan_form form, octet_dim rows) {
    uint8_t reduced = next_tensor(b, result, form, rows, true);
    oct_collective(b, result->collective, oct_buffer_of(b, partial), oct_buffer_of(b, reduced));
    return reduced;
}

/* A chunk of the result's columns after the other, each with a collective of its own. A chunk's
 * sums are those of the whole product: it runs along k, or n, and no chunk is cut there. */
static void produce_chunks(oct_builder *b, oct_tail *tail, oct_product *product,
                           const oct_result *result) {
    oct_result chunk = *result;
    int first = 0;
    chunk.cols.div = (uint16_t)(chunk.cols.div * b->plan->chunks);
    for (int i = 0; i < b->plan->chunks; i++) {
        uint8_t partial = next_tensor(b, &chunk, OCTET_FORM_PARTIAL, result->rows, true);
        if (i == 0) {
            product->dst = partial;
            first = oct_gemm_chunks(b, product);
        } else {
            oct_gemm_next(b, first, partial, i);
        }
        tail->chunks[i] = exchanged(b, partial, &chunk, OCTET_FORM_REDUCED, tail->rows);
    }
}

/* The way is: product, collective, bias, quantizer. Each stage but the first may be left out;
 * the last one that is there writes the output. */
oct_tail oct_produce_start(oct_builder *b, oct_product *product, const oct_result *result,
                           octet_plan_form last) {
    bool collective = result->collective != OCTET_COLLECTIVE_NONE;
    bool biased = result->late_bias != OCTET_ABSENT;
    bool scatter = result->collective == OCTET_REDUCE_SCATTER;
    oct_tail tail = {.rows = result->rows, .joined = OCTET_ABSENT, .form = last};
    if (scatter) {
        tail.rows = scattered(result->rows, b->plan->tp_size);
    }
    /* In chunks: each travels while the next is made. y of 4096 columns in 4 chunks is 4
     * products of 1024 columns, each with a reduce-scatter of its own.
     * e.g. `parallel=row sequence tp=2 chunks=2`: "fprop output.partial = input x weight, chunk
     * 1 of 2 2 reduce-scatter output.partial -> output.reduced" */
    if (scatter && b->plan->chunks > 1) {
        tail.joined = next_tensor(b, result, last, tail.rows, false);
        produce_chunks(b, &tail, product, result);
        return tail;
    }
    product->dst = next_tensor(b, result, collective ? OCTET_FORM_PARTIAL : last, result->rows,
                               collective);
    oct_gemm(b, product);
    tail.chunks[0] = product->dst;
    /* Tensor parallel: each rank has a part of the sum, and a collective adds the parts up.
     * e.g. `parallel=row tp=2`: "fprop output.partial = input x weight 2 all-reduce sum
     * output.partial -> output" */
    if (collective) {
        tail.chunks[0] =
            exchanged(b, product->dst, result, biased ? OCTET_FORM_REDUCED : last, tail.rows);
    }
    return tail;
}

/* The next piece arrives while one is multiplied. Each product is one of a whole operand, and
 * a copy puts its rows where they belong: they lie apart in the result, a run for each rank.
 * e.g. `parallel=column sequence tp=2 gather_chunks=2`: "join output.piece -> output, chunk 1
 * of 2" */
oct_tail oct_produce_pieces(oct_builder *b, oct_product *product, const oct_result *result,
                            const oct_pieces *pieces, octet_plan_form form) {
    octet_dim rows = result->rows;
    int first = 0;
    rows.div = (uint16_t)(rows.div * b->plan->chunks);
    oct_tail tail = {.rows = result->rows, .joined = OCTET_ABSENT, .form = form};
    tail.chunks[0] = next_tensor(b, result, form, result->rows, false);
    for (int i = 0; i < pieces->count; i++) {
        oct_next_phase(b);
        oct_operand a = oct_piece(b, pieces, i);
        uint8_t piece = next_tensor(b, result, OCTET_FORM_PIECE, rows, false);
        if (i == 0) {
            product->a = a;
            product->dst = piece;
            first = oct_gemm_pieces(b, product);
        } else {
            oct_gemm_next_piece(b, first, a, piece, i);
        }
        oct_join(b, piece, tail.chunks[0], i);
    }
    return tail;
}

/* Puts a chunk, or the whole, where the result is to be, with the bias where there is one. */
static void put(oct_builder *b, uint8_t from, uint8_t to, const oct_result *result, int chunk) {
    bool biased = result->late_bias != OCTET_ABSENT;
    octet_step *step = oct_step(b, biased ? OCTET_OP_ADD_BIAS : OCTET_OP_CAST);
    step->a = from;
    step->bias = result->late_bias;
    step->dst = to;
    step->chunk = (uint8_t)chunk;
    oct_step_done(b, step);
}

uint8_t oct_produce_join(oct_builder *b, const oct_tail *tail, const oct_result *result) {
    /* Chunks of columns that ranks have added up are put beside each other.
     * e.g. `bias parallel=row sequence tp=2 chunks=2`: "add bias to output.reduced -> output,
     * chunk 2 of 2" */
    bool cut = tail->joined != OCTET_ABSENT;
    uint8_t tensor = cut ? tail->joined : tail->chunks[0];
    for (int i = 0; cut && i < b->plan->chunks; i++) {
        put(b, tail->chunks[i], tensor, result, i);
    }
    /* Row parallel: the bias is added once, to the sum of all ranks.
     * e.g. `bias parallel=row tp=2`: "add bias to output.reduced -> output" */
    if (!cut && result->late_bias != OCTET_ABSENT) {
        tensor = next_tensor(b, result, tail->form, tail->rows, false);
        put(b, tail->chunks[0], tensor, result, OCTET_ABSENT);
    }
    return tensor;
}

void oct_produce_quantized(oct_builder *b, uint8_t tensor, const oct_result *result) {
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_GIVEN, result->quantizer, true, false);
    how.row_place = OCTET_PLACE_OUT;
    how.slot = result->slot;
    (void)oct_quantize(b, tensor, &how);
}

void oct_produce_finish(oct_builder *b, const oct_tail *tail, const oct_result *result) {
    uint8_t tensor = oct_produce_join(b, tail, result);
    /* The caller wants the result quantized: y for the next layer, or dx for the one before.
     * e.g. `recipe=custom:output=mxfp8:e4m3 quantize_output`: "quantize output.high_precision
     * -> output mxfp8:e4m3/1x32+row" */
    if (result->quantizer) {
        oct_produce_quantized(b, tensor, result);
    }
}

octet_plan_form oct_form_of(const oct_result *result) {
    return result->quantizer ? OCTET_FORM_HIGH_PRECISION : OCTET_FORM_GIVEN;
}

void oct_produce(oct_builder *b, oct_product *product, const oct_result *result) {
    oct_tail tail = oct_produce_start(b, product, result, oct_form_of(result));
    oct_produce_finish(b, &tail, result);
}

void oct_fill_amaxes(oct_builder *b) {
    uint64_t written = 0;
    /* The amaxes are an argument: those that are not measured are left as they are.
     * e.g. `recipe=delayed raise_amax`: "amax raises amax[1]", no "zero amax" */
    if (b->raises) {
        return;
    }
    for (int i = 0; i < b->plan->step_count; i++) {
        written |= b->plan->steps[i].writes;
    }
    /* The amaxes are an output, one vector of all slots. Forward without quantize_output
     * measures input and weight, and the slot of the output is set to 0.
     * e.g. `recipe=delayed`: "zero amax[2]" */
    for (int i = 0; i < b->slots && b->amax[0] != OCTET_ABSENT; i++) {
        if (!(written >> b->amax[i] & 1)) {
            octet_step *step = oct_step(b, OCTET_OP_ZERO);
            step->to = b->amax[i];
            oct_step_done(b, step);
        }
    }
}
