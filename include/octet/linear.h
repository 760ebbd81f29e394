/* linear.h - the arguments of a Linear call. */
#ifndef OCTET_LINEAR_H
#define OCTET_LINEAR_H

#include "octet/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Linear: what a call is asked to do ------------------------------------------------ */

typedef enum octet_parallel {
    OCTET_PARALLEL_NONE = 0,
    OCTET_PARALLEL_COLUMN, /* weight rows are split over the tensor-parallel group */
    OCTET_PARALLEL_ROW     /* weight columns are */
} octet_parallel;

typedef enum octet_gather {
    OCTET_GATHER_QUANTIZED = 0, /* sequence parallel: gather bytes and scales */
    OCTET_GATHER_HIGH_PRECISION /* gather the tensor, then quantize */
} octet_gather;

typedef enum octet_weight_cache {
    OCTET_CACHE_NONE = 0,
    OCTET_CACHE_WRITE, /* first microbatch: quantize the weight into the caller's cache */
    OCTET_CACHE_READ   /* later microbatches: read it from there */
} octet_weight_cache;

typedef enum octet_main_grad {
    OCTET_MAIN_GRAD_NONE = 0,
    OCTET_MAIN_GRAD_ADD,      /* the gradient is added to the caller's main_grad */
    OCTET_MAIN_GRAD_OVERWRITE /* the gradient replaces main_grad */
} octet_main_grad;

/* What forward saves for backward, where there is a choice. It has no effect without a recipe.
 * See docs/prologues.md, "What is saved". */
typedef enum octet_save {
    OCTET_SAVE_SPEED = 0, /* the bytes that dgrad and wgrad multiply, and x for the prologue */
    OCTET_SAVE_MEMORY     /* the weight itself, and no bytes of f(x). Backward casts both again.
                           * It computes f(x) from x if f is a norm, and from x stored in 8 bits
                           * if f is an activation */
} octet_save;

#define OCTET_MOST_CHUNKS 4

/* A function of the input that is computed before anything else: y = f(x) w^T + b. Norms and
 * activations are computed in f32 from the input's values and rounded once to its dtype. What
 * follows, the cast first of all, treats f(x) as it would treat an input. docs/prologues.md has
 * the formulas and the order of sums. */
typedef enum octet_prologue {
    OCTET_PROLOGUE_NONE = 0,
    OCTET_RMSNORM,   /* x rstd gamma */
    OCTET_LAYERNORM, /* (x - mean) rstd gamma + beta */
    OCTET_GELU,      /* by tanh */
    OCTET_QGELU,     /* x sigmoid(1.702 x) */
    OCTET_RELU,
    OCTET_SRELU, /* relu squared */
    OCTET_SILU,
    /* Gated: the input has 2K columns, and f(x) = act(x[:, :K]) x[:, K:]. */
    OCTET_GLU, /* act: sigmoid */
    OCTET_GEGLU,
    OCTET_QGEGLU,
    OCTET_REGLU,
    OCTET_SREGLU,
    OCTET_SWIGLU,
    OCTET_PROLOGUES
} octet_prologue;

/* y = x w^T + b. The whole contract of a forward call: nothing is read from a live tensor.
 * All tensors share input.device; requires_grad of the protos is not looked at. */
