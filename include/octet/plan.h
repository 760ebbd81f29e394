/* plan.h - what the call will do. */
#ifndef OCTET_PLAN_H
#define OCTET_PLAN_H

#include "octet/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plan: what the call will do ------------------------------------------------------- */

typedef enum octet_plan_kind {
    OCTET_PLAN_LINEAR = 0,
    OCTET_PLAN_LINEAR_BACKWARD,
    OCTET_PLAN_LINEAR_WGRAD, /* the part of backward that delay_wgrad leaves for later */
    OCTET_PLAN_QUANTIZE,
    OCTET_PLAN_DEQUANTIZE,
    OCTET_PLAN_KINDS
} octet_plan_kind;

/* What a tensor of the plan is, and in which form. Printed as "input.quantized". */
typedef enum octet_plan_name {
    OCTET_NAME_INPUT = 0,
    OCTET_NAME_WEIGHT,
    OCTET_NAME_BIAS,
    OCTET_NAME_OUTPUT,
    OCTET_NAME_GRAD_OUTPUT,
    OCTET_NAME_GRAD_INPUT,
    OCTET_NAME_GRAD_WEIGHT,
    OCTET_NAME_GRAD_BIAS,
    OCTET_NAME_MAIN_GRAD,
    OCTET_NAME_BIAS_MAIN_GRAD,
    OCTET_NAME_INPUT_SCALE, /* the scale that forward's delayed quantizer used, when backward */
    OCTET_NAME_WEIGHT_SCALE, /* quantizes again */
    OCTET_NAME_SCALE,        /* delayed scaling's scales by octet_slot */
    OCTET_NAME_AMAX, /* an output: this call's amaxes, likewise, 0 where nothing was measured.
                      * With raise_amax an argument: each is raised to this call's as
                      * octet_delayed_record does, or left alone; a history's row 0 will do */
    OCTET_NAME_SEED, /* one int64, read only: the seed of stochastic rounding. Every plan that
                      * rounds so has this argument. The calls of one layer may share a seed:
                      * see octet_stream. A seed that is passed again gives the same bytes */
    OCTET_NAME_SCRATCH, /* a GEMM's own, in no step's reads or writes */
    OCTET_NAME_NOTES,   /* what a QUANTIZE leaves for GEMMs, as its device likes */
    OCTET_NAME_GAMMA,   /* a norm's parameters, and their gradients */
    OCTET_NAME_BETA,
    OCTET_NAME_GRAD_GAMMA,
    OCTET_NAME_GRAD_BETA,
    OCTET_NAME_STATISTICS, /* of a norm, f32: each row's rstd, or its mean and rstd */
    OCTET_NAMES
} octet_plan_name;

/* Where each role's scale and amax lie in the vectors of delayed scaling. Forward's vectors
 * have OCTET_FORWARD_SLOTS floats; those of backward, and of a wgrad that runs later,
 * OCTET_BACKWARD_SLOTS. A slot of a role that a call does not quantize is not used. The plan of
 * one tensor, octet_plan_quantize, has one slot. */
typedef enum octet_slot {
    OCTET_SLOT_INPUT = 0,
    OCTET_SLOT_WEIGHT,
    OCTET_SLOT_OUTPUT, /* with quantize_output */
    OCTET_FORWARD_SLOTS,
    OCTET_SLOT_GRAD_OUTPUT = 0,
    OCTET_SLOT_GRAD_INPUT, /* with quantize_grad_input */
    OCTET_BACKWARD_SLOTS
} octet_slot;

typedef enum octet_plan_form {
    OCTET_FORM_GIVEN = 0, /* as the caller knows it */
    OCTET_FORM_QUANTIZED,
    OCTET_FORM_REQUANTIZED, /* the direction that a quantized argument lacked */
    OCTET_FORM_CACHED,
    OCTET_FORM_CAST,
    OCTET_FORM_DEQUANTIZED,
    OCTET_FORM_STACKED,  /* every rank's shard, one after the other: dims (ranks, ...) */
    OCTET_FORM_GATHERED, /* every rank's shard as one tensor */
    OCTET_FORM_PARTIAL,  /* this rank's summand */
    OCTET_FORM_REDUCED,
    OCTET_FORM_HIGH_PRECISION, /* a result before it is quantized */
    OCTET_FORM_MEASURED,       /* an amax: a scalar, or a quantizer's amax parts alone */
    OCTET_FORM_SWIZZLED,
    OCTET_FORM_EMULATED, /* operand of an emulated GEMM */
    OCTET_FORM_PADDED,   /* operand or result of a native one, as a GPU's library takes it */
    OCTET_FORM_FOLDED,   /* operand of a folded one: FP8 in blocks of 128, sizes rounded up */
    OCTET_FORM_PROLOGUE, /* the prologue's result, or the gradient of that */
    OCTET_FORM_PIECE,    /* a chunk of every rank's rows, rank after rank */
    OCTET_FORM_PACKED, /* an activation's input in 8 bits, which backward reads in its place */
    OCTET_FORMS
} octet_plan_form;

