/* plan.h - the planners, and what they share. */
#ifndef OCT_LINEAR_PLAN_H
#define OCT_LINEAR_PLAN_H

#include "linear/ops.h"

/* Args that have passed their check. */
octet_status oct_plan_forward(octet_plan *plan, const octet_linear_args *args,
                              octet_error *err);
octet_status oct_plan_backward(octet_plan *plan, const octet_linear_backward_args *args,
                               octet_error *err);

/* Sequence parallel: whether every rank needs all rows of the input, or of grad_output. */
static inline bool oct_gathers_input(const oct_builder *b) {
    return b->facts.sequence && b->facts.parallel == OCTET_PARALLEL_COLUMN;
}

static inline bool oct_gathers_grad(const oct_builder *b) {
    return b->facts.sequence && b->facts.parallel == OCTET_PARALLEL_ROW;
}

/* The quantizer of a weight that forward makes, and whether a cache holds it. */
octet_quantizer oct_weight_quantizer(const oct_builder *b, const octet_linear_args *args);
bool oct_uses_cache(const oct_builder *b, const octet_linear_args *args);

/* The transform that wgrad's columnwise operands carry. */
uint8_t oct_wgrad_hadamard(const oct_builder *b);
/* The parts of a quantized tensor that oct_direction would read; of a plain one its values. */
uint32_t oct_wanted_parts(const oct_builder *b, uint8_t tensor, octet_use want,
                          uint8_t hadamard);

/* A product's way to the output: reduced, biased, quantized, each where asked for. */
typedef struct oct_result {
    octet_plan_name name;
    uint8_t dtype;
    octet_dim rows, cols; /* of the product */
    octet_collective collective;
    uint8_t late_bias;                /* a buffer added after the collective, or OCTET_ABSENT */
    const octet_quantizer *quantizer; /* NULL: the output is plain */
    int slot;
} oct_result;
void oct_produce(oct_builder *b, oct_product *product, const oct_result *result);

/* Zeros the amaxes that no step wrote, where they are an output. */
void oct_fill_amaxes(oct_builder *b);

/* Makes what the previous plan saved this plan's kept tensors and arguments. */
void oct_restore(oct_builder *b, const octet_plan *previous);
uint8_t oct_kept(const oct_builder *b, octet_plan_name name);

/* dw = dy^T x, into main_grad or the output. Shared by backward and the plan that delays it. */
void oct_plan_wgrad(oct_builder *b, const octet_linear_args *args, oct_operand grad_output);

#endif
