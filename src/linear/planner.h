/* planner.h - the planners of a Linear, and what they share.
 *
 * A comment above a branch says which case it is and why, and ends with an example: "e.g.", the
 * words of a problem in backquotes, and what the print-out of its plans has, or has not ("no").
 * Sizes are 256 and the input is bf16 where the words do not say. A test plans every example.
 */
#ifndef OCT_LINEAR_PLANNER_H
#define OCT_LINEAR_PLANNER_H

#include "linear/args.h"
#include "plan/ops.h"

/* A Linear's plan under construction: what is asked, what follows from it, and the builder. */
typedef struct oct_planner {
    oct_builder *b;
    const octet_linear_args *args;
    oct_facts facts;
    uint8_t sums; /* of dy's columns, where the device sums some rows at a time; made when first
                   * asked for */
    /* Of a prologue, tensors: its input, a norm's row statistics and parameters. */
    uint8_t x, stats, gamma, beta;
    uint8_t packed;    /* its input in 8 bits, where that is saved in its place */
    oct_pieces pieces; /* of what ranks gather in chunks */
} oct_planner;

/* Begins the plan in *b, which the planner points to. */
oct_planner oct_planner_start(oct_builder *b, octet_plan *plan, octet_plan_kind kind,
                              const octet_linear_args *args, octet_error *err);
/* An argument of the Linear; its name gives its rows and columns. */
uint8_t oct_linear_argument(oct_planner *p, octet_plan_name name, const octet_proto *proto);
/* A main_grad: an argument that is written, shaped as `of`; dtype NONE: F32. */
uint8_t oct_written_argument(oct_planner *p, octet_plan_name name, const octet_proto *of,
                             uint8_t dtype);

/* Args that have passed their check. */
octet_status oct_plan_forward(octet_plan *plan, const octet_linear_args *args,
                              octet_error *err);
/* Each from the plan before it, whose saved tensors it reads. */
octet_status oct_plan_backward(octet_plan *plan, const octet_plan *forward,
                               const octet_linear_backward_args *args, octet_error *err);
octet_status oct_plan_later_wgrad(octet_plan *plan, const octet_plan *backward,
                                  const octet_linear_backward_args *args, octet_error *err);

/* Sequence parallel: whether every rank needs all rows of the input, or of grad_output. */
static inline bool oct_gathers_input(const oct_planner *p) {
    return p->facts.sequence && p->facts.parallel == OCTET_PARALLEL_COLUMN;
}

static inline bool oct_gathers_grad(const oct_planner *p) {
    return p->facts.sequence && p->facts.parallel == OCTET_PARALLEL_ROW;
}

/* Every rank's rows: all of them in `place`, or where the plan cuts them p->pieces. */
oct_operand oct_gathered(oct_planner *p, uint8_t tensor, octet_use use, octet_place place);

/* ---- forward ---- */

/* What forward saves of the input for wgrad. */
typedef enum oct_saving {
    OCT_SAVE_NOTHING,
    OCT_SAVE_ARGUMENT, /* the caller's tensor: an alias, no bytes of our own */
    OCT_SAVE_ROW,      /* the rowwise bytes that fprop reads, too */
    OCT_SAVE_COL       /* columnwise bytes, made by the same cast */
} oct_saving;
oct_saving oct_input_saving(const oct_planner *p);
/* The cast of the input: rowwise for fprop, columnwise too where wgrad will read that. The
 * direction that is saved goes into the saved arena, the other one into the workspace. */
oct_quantizing oct_input_cast(const oct_planner *p);
/* x and w as fprop reads them. What backward will read of them is saved. */
oct_operand oct_forward_input(oct_planner *p, uint8_t x);
oct_operand oct_forward_weight(oct_planner *p, uint8_t w);
/* Saves the scale that delayed scaling used for a role: backward will quantize this argument
 * again, and by then the layer's scales may have been updated. */
void oct_save_scale(oct_planner *p, octet_role role);