typedef enum octet_place {
    OCTET_PLACE_ARG = 0,  /* in argument `port` */
    OCTET_PLACE_OUT,      /* in output `port` */
    OCTET_PLACE_SAVED,    /* in the block this plan saves for the next */
    OCTET_PLACE_RESTORED, /* in the block that forward (port 0) or backward (port 1) saved */
    OCTET_PLACE_WORK,     /* in the workspace */
    OCTET_PLACE_EXCHANGE, /* in exchange `port`: memory that outlives a phase, because a
                           * collective or a later phase reads it */
    OCTET_PLACES
} octet_place;

/* What a step does, and so which buffers it reads and writes. */
typedef enum octet_op {
    OCTET_OP_ZERO = 0,   /* buffer `to` = 0 */
    OCTET_OP_CAST,       /* dst = a in dst's dtype, or in the same one: a copy */
    OCTET_OP_AMAX,       /* amax of a: dst's amax parts where it has any, else buffer `amax` */
    OCTET_OP_QUANTIZE,   /* dst = quantized a, every direction dst has; its amax parts are read;
                          * copies are what an emulated or a folded GEMM reads instead; AMAX and
                          * QUANTIZE that `apply` read the plan's prologue of a instead of a */
    OCTET_OP_DEQUANTIZE, /* dst = a decoded from the bytes of a_use */
    OCTET_OP_TRANSPOSE,  /* dst's own parts = a's bytes and scales of a_use, turned round */
    OCTET_OP_SWIZZLE,    /* dst's own scale = a's scale of a_use in tensor-core order */
    OCTET_OP_ASSEMBLE,   /* dst's parts that a has, too = the shards stacked in a; of a chunk,
                          * these rows of each */
    OCTET_OP_JOIN,       /* a chunk of every rank's rows of dst = a, which has these alone:
                          * values, or rowwise codes */
    OCTET_OP_GEMM,       /* dst = a b (+ bias, + dst) */
    OCTET_OP_ADD_BIAS,   /* dst = a + bias */
    OCTET_OP_BIAS_GRAD,  /* dst = column sums of a (+ dst) */
    OCTET_OP_STATISTICS, /* dst = each row's statistics of a, as the plan's prologue wants them
                          */
    OCTET_OP_PROLOGUE, /* dst = the plan's prologue of a, by `stats`, gamma and the bias, beta;
                        * writes the amax of dst where it has one */
    OCTET_OP_PROLOGUE_GRAD, /* dst = its gradient: a is that of its result, b its input */
    OCTET_OP_GAMMA_GRAD,    /* dst = gamma's gradient, from the same a and b */
    OCTET_OP_COLLECTIVE,    /* between phases, by the caller: buffer `from` to buffer `to` */
    OCTET_OPS
} octet_op;

typedef enum octet_collective {
    OCTET_COLLECTIVE_NONE = 0,
    OCTET_ALL_GATHER,
    OCTET_REDUCE_SCATTER,
    OCTET_ALL_REDUCE_SUM,
    OCTET_ALL_REDUCE_MAX
} octet_collective;

/* Which random bits of a seed round a tensor. Each role has its own: so forward and backward
 * may share a seed, and no two tensors of a layer are rounded by the same bits. A tensor that
 * is quantized again, for the other direction or in a later plan, keeps its stream. */
typedef enum octet_stream {
    OCTET_STREAM_ALONE = 0,       /* octet_plan_quantize */
    OCTET_STREAM_GRAD_OUTPUT = 0, /* the role that recipes round so */
    OCTET_STREAM_INPUT,
    OCTET_STREAM_WEIGHT,
    OCTET_STREAM_OUTPUT,
    OCTET_STREAM_GRAD_INPUT,
    OCTET_STREAM_GRAD_WEIGHT
} octet_stream;

