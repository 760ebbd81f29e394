/* produce.c - the tail of forward and backward: from a product to what the caller sees. */
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

uint32_t oct_wanted_parts(const oct_builder *b, uint8_t tensor, octet_use want,
                          uint8_t hadamard) {
    /* A plain tensor has nothing but its values. */
    if (oct_tensor_is_plain(b, tensor)) {
        return OCT_PART(VALUES);
    }
    /* It has the bytes that are wanted. Example: wgrad wants columnwise bytes of an MXFP8
     * argument that has both directions: the rowwise ones need not stay alive. */
    if (want != OCTET_USE_VALUES && oct_way_to(b, tensor, want, hadamard) == OCT_WAY_READ) {
        return want == OCTET_USE_ROW ? OCT_ROW_PARTS : OCT_COL_PARTS;
    }
    /* What is wanted is made from the bytes that there are, the rowwise ones by preference:
     * they are decoded, turned, or read across. */
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
        /* dx of column parallel: the rows m of every rank were gathered, and m are left. */
        rows.mul = 1;
    } else {
        /* y of row parallel: the product has m rows, of which each rank receives a share. */
        rows.div = (uint16_t)(rows.div * ranks);
    }
    return rows;
}

/* The way is: product, collective, bias, quantizer. Each stage but the first may be left out;
 * the last one that is there writes the output. */
uint8_t oct_produce_sum(oct_builder *b, oct_product *product, const oct_result *result,
                        octet_plan_form last) {
    bool collective = result->collective != OCTET_COLLECTIVE_NONE;
    bool biased = result->late_bias != OCTET_ABSENT;
    octet_dim rows = result->rows;
    uint8_t tensor =
        next_tensor(b, result, collective ? OCTET_FORM_PARTIAL : last, rows, collective);
    product->dst = tensor;
    oct_gemm(b, product);
    /* Each rank has a part of the sum. */
    if (collective) {
        bool scatter = result->collective == OCTET_REDUCE_SCATTER;
        rows = scatter ? scattered(rows, b->plan->tp_size) : rows;
        uint8_t reduced =
            next_tensor(b, result, biased ? OCTET_FORM_REDUCED : last, rows, true);
        oct_collective(b, result->collective, oct_buffer_of(b, tensor),
                       oct_buffer_of(b, reduced));
        tensor = reduced;
    }
    /* Row parallel: the bias is added once, to the sum of all ranks. */
    if (biased) {
        uint8_t sum = next_tensor(b, result, last, rows, false);
        octet_step *step = oct_step(b, OCTET_OP_ADD_BIAS);
        step->a = tensor;
        step->bias = result->late_bias;
        step->dst = sum;
        oct_step_done(b, step);
        tensor = sum;
    }
    return tensor;
}

void oct_produce_quantized(oct_builder *b, uint8_t tensor, const oct_result *result) {
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_GIVEN, result->quantizer, true, false);
    how.row_place = OCTET_PLACE_OUT;
    how.slot = result->slot;
    (void)oct_quantize(b, tensor, &how);
}

void oct_produce(oct_builder *b, oct_product *product, const oct_result *result) {
    octet_plan_form last = result->quantizer ? OCTET_FORM_HIGH_PRECISION : OCTET_FORM_GIVEN;
    uint8_t tensor = oct_produce_sum(b, product, result, last);
    /* The caller wants the result quantized: y for the next layer, or dx for the one before. */
    if (result->quantizer) {
        oct_produce_quantized(b, tensor, result);
    }
}

void oct_fill_amaxes(oct_builder *b) {
    uint64_t written = 0;
    /* The amaxes are an argument: those that are not measured are left as they are. */
    if (b->raises) {
        return;
    }
    for (int i = 0; i < b->plan->step_count; i++) {
        written |= b->plan->steps[i].writes;
    }
    /* The amaxes are an output, one vector of all slots. Example: forward without
     * quantize_output measures input and weight, and the slot of the output is set to 0. */
    for (int i = 0; i < b->slots && b->amax[0] != OCTET_ABSENT; i++) {
        if (!(written >> b->amax[i] & 1)) {
            octet_step *step = oct_step(b, OCTET_OP_ZERO);
            step->to = b->amax[i];
            oct_step_done(b, step);
        }
    }
}