typedef struct octet_linear_args {
    uint32_t size;
    uint8_t input_requires_grad;
    uint8_t weight_requires_grad;
    uint8_t bias_requires_grad;
    uint8_t return_bias;         /* return the bias instead of adding it */
    uint8_t quantize_output;     /* y in the recipe's output quantizer (fp8_output) */
    uint8_t quantize_grad_input; /* dx in its grad_input quantizer (fp8_grad) */
    uint8_t save_original_input; /* save x itself and quantize it again in backward */
    uint8_t weight_cache;        /* octet_weight_cache; no effect if the call quantizes no
                                  * weight */
    uint8_t main_grad;           /* octet_main_grad: where wgrad goes */
    uint8_t main_grad_dtype;     /* octet_dtype; NONE: F32 */
    uint8_t delay_wgrad;         /* backward does not compute the weight's gradient: a plan of
                                  * its own does */
    uint8_t calibrate;           /* high precision, measuring delayed scaling's amaxes */
    uint8_t parallel;            /* octet_parallel */
    uint8_t sequence_parallel;
    uint8_t gather;         /* octet_gather */
    uint8_t fsdp;           /* the weight is gathered for the call: save no copy of it */
    uint8_t output_dtype;   /* octet_dtype; NONE: the input's */
    uint8_t raise_amax;     /* delayed scaling's amaxes are an argument, in which the plan
                             * raises them, instead of an output; no effect if none is measured
                             */
    uint8_t bias_main_grad; /* octet_main_grad: where the gradient of the bias goes. Sums are
                             * f32, with the old value if it adds, and are rounded once */
    uint8_t bias_main_grad_dtype; /* octet_dtype; NONE: F32 */
    uint8_t skip_amax;     /* delayed scaling's amaxes are not measured, so they are neither
                            * argument nor output; not together with raise_amax or calibrate */
    uint8_t prologue;      /* octet_prologue */
    uint8_t zero_centered; /* a norm multiplies by 1 + gamma */
    uint8_t gamma_requires_grad;
    uint8_t beta_requires_grad;
    uint8_t save;             /* octet_save */
    uint8_t temporary_weight; /* the weight exists for this call only (it was joined from
                               * several), so saving it takes memory in any form */
    uint8_t reserved[1];
    uint32_t tp_size; /* 0 counts as 1 */
    uint32_t threads; /* CPU workers to provide workspace for; 0 counts as 1, and products use
                       * 910 at most */
    uint32_t chunks;  /* sequence parallel: the product whose sums are scattered over the ranks
                       * (fprop if row parallel, dgrad if column parallel) is computed in this
                       * many chunks of columns, at most OCTET_MOST_CHUNKS. Each chunk is
                       * scattered while the next is computed. 0 counts as 1 */
    uint32_t gather_chunks; /* the same for the product whose first operand is gathered (fprop
                             * if column parallel, dgrad if row parallel): this many chunks of
                             * each rank's rows. Each is gathered while the one before is
                             * multiplied. A tensor that is quantized after the gather is
                             * gathered whole. 0 counts as 1 */
    float eps;              /* eps of a norm, added to the mean of squares; above 0 */
    octet_proto input;      /* (..., K); with a gated prologue (..., 2K) */
    octet_proto weight;     /* (N, K) */
    /* (N); dtype NONE: no bias. It is added to f32 sums, which are then rounded to the output's
     * dtype. Where the product is quantized and the input is f32, the bias is rounded to bf16
     * first, as GPUs' products take it. Row parallel: each rank rounds its sums, the ranks are
     * added up, and the bias, in its own dtype, is added to that in f32 and rounded again. Its
     * gradient is f32 sums of grad_output's columns, rounded once. */
    octet_proto bias;
    octet_proto gamma; /* (K): every norm has one */
    octet_proto beta;  /* (K), for LayerNorm; dtype NONE: no beta */
    octet_recipe recipe;
} octet_linear_args;

#define OCTET_LINEAR_ARGS_INIT OCTET_SIZED(octet_linear_args)
#define OCTET_LINEAR_TEXT 2048

/* The arguments of backward: the forward call and the incoming gradient. */
typedef struct octet_linear_backward_args {
    uint32_t size;
    uint32_t reserved;
    octet_linear_args forward;
    octet_proto grad_output; /* (..., N), plain or quantized */
} octet_linear_backward_args;

#define OCTET_LINEAR_BACKWARD_ARGS_INIT OCTET_SIZED(octet_linear_backward_args)

/* The one-line problem: "linear m=8192 k=4096 n=14336 in=bf16 recipe=mxfp8 bias".
 * docs/text-forms.md has the grammar. out is overwritten whole and needs no initializer. */
OCTET_API OCTET_CHECKED octet_status octet_linear_parse(octet_linear_args *out,
                                                        const char *text, octet_error *err);