typedef enum octet_use { OCTET_USE_VALUES = 0, OCTET_USE_ROW, OCTET_USE_COL } octet_use;

#define OCTET_ABSENT 255 /* no tensor, buffer or port */
#define OCTET_PLAN_ARGS 20
#define OCTET_PLAN_OUTS 12
#define OCTET_PLAN_EXCHANGES 28
#define OCTET_PLAN_SLOTS 16
#define OCTET_PLAN_TENSORS 40
#define OCTET_PLAN_BUFFERS 64
#define OCTET_PLAN_STEPS 48
#define OCTET_ALIGN 256 /* of every buffer inside a block, in bytes */

/* Memory the caller hands over: an argument, an output or an exchange. */
typedef struct octet_port {
    uint8_t name;  /* octet_plan_name */
    uint8_t form;  /* octet_plan_form */
    uint8_t part;  /* octet_part */
    uint8_t dtype; /* octet_dtype of the stored elements */
    uint8_t ndim;
    uint8_t is_mutable; /* an argument that is also written */
    uint8_t alias;      /* of an output: the argument it is, not written; else OCTET_ABSENT */
    uint8_t reserved;
    octet_dim dims[3];
    int64_t shape[3]; /* the dims as numbers */
    int64_t bytes;
} octet_port;

/* Tensors may share a buffer; the buffer's `tensor` is the one that owns it. */
typedef struct octet_plan_tensor {
    uint8_t name;  /* octet_plan_name */
    uint8_t form;  /* octet_plan_form */
    uint8_t dtype; /* octet_dtype it stands for */
    uint8_t reserved;
    octet_dim rows, cols;
    octet_quantizer quantizer;    /* scheme NONE: plain */
    uint8_t buffers[OCTET_PARTS]; /* by octet_part: index into the plan's buffers */
} octet_plan_tensor;

typedef struct octet_plan_buffer {
    uint8_t tensor;
    uint8_t part;  /* octet_part */
    uint8_t dtype; /* octet_dtype of the stored elements */
    uint8_t place; /* octet_place */
    uint8_t port;
    uint8_t ndim;
    uint8_t ragged; /* it has no bytes, and is not used, where no dimension is rounded up */
    uint8_t sized;  /* a scratch: its device says how many bytes it has at these sizes; its one
                     * dimension is the workers that it is for */
    octet_dim dims[3];
    int64_t shape[3];
    int64_t offset; /* bytes from the start of its port or block */
    int64_t bytes;
} octet_plan_buffer;

