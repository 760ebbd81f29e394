/* signature.h - what a front end must know about a call's plans, as tables of indices. A front
 * end passes a list of tensors to a call and gets a list back. The signature says which of them
 * are written, which must live until backward, and where each argument of backward comes from.
 * It is computed once from the plans. Nothing in it depends on a size. */
#ifndef OCTET_SIGNATURE_H
#define OCTET_SIGNATURE_H

#include "octet/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor of a call: one port if it is plain, one for each buffer if it is quantized. */
typedef struct octet_call_tensor {
    uint8_t name;  /* octet_plan_name */
    uint8_t form;  /* octet_plan_form */
    uint8_t start; /* the first port; for an output, the first among the returned tensors */
    uint8_t count; /* number of ports; 0: there is no such tensor */
    uint8_t is_mutable;
    uint8_t reserved[3];
    octet_quantizer quantizer;
} octet_call_tensor;

/* Live state that a layer passes to backward, in this order. SEED and SCALE never occur
 * together. */
typedef enum octet_lent {
    OCTET_LENT_SCALE = 0, /* delayed scaling's scales of gradients */
    OCTET_LENT_HISTORY,   /* amax history of gradients */
    OCTET_LENT_SEED,
    OCTET_LENT_MAIN_GRAD,
    OCTET_LENT_BIAS_MAIN_GRAD,
    OCTET_LENT_QUEUE, /* queue for what a later weight gradient needs */
    OCTET_LENTS
} octet_lent;

/* Something that must live until backward: argument or output `index`. */
typedef struct octet_saved {
    uint8_t is_argument;
    uint8_t index; /* index of the argument, or of the returned tensor */
} octet_saved;

/* A collective that the caller runs after the steps of a phase, from one place to another. A
 * caller that can do other work meanwhile may begin it earlier and wait for it later. */
typedef struct octet_collective_call {
    uint8_t kind; /* octet_collective */
    uint8_t phase;
    uint8_t from_place; /* octet_place: an argument, an output, an exchange, the saved arena */
    uint8_t from_port;
    uint8_t to_place;
    uint8_t to_port;
    uint8_t from_item; /* in an arena: the number of the buffer in octet_arena_buffers; else 0
                        */
    uint8_t to_item;
    uint8_t begin; /* it may begin after this many phases */
    uint8_t end;   /* it must end before this phase; `phases`: before the call returns */
    uint8_t
        chunk; /* it sends only this one of `chunks` equal parts of the rows; OCTET_ABSENT: all
                */
    uint8_t chunks;
} octet_collective_call;

/* Memory that a phase uses: a port, or an arena as a whole. */
typedef struct octet_region {
    uint8_t place; /* octet_place */
    uint8_t port;  /* RESTORED: the plan that saved it; SAVED: 0 */
    uint8_t is_written;
    uint8_t reserved;
} octet_region;

#define OCTET_REGIONS 64
typedef struct octet_regions {
    uint32_t size;
    int32_t count;
    octet_region at[OCTET_REGIONS];
} octet_regions;

/* Forward. An argument is a tensor or, if `flat`, one buffer of a tensor. A call returns the
 * buffers of its outputs, one after the other, then the arena that it saves. */
typedef struct octet_signature {
    uint32_t size;
    uint8_t flat;
    uint8_t arg_count;
    uint8_t out_count;
    uint8_t saved_count;
    uint8_t saves_arena;
    uint8_t returned;     /* tensors that the call returns */
    uint8_t delays_wgrad; /* the weight's gradient is computed by a later call */
    uint8_t lent_count;
    uint8_t lent[OCTET_LENTS]; /* octet_lent */
    uint8_t has_backward;
    uint8_t returns_amaxes; /* it, or its backward, returns amaxes (with raise_amax they are an
                             * argument) */
    uint8_t phases;
    uint8_t collective_count;
    uint8_t reserved[2];
    octet_collective_call collectives[OCTET_PLAN_EXCHANGES]; /* in the order of their steps */
    octet_saved saved[OCTET_PLAN_SAVED];                     /* saved besides the arena */
    octet_call_tensor args[OCTET_PLAN_ARGS];
    octet_call_tensor outs[OCTET_PLAN_OUTS]; /* outputs that are not arguments */
} octet_signature;

#define OCTET_GRADS 5

/* Backward. Its arguments are indices into its sources: the incoming gradient; then what
 * forward saved, in order, its arena last; then what the layer passes, in order. */
typedef struct octet_backward_signature {
    uint32_t size;
    uint8_t read_count;
    uint8_t written_count;
    uint8_t later_count;
    uint8_t returned; /* tensors that the call returns */
    uint8_t raises_amaxes;
    uint8_t phases;
    uint8_t collective_count;
    uint8_t reserved[5];
    octet_collective_call collectives[OCTET_PLAN_EXCHANGES];
    uint8_t read[OCTET_PLAN_ARGS + 1];
    uint8_t written[OCTET_PLAN_ARGS];
    /* What a later weight gradient takes. OCTET_ABSENT stands for the arena that backward
     * saves. */
    uint8_t later[OCTET_PLAN_ARGS + 2];
    octet_call_tensor grads[OCTET_GRADS]; /* of input, weight, bias, gamma and beta */
} octet_backward_signature;

/* "weight.cached": what a tensor of a call is, for people. */
OCTET_API size_t octet_call_tensor_print(char *text, size_t size,
                                         const octet_call_tensor *tensor);

/* The signature of a chain made by octet_plan_chain, at any sizes. *out needs no initializer.
 * `flat`: the caller passes the buffers of a quantized argument one by one. */
OCTET_API void octet_signature_of(octet_signature *out, const octet_chain *chain, bool flat);
/* The collectives of plan `at` of a chain, in the order of their steps. Returns how many. */
OCTET_API int octet_collectives_of(octet_collective_call out[OCTET_PLAN_EXCHANGES],
                                   const octet_chain *chain, int at);
/* What the steps of a phase read and write, except the workspace, by place and port. */
OCTET_API void octet_phase_regions(octet_regions *out, const octet_plan *plan, int phase);
/* Of a chain that has a backward; else *out is empty. */
OCTET_API void octet_backward_signature_of(octet_backward_signature *out,
                                           const octet_chain *chain, bool flat);

#ifdef __cplusplus
}
#endif

#endif