/* The transform that wgrad's columnwise operands carry. */
static inline uint8_t oct_wgrad_hadamard(const oct_planner *p) {
    return p->facts.role[OCTET_GRAD_OUTPUT].hadamard;
}

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
/* The form of what a product leaves: the output, or what is quantized into it. */
octet_plan_form oct_form_of(const oct_result *result);
/* The same in steps: the product with its collective, in the chunks that the plan has; the sum
 * of that and the bias in the form that was asked for, an output where it is GIVEN; and what is
 * left. Steps between the first two do not wait for the collective. */
typedef struct oct_tail {
    uint8_t chunks[OCTET_MOST_CHUNKS]; /* tensors; one where the product is whole */
    octet_dim rows;
    uint8_t joined; /* the tensor that they are put together in; OCTET_ABSENT: chunks[0] is
                       the result up to here */
    octet_plan_form form;
} oct_tail;
oct_tail oct_produce_start(oct_builder *b, oct_product *product, const oct_result *result,
                           octet_plan_form form);
/* A product of pieces of its first operand, as they arrive; tail.chunks[0] is the whole
 * result. */
oct_tail oct_produce_pieces(oct_builder *b, oct_product *product, const oct_result *result,
                            const oct_pieces *pieces, octet_plan_form form);
uint8_t oct_produce_join(oct_builder *b, const oct_tail *tail, const oct_result *result);
void oct_produce_finish(oct_builder *b, const oct_tail *tail, const oct_result *result);
/* A tensor quantized as the result says, into an output. */
void oct_produce_quantized(oct_builder *b, uint8_t tensor, const oct_result *result);

/* Zeros the amaxes that no step wrote, where they are an output. */
void oct_fill_amaxes(oct_builder *b);

/* Makes what the previous plan saved this plan's restored tensors and arguments. */
void oct_restore(oct_builder *b, const octet_plan *previous);
uint8_t oct_restored(const oct_builder *b, octet_plan_name name);
/* The one of that form. */
uint8_t oct_restored_as(const oct_builder *b, octet_plan_name name, octet_plan_form form);

/* ---- prologue ---- */

/* f(x), which takes the input's place in all that follows. What backward will read is saved. */
uint8_t oct_forward_prologue(oct_planner *p);
/* How often K the columns of the input are. */
octet_dim oct_input_columns(const oct_planner *p);
/* save=memory: whether backward casts f(x) again, and forward saves no bytes of it. */
bool oct_saves_no_cast(const oct_planner *p);
/* What wgrad multiplies: what forward saved of f(x), or f(x) again. */
uint8_t oct_prologue_input(oct_planner *p);
/* Whether a wgrad finds no cast of f(x) and computes it from x. */
bool oct_prologue_again(const oct_planner *p);
/* Finds what forward saved for it. */
void oct_prologue_restore(oct_planner *p);
/* dx, and the gradients of gamma and beta, from that of f(x). `dx` is how dx is handed out. */
void oct_plan_prologue_grad(oct_planner *p, uint8_t grad, const oct_result *dx);

/* ---- backward ---- */

/* grad_output as each product reads it. */
typedef struct oct_grads {
    oct_operand row;    /* for dgrad */
    oct_operand col;    /* for wgrad */
    oct_gathering late; /* columnwise shards that are put together after dgrad's pieces */
} oct_grads;
oct_grads oct_grad_operands(oct_planner *p, uint8_t dy);
/* What wgrad reads of it, once dgrad has taken what ranks gathered in pieces. */
oct_operand oct_wgrad_operand(oct_planner *p, const oct_grads *made);
/* The column sums of dy, which are made once: beside its cast, or by the step that adds them
 * up. */
uint8_t oct_grad_sums(oct_planner *p, uint8_t dy);
/* The columns of a tensor, summed some rows at a time, as the device does it; OCTET_ABSENT
 * where it sums all at once. */
uint8_t oct_column_sums(oct_planner *p, uint8_t tensor, octet_plan_name name);

/* dw = dy^T x, into main_grad or the output. Shared by backward and the plan that delays it. */
void oct_plan_wgrad(oct_planner *p, oct_operand grad_output);

#endif