typedef struct octet_step {
    uint8_t op;         /* octet_op */
    uint8_t phase;      /* collectives of phase p run after the other steps of phase p */
    uint8_t dst;        /* tensors */
    uint8_t a;          /* fprop: input, dgrad and wgrad: grad_output */
    uint8_t b;          /* fprop and dgrad: weight, wgrad: input */
    uint8_t a_use;      /* octet_use: which bytes of a are read. Rowwise bytes where the */
    uint8_t b_use;      /* product runs along the rows are read across. */
    uint8_t gemm;       /* octet_gemm */
    uint8_t accumulate; /* GEMM and BIAS_GRAD add to dst; AMAX and QUANTIZE raise the amax that
                         * is there */
    uint8_t split;      /* GEMM accumulates in split mode */
    uint8_t native;     /* GEMM multiplies the bytes as they are; else by exact emulation, */
    uint8_t a_copy; /* on operands decoded into these tensors: written first, or read where */
    uint8_t b_copy; /* the QUANTIZE that made the bytes has written them, rowwise to a_copy;
                       or on operands folded into them, likewise: OCTET_FORM_FOLDED. A
                       native one copies ragged bytes into them, zeros behind and below. */
    uint8_t collective; /* octet_collective */
    uint8_t from;       /* buffers */
    uint8_t to;
    uint8_t bias;
    uint8_t scale;      /* QUANTIZE reads this scale instead of an amax, */
    uint8_t amax;       /* and writes the amax here; without a scale it reads it from here */
    uint8_t seed;       /* QUANTIZE with stochastic rounding: the caller's seed */
    uint8_t row_unread; /* QUANTIZE: no step reads its rowwise bytes but GEMMs that have the */
    uint8_t col_unread; /* copy; who makes that without them need not write them */
    uint8_t scratch;    /* memory for the device's own use. Of a GEMM: while it runs, and reads
                         * and writes do not list it. Of a QUANTIZE: what it leaves there is for
                         * the GEMMs that list it among their reads */
    uint8_t sums; /* column sums of some rows of a at a time, in this tensor: QUANTIZE, or AMAX
                   * of NVFP4, writes them; BIAS_GRAD reads them, or else writes them first */
    uint8_t stream; /* QUANTIZE with stochastic rounding: octet_stream */
    uint8_t chunk;  /* which of the plan's `chunks`; OCTET_ABSENT: all. GEMM makes these columns
                     * of a whole result, and dst has no others; CAST and ADD_BIAS put a, which
                     * has these alone, into a dst that has all. With `by_rows` GEMM multiplies
                     * a piece, and a COLLECTIVE sends these rows of `from` alone */
    uint8_t gamma;  /* buffer: a norm's */
    uint8_t stats;  /* tensor: the row statistics that a norm reads */
    uint8_t apply;  /* AMAX, QUANTIZE: each element is the plan's prologue of a, rounded to a's
                     * dtype, by `stats`, gamma and the bias, beta; it is written nowhere */
    uint8_t invariant; /* GEMM: a row of dst depends on its own row of a and on b alone, and not
                        * on how many rows there are; it is native, and nothing is copied */
    uint8_t reserved[2];
    uint64_t reads; /* bit i: buffer i */
    uint64_t writes;
} octet_step;

/* A plain value of fixed size without pointers or padding: copy it, compare it, print it. */
typedef struct octet_plan {
    uint32_t size;
    uint8_t kind;   /* octet_plan_kind */
    uint8_t phases; /* of steps; collectives after the last step begin no new one */
    uint8_t arg_count;
    uint8_t out_count;
    uint8_t exchange_count;
    uint8_t saved_count;
    uint8_t restored_count;
    uint8_t tensor_count;
    uint8_t buffer_count;
    uint8_t step_count;
    uint8_t recipe; /* octet_recipe_kind, for the reader */
    uint8_t chunks; /* that a product is made in: of the columns that are scattered, or by_rows
                     * of what is gathered; 1: it is whole */
    uint32_t tp_size;
    octet_device device;
    uint32_t row_multiple;   /* m must be a multiple of it; 1 but where ranks share rows */
    uint32_t chunk_multiple; /* likewise what is cut into chunks: n, of dgrad k; by_rows m */
    uint8_t prologue;        /* octet_prologue */
    uint8_t zero_centered;   /* where it is a norm */
    uint8_t by_rows;         /* chunks are of every rank's rows; else of columns */
    uint8_t reserved;
    float eps;             /* likewise */
    octet_extents extents; /* m: the rows of this rank's input */
    int64_t saved_bytes;   /* the block to hold until the next plan of the chain has run */
    int64_t aliased_bytes; /* the caller's, or restored, that must stay alive besides */
    int64_t workspace_bytes;
    octet_port args[OCTET_PLAN_ARGS];
    octet_port outs[OCTET_PLAN_OUTS];
    octet_port exchanges[OCTET_PLAN_EXCHANGES];
    uint8_t saved[OCTET_PLAN_SLOTS];    /* buffers the next plan reads: stored or aliases */
    uint8_t restored[OCTET_PLAN_SLOTS]; /* where each slot of the previous plan is found here */
    octet_plan_tensor tensors[OCTET_PLAN_TENSORS];
    octet_plan_buffer buffers[OCTET_PLAN_BUFFERS];
    octet_step steps[OCTET_PLAN_STEPS];
} octet_plan;

#define OCTET_PLAN_INIT OCTET_SIZED(octet_plan)

/* Bytes of stack that a call needs at most, in an optimized build, that makes, reads or prints
 * plans, signatures and arguments. Running a plan needs OCTET_RUN_STACK. */
#define OCTET_PLAN_STACK (128 << 10)

/* The structure of a plan (everything but shape, offset, bytes and extents) never depends on a
 * size. *out must come from OCTET_PLAN_INIT or be an earlier plan. */
