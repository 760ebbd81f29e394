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
    OCTET_NAME_INPUT_SCALE,  /* if backward quantizes again: the scale that */
    OCTET_NAME_WEIGHT_SCALE, /* forward's delayed quantizer used */
    OCTET_NAME_SCALE,        /* delayed scaling's scales, indexed by octet_slot */
    OCTET_NAME_AMAX, /* an output: this call's amaxes, indexed by octet_slot; 0 if not measured.
                      * With raise_amax it is an argument: each amax is raised to this call's,
                      * as octet_delayed_record does. Row 0 of a history can be passed */
    OCTET_NAME_SEED, /* one int64, read only: the seed of stochastic rounding. Every plan that
                      * rounds stochastically has this argument. The calls of one layer may
                      * share a seed: see octet_stream. The same seed gives the same bytes */
    OCTET_NAME_SCRATCH, /* a GEMM's scratch memory; not listed in reads or writes */
    OCTET_NAME_NOTES,   /* what a QUANTIZE leaves for GEMMs, in the device's own form */
    OCTET_NAME_GAMMA,   /* a norm's parameters, and their gradients */
    OCTET_NAME_BETA,
    OCTET_NAME_GRAD_GAMMA,
    OCTET_NAME_GRAD_BETA,
    OCTET_NAME_STATISTICS, /* of a norm, f32: each row's rstd (RMSNorm), or its mean and rstd */
    OCTET_NAMES
} octet_plan_name;

/* The index of each role's scale and amax in the vectors of delayed scaling. Vectors of forward
 * have OCTET_FORWARD_SLOTS floats; those of backward and of a delayed wgrad have
 * OCTET_BACKWARD_SLOTS. If a call does not quantize a role, its slot is not used. The plan of a
 * single tensor, octet_plan_quantize, has one slot. */
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
    OCTET_FORM_GIVEN = 0, /* as the caller passes it */
    OCTET_FORM_QUANTIZED,
    OCTET_FORM_REQUANTIZED, /* the direction that a quantized argument does not have */
    OCTET_FORM_CACHED,
    OCTET_FORM_CAST,
    OCTET_FORM_DEQUANTIZED,
    OCTET_FORM_STACKED,  /* every rank's shard, one after the other: dims (ranks, ...) */
    OCTET_FORM_GATHERED, /* every rank's shard as one tensor */
    OCTET_FORM_PARTIAL,  /* this rank's part of a sum over ranks */
    OCTET_FORM_REDUCED,
    OCTET_FORM_HIGH_PRECISION, /* a result before it is quantized */
    OCTET_FORM_MEASURED,       /* an amax: a scalar, or only the amax parts of a quantizer */
    OCTET_FORM_SWIZZLED,
    OCTET_FORM_EMULATED, /* operand of an emulated GEMM */
    OCTET_FORM_PADDED,   /* operand or result of a native GEMM, padded as a GPU's library needs
                          * it */
    OCTET_FORM_FOLDED,   /* operand of a folded GEMM: FP8 in blocks of 128, sizes rounded up */
    OCTET_FORM_PROLOGUE, /* the prologue's result, or its gradient */
    OCTET_FORM_PIECE,    /* a chunk of every rank's rows, rank after rank */
    OCTET_FORM_PACKED,   /* an activation's input in 8 bits, which backward reads instead */
    OCTET_FORMS
} octet_plan_form;

typedef enum octet_place {
    OCTET_PLACE_ARG = 0,  /* in argument `port` */
    OCTET_PLACE_OUT,      /* in output `port` */
    OCTET_PLACE_SAVED,    /* in the arena this plan saves for the next */
    OCTET_PLACE_RESTORED, /* in the arena that forward (port 0) or backward (port 1) saved */
    OCTET_PLACE_WORK,     /* in the workspace */
    OCTET_PLACE_EXCHANGE, /* in exchange `port`: memory that outlives a phase, because a
                           * collective or a later phase reads it */
    OCTET_PLACES
} octet_place;

