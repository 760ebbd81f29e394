/* group.h - a Linear layer's plans run on memory made for them, on one rank or several. */
#ifndef OCTET_RUN_GROUP_H
#define OCTET_RUN_GROUP_H

#include "decode.h"

#define RUN_RANKS 4
#define RUN_PLANS 3

typedef octet_status run_phase(const octet_plan *plan, int phase, const octet_memory *memory,
                               const octet_exec *exec, octet_error *err);

typedef struct run_options {
    uint64_t seed;
    int fill;         /* of memory that the plan is to write */
    int threads;      /* 0: serial */
    int lanes;        /* workers that the plan has workspace for; 0: as many as threads */
    bool strided;     /* rows of plain arguments lie apart */
    bool shared;      /* the workspace's buffers lie as the plan says, not all apart: what a
                       * step has made may be gone at the end */
    octet_cuda *cuda; /* runs plans for a GPU, whose memory is the host's */
    run_phase *run;   /* what runs them; NULL: octet_run_phase */
} run_options;

/* The whole layer in double precision, whatever the ranks hold of it. */
typedef struct run_layer {
    run_values x, w, b, dy;              /* b is 1 x N; x has 2K columns if it is gated */
    run_values gamma, beta;              /* 1 x K */
    run_values y, dx, dw, db;            /* db is 1 x N */
    run_values main_grad;                /* before the run, */
    run_values bias_main_grad;           /* as is this, 1 x N */
    float scale[2][OCTET_FORWARD_SLOTS]; /* delayed scaling's, forward and backward */
    float amax[2][OCTET_FORWARD_SLOTS];  /* likewise, before the run, where it raises them */
    int64_t seed;                        /* stochastic rounding */
} run_layer;

typedef struct run_group {
    octet_linear_backward_args args;
    run_options options;
    octet_plan plans[RUN_PLANS]; /* forward, backward, wgrad */
    int count, ranks;
    run_layer layer;
    octet_memory memory[RUN_RANKS][RUN_PLANS];
    void **blocks; /* everything allocated, each with its size and a guard */
    int block_count;
    octet_error err;
} run_group;

/* Plans the chain and makes its data and memory. Free it in any case. */
octet_status run_group_make(run_group *group, const octet_linear_backward_args *args,
                            const run_options *options);
/* Forward, backward and wgrad on every rank, with the collectives between phases. */
octet_status run_group_run(run_group *group);
void run_group_free(run_group *group);

/* Whether outputs, saved blocks and what was added to are equal, byte for byte. */
bool run_same_results(const run_group *a, const run_group *b);

/* Blocks whose guard was overwritten. */
int run_group_overruns(const run_group *group);

/* Of everything allocated; of large blocks, which are workspace, the first bytes. */
uint64_t run_group_hash(const run_group *group);

/* Where a buffer of a plan lies on a rank; NULL when absent. */
void *run_at(const run_group *group, int rank, int plan, int buffer);
/* A tensor of a plan in a rank's memory. */
run_view run_view_of(const run_group *group, int rank, int plan, int tensor);
/* The whole tensor that goes by a name, octet_plan_name. */
const run_values *run_whole(const run_layer *layer, int name);
/* What a rank's tensor of this shape is of the whole. */
run_values run_local(const run_values *whole, int rank, int64_t rows, int64_t cols);

/* What the layer's prologue makes of x, as a step of its own on the CPU; memory is the group's.
 */
typedef struct run_applied {
    run_view x;
    const void *gamma, *beta;
} run_applied;
octet_status run_apply(run_view *out, run_group *group, const run_applied *of);

/* The parts of `values` in a dtype, quantized by octet_plan_quantize; memory is the group's. */
typedef struct run_quantizing {
    octet_quantizer quantizer;
    octet_dtype dtype;
    float scale;         /* delayed */
    const int64_t *seed; /* stochastic rounding, by */
    uint8_t stream;      /* octet_stream */
} run_quantizing;
octet_status run_quantize(run_group *group, void *parts[OCTET_PARTS], const run_values *values,
                          const run_quantizing *how);

#endif