OCTET_API OCTET_CHECKED octet_status octet_plan_linear(octet_plan *out,
                                                       const octet_linear_args *args,
                                                       octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_plan_linear_backward(
    octet_plan *out, const octet_linear_backward_args *args, octet_error *err);
/* OCTET_INVALID unless args.forward.delay_wgrad. */
OCTET_API OCTET_CHECKED octet_status octet_plan_linear_wgrad(
    octet_plan *out, const octet_linear_backward_args *args, octet_error *err);
/* The plan at other sizes: its numbers (shapes, offsets, bytes, totals) anew, for a fraction of
 * what planning costs. m counts the rows of this rank's input. previous is the plan before it
 * in the chain (forward of a backward, backward of a wgrad), bound to the same sizes; NULL for
 * the first. Where it fails *plan stays as it was. */
OCTET_API OCTET_CHECKED octet_status octet_plan_bind(octet_plan *plan,
                                                     const octet_plan *previous,
                                                     const octet_extents *sizes,
                                                     octet_error *err);
/* Whether a plan that somebody else made may be run at the sizes it has: every index, count and
 * size, the shapes that each step's operands have, what is read and written in which order, and
 * that no two written buffers share a byte. OCTET_OK: a run of it touches no memory but what
 * the plan asks for, if the caller hands over as much. It does not say that the plan computes
 * what somebody wants. Call it again after octet_plan_bind. Any thread may call it. */
OCTET_API OCTET_CHECKED octet_status octet_plan_check(const octet_plan *plan, octet_error *err);
/* All plans of a call, each planned once, in the order in which they run. */
#define OCTET_CHAIN_PLANS 3
typedef struct octet_chain {
    uint32_t size;
    int32_t count; /* 1: forward alone; 2: and backward; 3: and the wgrad that it delays */
    octet_plan plans[OCTET_CHAIN_PLANS];
} octet_chain;

/* *out needs no initializer. A call that wants no gradient has one plan. */
OCTET_API OCTET_CHECKED octet_status octet_plan_chain(octet_chain *out,
                                                      const octet_linear_backward_args *args,
                                                      octet_error *err);
/* All of them at other sizes. Where it fails the chain is of no more use. */
OCTET_API OCTET_CHECKED octet_status octet_chain_bind(octet_chain *chain,
                                                      const octet_extents *sizes,
                                                      octet_error *err);
/* What it reads, does, writes and saves, for people; several lines. */
OCTET_API size_t octet_plan_print(char *text, size_t size, const octet_plan *plan);
/* The buffers of the block that a plan saves, in the order in which they lie there, each
 * rounded up to OCTET_ALIGN bytes; gives how many. */
OCTET_API int octet_block_buffers(uint8_t out[OCTET_PLAN_BUFFERS], const octet_plan *plan);
/* How a GEMM of the plan multiplies on the plan's device: steps[step].op is OCTET_OP_GEMM.
 * Others, and a step that is not there, are OCTET_SUPPORT_EMULATED. */
OCTET_API octet_support octet_step_support(const octet_plan *plan, int step);
/* Whether a native GEMM copies operands or results into rows of whole 16 bytes first, at the
 * sizes that the plan is bound to: sizes that are multiples of 16 save that. */
OCTET_API bool octet_step_is_padded(const octet_plan *plan, int step);
OCTET_API bool octet_plan_equal(const octet_plan *a, const octet_plan *b);
OCTET_API uint64_t octet_plan_hash(const octet_plan *plan);
/* The index of a port of args, outs or exchanges by its name as octet_port_print begins:
 * "weight", "weight.cached rowwise data". -1 where there is none.
 *     int w = octet_port_find(plan.args, plan.arg_count, "weight"); */
OCTET_API int octet_port_find(const octet_port *ports, int count, const char *name);
/* "weight.cached rowwise data  u8 (14336, 4096)": its name, two blanks, dtype and shape. */
OCTET_API size_t octet_port_print(char *text, size_t size, const octet_port *port);
/* "input.quantized", "input.quantized columnwise data": names for people. */
OCTET_API size_t octet_plan_tensor_print(char *text, size_t size, const octet_plan *plan,
                                         int tensor);
OCTET_API size_t octet_plan_buffer_print(char *text, size_t size, const octet_plan *plan,
                                         int buffer);

#ifdef __cplusplus
}
#endif

#endif