/* The same without m, k and n: "in=bf16 recipe=mxfp8 bias". sizes are the input's axes, then N.
 * With a gated prologue, give K in place of the input's 2K columns. */
OCTET_API OCTET_CHECKED octet_status octet_linear_parse_words(octet_linear_args *out,
                                                              const char *words,
                                                              const int64_t *sizes, int count,
                                                              octet_error *err);
OCTET_API size_t octet_linear_print_words(char *text, size_t size,
                                          const octet_linear_args *args);
/* Whether the prologue is gated: its input has twice as many columns as its result. */
OCTET_API bool octet_prologue_is_gated(octet_prologue prologue);
/* Whether it is a norm: it has row statistics, gamma, and perhaps beta. */
OCTET_API bool octet_prologue_is_norm(octet_prologue prologue);
OCTET_API OCTET_CHECKED octet_status octet_linear_check(const octet_linear_args *args,
                                                        octet_error *err);
OCTET_API size_t octet_linear_print(char *text, size_t size, const octet_linear_args *args);
OCTET_API bool octet_linear_equal(const octet_linear_args *a, const octet_linear_args *b);
OCTET_API uint64_t octet_linear_hash(const octet_linear_args *args);
/* Fills the arguments of backward: grad_output is plain, with the shape and dtype of forward's
 * output. */
OCTET_API OCTET_CHECKED octet_status octet_linear_backward_make(octet_linear_backward_args *out,
                                                                const octet_linear_args *args,
                                                                octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_linear_backward_parse(
    octet_linear_backward_args *out, const char *text, octet_error *err);
OCTET_API size_t octet_linear_backward_print(char *text, size_t size,
                                             const octet_linear_backward_args *args);
OCTET_API OCTET_CHECKED octet_status
octet_linear_backward_parse_words(octet_linear_backward_args *out, const char *words,
                                  const int64_t *sizes, int count, octet_error *err);
OCTET_API size_t octet_linear_backward_print_words(char *text, size_t size,
                                                   const octet_linear_backward_args *args);
OCTET_API bool octet_linear_backward_equal(const octet_linear_backward_args *a,
                                           const octet_linear_backward_args *b);
OCTET_API uint64_t octet_linear_backward_hash(const octet_linear_backward_args *args);
/* The quantizer of the weight cache for this call; scheme NONE if there is nothing to cache (no
 * recipe, or a weight that is quantized already). */
OCTET_API OCTET_CHECKED octet_status octet_linear_cache_quantizer(octet_quantizer *out,
                                                                  const octet_linear_args *args,
                                                                  octet_error *err);
/* The quantizer of a weight that is stored quantized as a parameter: that of a cache, with
 * scales in the order that every device reads. If the device needs rowwise bytes in forward and
 * columnwise bytes in dgrad, it has both, one more byte for each element. */
OCTET_API OCTET_CHECKED octet_status octet_linear_parameter_quantizer(
    octet_quantizer *out, const octet_linear_args *args, octet_error *err);
/* Calls that read one tensor may share a cast of it. This gives the quantizer of that cast. A
 * call whose input arrives quantized by it gives the same results, and saves no second copy of
 * the bytes. Scheme NONE if the call must cast its input itself, or does not cast it. If calls
 * need different directions, the shared cast has both. */
OCTET_API OCTET_CHECKED octet_status octet_linear_shared_input(octet_quantizer *out,
                                                               const octet_linear_args *args,
                                                               octet_error *err);
/* The same for grad_output: layers whose outputs are added get the same one. */
OCTET_API OCTET_CHECKED octet_status octet_linear_shared_grad(
    octet_quantizer *out, const octet_linear_backward_args *args, octet_error *err);
/* The gather to use for this call's rows: quantized if every rank's shard consists of whole
 * blocks. */
OCTET_API OCTET_CHECKED octet_status octet_linear_choose_gather(octet_gather *out,
                                                                const octet_linear_args *args,
                                                                octet_error *err);

#ifdef __cplusplus
}
#endif

#endif
