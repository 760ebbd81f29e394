/* signature.h - what a front end must know of a call's plans, ready to index.
 *
 * A front end hands a call a list of tensors and gets a list back. Which of them are written,
 * which must live until backward, and where each argument of backward comes from is decided
 * here, once, from the plans. Nothing in a signature depends on a size. */
#ifndef OCTET_SIGNATURE_H
#define OCTET_SIGNATURE_H

#include "octet/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor of a call: one port where it is plain, its buffers where it is quantized. */
typedef struct octet_group {
    uint8_t name;  /* octet_plan_name */
    uint8_t form;  /* octet_plan_form */
    uint8_t start; /* the first port, or of an output the first of those that are made */
    uint8_t count; /* ports; 0: there is no such tensor */
    uint8_t is_mutable;
    uint8_t reserved[3];
    octet_quantizer quantizer;
} octet_group;

/* Live state that a layer lends to backward, in this order. SEED never comes with SCALE. */
typedef enum octet_lent {
    OCTET_LENT_SCALE = 0, /* delayed scaling's scales of gradients, */
    OCTET_LENT_HISTORY,   /* and their amax history */
    OCTET_LENT_SEED,
    OCTET_LENT_MAIN_GRAD,
    OCTET_LENT_BIAS_MAIN_GRAD,
    OCTET_LENT_QUEUE, /* of what a later weight gradient needs */
    OCTET_LENTS
} octet_lent;

/* Something that must live until backward: argument or output `index`. */
typedef struct octet_saved {
    uint8_t is_argument;
    uint8_t index; /* of args where it is one, else of the tensors that the call returns */
} octet_saved;

/* A collective that the caller runs after the steps of a phase, from one place to another. A
 * caller that can do other work meanwhile may begin it earlier and wait for it later. */
typedef struct octet_collective_call {
    uint8_t kind; /* octet_collective */
    uint8_t phase;
    uint8_t from_place; /* octet_place: an argument, an output, an exchange, the saved block */
    uint8_t from_port;
    uint8_t to_place;
    uint8_t to_port;
    uint8_t from_item; /* in a block: which of its octet_block_buffers; else 0 */
    uint8_t to_item;
    uint8_t begin; /* it may begin once so many phases have run */
    uint8_t end; /* it must be done before this phase runs; `phases`: before the call returns */
    uint8_t
        chunk; /* it sends this one of `chunks` equal parts of the rows; else OCTET_ABSENT */
    uint8_t chunks;
} octet_collective_call;

/* A piece of memory that a phase uses: a port, or a block as a whole. */
typedef struct octet_region {
    uint8_t place; /* octet_place */
    uint8_t port;  /* of RESTORED: which plan saved it; of SAVED: 0 */
    uint8_t is_written;
    uint8_t reserved;
} octet_region;

#define OCTET_REGIONS 64
typedef struct octet_regions {
    uint32_t size;
    int32_t count;
    octet_region at[OCTET_REGIONS];
} octet_regions;

/* Forward. An argument is a tensor, or, where `flat`, one buffer of a tensor. A call returns
 * the buffers of its outs, one after the other, and then the block that it saves. */
typedef struct octet_signature {
    uint32_t size;
    uint8_t flat;
    uint8_t arg_count;
    uint8_t out_count;
    uint8_t saved_count;
    uint8_t saves_block;
    uint8_t returned;     /* tensors that the call returns */
    uint8_t delays_wgrad; /* backward leaves the weight's gradient for later */
    uint8_t lent_count;
    uint8_t lent[OCTET_LENTS]; /* octet_lent */
    uint8_t has_backward;
    uint8_t returns_amaxes; /* or its backward does: what raise_amax makes an argument */
    uint8_t phases;
    uint8_t collective_count;
    uint8_t reserved[2];
    octet_collective_call collectives[OCTET_PLAN_EXCHANGES]; /* in the order of their steps */
    octet_saved saved[OCTET_PLAN_SLOTS];                     /* besides the block */
    octet_group args[OCTET_PLAN_ARGS];
    octet_group outs[OCTET_PLAN_OUTS]; /* that are not arguments */
} octet_signature;

#define OCTET_GRADS 5

/* Backward. Its arguments are places in the pool: the gradient that arrived; what forward
 * saved, in order, its block last; what the layer lends, in order. */
typedef struct octet_backward_signature {
    uint32_t size;
    uint8_t read_count;
    uint8_t written_count;
    uint8_t later_count;
    uint8_t returned; /* tensors that the call returns */
    uint8_t records;  /* it raises amaxes */
    uint8_t phases;
    uint8_t collective_count;
    uint8_t reserved[5];
    octet_collective_call collectives[OCTET_PLAN_EXCHANGES];
    uint8_t read[OCTET_PLAN_ARGS + 1];
    uint8_t written[OCTET_PLAN_ARGS];
    /* What a later weight gradient takes; OCTET_ABSENT: the block that backward saves. */
    uint8_t later[OCTET_PLAN_ARGS + 2];
    octet_group grads[OCTET_GRADS]; /* of input, weight, bias, gamma and beta */
} octet_backward_signature;

/* "weight.cached": what a group is, for people. */
OCTET_API size_t octet_group_print(char *text, size_t size, const octet_group *group);

/* Of a chain of octet_plan_chain, at whatever sizes. *out needs no initializer. `flat`: of a
 * quantized argument the caller hands over the buffers one by one. */
OCTET_API void octet_signature_of(octet_signature *out, const octet_chain *chain, bool flat);
/* The collectives of plan `at` of a chain, in the order of their steps; gives how many. */
OCTET_API int octet_collectives_of(octet_collective_call out[OCTET_PLAN_EXCHANGES],
                                   const octet_chain *chain, int at);
/* What the steps of a phase read and write, the workspace aside, by place and port. */
OCTET_API void octet_phase_regions(octet_regions *out, const octet_plan *plan, int phase);
/* Of a chain that has a backward; else *out is empty. */
OCTET_API void octet_backward_signature_of(octet_backward_signature *out,
                                           const octet_chain *chain, bool flat);

#ifdef __cplusplus
}
#endif

#endif