/* What a step does, and so which buffers it reads and writes. */
typedef enum octet_op {
    OCTET_OP_ZERO = 0,   /* buffer `to` = 0 */
    OCTET_OP_CAST,       /* dst = a in dst's dtype, or in the same one: a copy */
    OCTET_OP_AMAX,       /* amax of a, into dst's amax parts if it has any, else into buffer
                          * `amax` */
    OCTET_OP_QUANTIZE,   /* dst = a quantized, in every direction that dst has; dst's amax parts
                          * are read. It may also write copies, which emulated or folded GEMMs
                          * read instead. With `apply`, AMAX and QUANTIZE read the plan's
                          * prologue of a instead of a */
    OCTET_OP_DEQUANTIZE, /* dst = a decoded from the bytes of a_use */
    OCTET_OP_TRANSPOSE,  /* dst's own parts = a's bytes and scales of a_use, transposed */
    OCTET_OP_SWIZZLE,    /* dst's own scale = a's scale of a_use in tensor-core order */
    OCTET_OP_ASSEMBLE,   /* the parts that dst and a share = the shards stacked in a, joined;
                          * for a chunk, these rows of each shard */
    OCTET_OP_JOIN,       /* a chunk of every rank's rows of dst = a, which has only these rows:
                          * values, or rowwise codes */
    OCTET_OP_GEMM,       /* dst = a b (+ bias, + dst) */
    OCTET_OP_ADD_BIAS,   /* dst = a + bias */
    OCTET_OP_BIAS_GRAD,  /* dst = column sums of a (+ dst) */
    OCTET_OP_STATISTICS, /* dst = each row's statistics of a, as the plan's prologue wants them
                          */
    OCTET_OP_PROLOGUE,   /* dst = the plan's prologue of a, with `stats`, gamma, and beta in
                          * `bias`; writes dst's amax if it has one */
    OCTET_OP_PROLOGUE_GRAD, /* dst = the prologue's gradient: a is the gradient of its result, b
                             * its input */
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

/* Which random bits of a seed round a tensor. Each role has its own stream. So forward and
 * backward may share a seed, and no two tensors of a layer are rounded by the same bits. A
 * tensor that is quantized again, for the other direction or in a later plan, keeps its stream.
 */
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
#define OCTET_PLAN_SAVED 16
#define OCTET_PLAN_TENSORS 40
#define OCTET_PLAN_BUFFERS 64
#define OCTET_PLAN_STEPS 48
#define OCTET_ALIGN 256 /* alignment of every buffer inside an arena, in bytes */

/* Memory the caller hands over: an argument, an output or an exchange. */
typedef struct octet_port {
    uint8_t name;  /* octet_plan_name */
    uint8_t form;  /* octet_plan_form */
    uint8_t part;  /* octet_part */
    uint8_t dtype; /* octet_dtype of the stored elements */
    uint8_t ndim;
    uint8_t is_mutable; /* an argument that is also written */
    uint8_t alias;      /* for an output that is an argument, not written: that argument; else
                         * OCTET_ABSENT */
    uint8_t reserved;
    octet_dim dims[3];
    int64_t shape[3]; /* the dims as numbers */
    int64_t bytes;
} octet_port;

/* Tensors may share a buffer; the buffer's `tensor` is the one that owns it. */
typedef struct octet_plan_tensor {
    uint8_t name;  /* octet_plan_name */
    uint8_t form;  /* octet_plan_form */
    uint8_t dtype; /* octet_dtype that it represents */
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
    uint8_t ragged; /* it is needed only if a dimension is rounded up; otherwise it has no bytes
                     */
    uint8_t sized;  /* scratch memory whose size the device decides when the plan is bound; its
                     * one dimension is the number of workers */
    octet_dim dims[3];
    int64_t shape[3];
    int64_t offset; /* bytes from the start of its port or arena */
    int64_t bytes;
} octet_plan_buffer;

typedef struct octet_step {
    uint8_t op;         /* octet_op */
    uint8_t phase;      /* collectives of phase p run after the other steps of phase p */
    uint8_t dst;        /* tensors */
    uint8_t a;          /* fprop: input; dgrad and wgrad: grad_output */
    uint8_t b;          /* fprop and dgrad: weight; wgrad: input */
    uint8_t a_use;      /* octet_use: which bytes of a and b are read. If the product */
    uint8_t b_use;      /* sums along the rows, rowwise bytes are read across. */
    uint8_t gemm;       /* octet_gemm */
    uint8_t accumulate; /* GEMM and BIAS_GRAD add to dst; AMAX and QUANTIZE raise the existing
                         * amax */
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
    uint8_t scale;      /* QUANTIZE: reads this scale instead of an amax */
    uint8_t amax;       /* QUANTIZE: writes the amax here; without a scale, reads it here */
    uint8_t seed;       /* QUANTIZE with stochastic rounding: the caller's seed */
    uint8_t row_unread; /* QUANTIZE: only GEMMs that read the copy instead use its rowwise */
    uint8_t col_unread; /* bytes, so a device that makes the copy directly may skip them */
    uint8_t scratch;    /* memory for the device's own use. GEMM: used while it runs, not listed
                         * in reads and writes. QUANTIZE: what it leaves there is for the GEMMs
                         * that list it in reads */
    uint8_t sums;   /* tensor of partial column sums of a, over some rows each. QUANTIZE (for
                     * NVFP4: AMAX) writes them and BIAS_GRAD reads them; if none wrote them,
                     * BIAS_GRAD does */
    uint8_t stream; /* QUANTIZE with stochastic rounding: octet_stream */
    uint8_t chunk;  /* which of the plan's `chunks`; OCTET_ABSENT: all. GEMM computes these
                     * columns of the result, and dst has only these. CAST and ADD_BIAS copy
                     * such a chunk a into a dst with all columns. With `by_rows`, GEMM
                     * multiplies a chunk of rows, and COLLECTIVE sends only these rows of
                     * `from` */
    uint8_t gamma;  /* buffer: gamma of a norm */
    uint8_t stats;  /* tensor: the row statistics that a norm reads */
    uint8_t apply;  /* AMAX, QUANTIZE: each element is the plan's prologue of a, rounded to a's
                     * dtype, with `stats`, gamma, and beta in `bias`; it is not stored */
    uint8_t invariant; /* GEMM: a row of dst depends only on its own row of a and on b, not on
                        * the number of rows; such a GEMM is native and copies nothing */
    uint8_t reserved[2];
    uint64_t reads; /* bit i: buffer i */
    uint64_t writes;
} octet_step;

/* A plain value of fixed size without pointers or padding: copy it, compare it, print it. */
typedef struct octet_plan {
    uint32_t size;
    uint8_t kind;   /* octet_plan_kind */
    uint8_t phases; /* number of phases of steps; collectives after the last step begin no new
                     * one */
    uint8_t arg_count;
    uint8_t out_count;
    uint8_t exchange_count;
    uint8_t saved_count;
    uint8_t restored_count;
    uint8_t tensor_count;
    uint8_t buffer_count;
    uint8_t step_count;
    uint8_t recipe; /* octet_recipe_kind, for the reader */
    uint8_t chunks; /* into how many chunks a product is split: chunks of the columns that are
                     * scattered, or with by_rows of the rows that are gathered; 1: not split */
    uint32_t tp_size;
    octet_device device;
    uint32_t row_multiple;   /* m must be a multiple of it; 1 unless ranks share rows */
    uint32_t chunk_multiple; /* the same for the axis that is cut into chunks: n (dgrad: k),
                              * by_rows m */
    uint8_t prologue;        /* octet_prologue */
    uint8_t zero_centered;   /* for a norm */
    uint8_t by_rows;         /* chunks are of every rank's rows, not of columns */
    uint8_t reserved;
    float eps;             /* for a norm */
    octet_extents extents; /* m: the rows of this rank's input */
    int64_t saved_bytes;   /* size of the arena to keep until the next plan of the chain has run
                            */
    int64_t aliased_bytes; /* other memory that must stay alive until then: the caller's, or
                            * restored */
    int64_t workspace_bytes;
    octet_port args[OCTET_PLAN_ARGS];
    octet_port outs[OCTET_PLAN_OUTS];
    octet_port exchanges[OCTET_PLAN_EXCHANGES];
    uint8_t saved[OCTET_PLAN_SAVED];    /* buffers that the next plan reads, in the block or
                                         * aliased */
    uint8_t restored[OCTET_PLAN_SAVED]; /* the buffer here for each of the previous plan's saved
                                         * slots */
    octet_plan_tensor tensors[OCTET_PLAN_TENSORS];
    octet_plan_buffer buffers[OCTET_PLAN_BUFFERS];
    octet_step steps[OCTET_PLAN_STEPS];
} octet_plan;

#define OCTET_PLAN_INIT OCTET_SIZED(octet_plan)

/* The most bytes of stack that a function needs, in an optimized build, to make, read or print
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
/* Changes the plan to other sizes: computes its numbers again (shapes, offsets, bytes, totals),
 * which costs a fraction of planning. m is the number of rows of this rank's input. previous is
 * the plan before it in the chain (forward for a backward, backward for a wgrad), bound to the
 * same sizes; NULL for the first. On failure *plan does not change. */
OCTET_API OCTET_CHECKED octet_status octet_plan_bind(octet_plan *plan,
                                                     const octet_plan *previous,
                                                     const octet_extents *sizes,
                                                     octet_error *err);
/* Checks a plan from an untrusted source, at the sizes it has: every index, count and size, the
 * shapes of each step's operands, the order of reads and writes, and that no two written
 * buffers overlap. After OCTET_OK a run touches no memory except what the plan asks for,
 * provided the caller passes as much. It does not check that the plan computes anything useful.
 * Call it again after octet_plan_bind. Any thread may call it. */
OCTET_API OCTET_CHECKED octet_status octet_plan_check(const octet_plan *plan, octet_error *err);
/* All plans of a call, each planned once, in the order in which they run. */
#define OCTET_CHAIN_PLANS 3
typedef struct octet_chain {
    uint32_t size;
    int32_t count; /* 1: forward only; 2: with backward; 3: with a delayed wgrad */
    octet_plan plans[OCTET_CHAIN_PLANS];
} octet_chain;

/* *out needs no initializer. A call that wants no gradient has one plan. */
OCTET_API OCTET_CHECKED octet_status octet_plan_chain(octet_chain *out,
                                                      const octet_linear_backward_args *args,
                                                      octet_error *err);
/* octet_plan_bind for all plans of a chain. After a failure the chain cannot be used. */
OCTET_API OCTET_CHECKED octet_status octet_chain_bind(octet_chain *chain,
                                                      const octet_extents *sizes,
                                                      octet_error *err);
/* Prints what the plan reads, does, writes and saves, for people; several lines. */
OCTET_API size_t octet_plan_print(char *text, size_t size, const octet_plan *plan);
/* The buffers of the arena that a plan saves, in memory order, each rounded up to OCTET_ALIGN
 * bytes. Returns how many. */
OCTET_API int octet_arena_buffers(uint8_t out[OCTET_PLAN_BUFFERS], const octet_plan *plan);
/* How a GEMM of the plan multiplies on the plan's device. For any other step, or none, it
 * returns OCTET_SUPPORT_EMULATED. */
OCTET_API octet_support octet_step_support(const octet_plan *plan, int step);
/* Whether a native GEMM first copies operands or results into rows of whole 16 bytes, at the
 * plan's sizes. Sizes that are multiples of 16 need no copy. */
OCTET_API bool octet_step_is_padded(const octet_plan *plan, int step);
OCTET_API bool octet_plan_equal(const octet_plan *a, const octet_plan *b);
OCTET_API uint64_t octet_plan_hash(const octet_plan *plan);
/* Finds a port of args, outs or exchanges by the name that octet_port_print prints first:
 * "weight", "weight.cached rowwise data". Returns its index, or -1.
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
