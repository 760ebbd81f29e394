/* quant.h - quantizer, layout, proto, recipe: how a tensor becomes bytes. */
#ifndef OCTET_QUANT_H
#define OCTET_QUANT_H

#include "octet/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- quantizer ------------------------------------------------------------------------- */

typedef enum octet_scheme {
    OCTET_SCHEME_NONE = 0, /* high precision: no quantizer */
    OCTET_FP8_TENSOR,      /* one scale per tensor, from its own amax */
    OCTET_FP8_DELAYED,     /* one scale per tensor, passed in by the caller */
    OCTET_FP8_BLOCK,       /* 1x128 or 128x128 blocks, fp32 scales */
    OCTET_MXFP8,           /* 1x32 or 32x32 blocks, E8M0 scales */
    OCTET_NVFP4,           /* 1x16 or 16x16 blocks, E4M3 scales under one fp32 amax */
    OCTET_MXFP4,           /* 1x32 or 32x32 blocks of FP4, E8M0 scales */
    OCTET_SCHEMES
} octet_scheme;

typedef enum octet_hadamard {
    OCTET_HADAMARD_NONE = 0,
    OCTET_HADAMARD_SIGNED, /* with the random sign mask 0xD7E8 */
    OCTET_HADAMARD_PLAIN   /* without a sign mask */
} octet_hadamard;

typedef enum octet_four_over_six {
    OCTET_4OVER6_NONE = 0,
    OCTET_4OVER6_MAE, /* choose the block scale by the sum of |error| */
    OCTET_4OVER6_MSE  /* by the sum of squared errors */
} octet_four_over_six;

/* How a tensor becomes bytes. Its text is its identity: docs/text-forms.md has the grammar. */
typedef struct octet_quantizer {
    uint32_t size;
    uint8_t scheme;      /* octet_scheme */
    uint8_t format;      /* octet_dtype: E4M3, E5M2 or E2M1 */
    uint8_t rowwise;     /* usages: blocks along the columns, read by fprop and as dgrad's B */
    uint8_t columnwise;  /* blocks along the rows, read by wgrad and as dgrad's A */
    uint16_t block_rows; /* size of one rowwise block; 0 x 0: the whole tensor */
    uint16_t block_cols;
    uint8_t pow2;          /* scales are powers of two */
    uint8_t hadamard;      /* octet_hadamard, columnwise only */
    uint8_t stochastic;    /* stochastic rounding from the caller's seed */
    uint8_t row_scaled;    /* one fp32 amax per row (rowwise) or column (columnwise) */
    uint8_t four_over_six; /* octet_four_over_six */
    uint8_t max256;        /* four-over-six scales reach 256 rather than 448 */
    uint8_t swizzled;      /* scales are written in the order tensor cores read them */
    uint8_t reserved0;
    float epsilon; /* lower bound of the amax that a scale is computed from */
    uint32_t reserved[2];
} octet_quantizer;

#define OCTET_QUANTIZER_TEXT                                                                   \
    96 /* size of a buffer that holds any quantizer's text, terminator                         \
        * included */

OCTET_API OCTET_CHECKED octet_status octet_quantizer_parse(octet_quantizer *out,
                                                           const char *text, octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_quantizer_check(const octet_quantizer *quantizer,
                                                           octet_error *err);
OCTET_API size_t octet_quantizer_print(char *text, size_t size,
                                       const octet_quantizer *quantizer);
OCTET_API bool octet_quantizer_equal(const octet_quantizer *a, const octet_quantizer *b);
OCTET_API uint64_t octet_quantizer_hash(const octet_quantizer *quantizer);
/* The same quantizer with these usages. At least one must be on. out may be the same struct. */
OCTET_API OCTET_CHECKED octet_status
octet_quantizer_with_usage(octet_quantizer *out, const octet_quantizer *quantizer, bool rowwise,
                           bool columnwise, octet_error *err);
/* Whether columnwise bytes are always the exact transpose of rowwise bytes. */
OCTET_API bool octet_quantizer_transposable(const octet_quantizer *quantizer);
/* A quantized tensor may be cut between rows only at multiples of this. Then the bytes of rows
 * [a, b) are a part of the bytes of the whole. 0: it cannot be cut. */
OCTET_API int64_t octet_quantizer_row_step(const octet_quantizer *quantizer);
/* The same for columns. */
OCTET_API int64_t octet_quantizer_column_step(const octet_quantizer *quantizer);
OCTET_API const char *octet_scheme_name(octet_scheme scheme);
/* How the scheme stores a scale: F32, E8M0 or E4M3; NONE if it has no scales. */
OCTET_API octet_dtype octet_scale_format(octet_scheme scheme);

/* ---- layout: the buffers of a quantizer ------------------------------------------------ */

typedef enum octet_axis {
    OCTET_AXIS_ONE = 0, /* 1 */
    OCTET_AXIS_M,       /* rows: the product of the leading axes */
    OCTET_AXIS_K,       /* columns: the last axis (of a weight: its in_features) */
    OCTET_AXIS_N,       /* rows of a Linear's weight; plans only */
    OCTET_AXIS_LEADING  /* all leading axes, each as a dimension of its own */
} octet_axis;

/* A dimension: roundup(ceil(axis * mul / div), align). mul, div and align are at least 1. */
typedef struct octet_dim {
    uint8_t axis; /* octet_axis */
    uint8_t reserved;
    uint16_t mul;
    uint16_t div;
    uint16_t align;
} octet_dim;

/* The sizes of the axes. */
typedef struct octet_extents {
    int64_t m, k, n;
} octet_extents;

/* OCTET_AXIS_LEADING counts as M. OCTET_INVALID on overflow, div 0, an unknown axis or a
 * most above 62. */
OCTET_API OCTET_CHECKED octet_status octet_dim_eval(int64_t *out, const octet_dim *dim,
                                                    const octet_extents *extents,
                                                    octet_error *err);

typedef enum octet_part {
    OCTET_PART_VALUES = 0, /* a tensor that is not quantized */
    OCTET_PART_ROW_DATA,
    OCTET_PART_ROW_SCALE,
    OCTET_PART_COL_DATA,
    OCTET_PART_COL_SCALE,
    OCTET_PART_SCALE, /* one scale for both directions */
    OCTET_PART_ROW_AMAX,
    OCTET_PART_COL_AMAX,
    OCTET_PARTS
} octet_part;

#define OCTET_MAX_BUFFERS 6
#define OCTET_MAX_RANK 16

typedef struct octet_buffer {
    const char *name; /* "_rowwise_data"; borrowed, static */
    uint8_t part;     /* octet_part */
    uint8_t dtype;    /* octet_dtype of the stored elements: U8 or F32 */
    uint8_t ndim;
    uint8_t reserved[5];
    octet_dim dims[2];
} octet_buffer;

/* The buffers in flatten order. The same table gives numbers and symbolic sizes. */
typedef struct octet_layout {
    uint32_t size;
    int32_t count;
    octet_buffer buffers[OCTET_MAX_BUFFERS];
} octet_layout;

OCTET_API OCTET_CHECKED octet_status octet_layout_make(octet_layout *out,
                                                       const octet_quantizer *quantizer,
                                                       octet_error *err);
OCTET_API const char *octet_part_name(octet_part part);

/* ---- proto: a tensor without data ------------------------------------------------------ */

typedef enum octet_device_kind { OCTET_CPU = 0, OCTET_CUDA = 1 } octet_device_kind;

typedef struct octet_device {
    uint8_t kind; /* octet_device_kind */
    uint8_t index;
    uint16_t arch; /* CUDA: 10 * major + minor of the compute capability; 0: unknown */
} octet_device;

/* "cpu", "cuda", "cuda:1", "cuda:0/90": index and compute capability. */
OCTET_API OCTET_CHECKED octet_status octet_device_parse(octet_device *out, const char *text,
                                                        octet_error *err);
/* "cpu", "cuda:1", "cuda:0/90": always with the index, with the compute capability if it is
 * known. */
OCTET_API size_t octet_device_print(char *text, size_t size, const octet_device *device);

typedef struct octet_proto {
    uint32_t size;
    uint8_t dtype; /* octet_dtype that the tensor represents; NONE: there is no tensor */
    uint8_t rank;
    uint8_t requires_grad;
    uint8_t reserved;
    octet_device device;
    uint32_t reserved2;
    int64_t shape[OCTET_MAX_RANK];
    octet_quantizer quantizer; /* scheme NONE: plain */
} octet_proto;

#define OCTET_PROTO_TEXT                                                                       \
    512 /* size of a buffer that holds any proto's text, terminator                            \
         * included */

/* A plain CPU proto. A rank or dtype out of range is reported by octet_proto_check. */
OCTET_API octet_proto octet_proto_make(octet_dtype dtype, int rank, const int64_t *shape);
OCTET_API OCTET_CHECKED octet_status octet_proto_check(const octet_proto *proto,
                                                       octet_error *err);
/* "bf16 (8, 128) mxfp8:e4m3/1x32+row+col on cuda:0/90 with grad": docs/text-forms.md has the
 * grammar. The result is checked as octet_proto_check does. */
OCTET_API OCTET_CHECKED octet_status octet_proto_parse(octet_proto *out, const char *text,
                                                       octet_error *err);
OCTET_API size_t octet_proto_print(char *text, size_t size, const octet_proto *proto);
OCTET_API bool octet_proto_equal(const octet_proto *a, const octet_proto *b);
OCTET_API uint64_t octet_proto_hash(const octet_proto *proto);
/* The number of buffers: 1 if plain. Negative if the proto is invalid. */
OCTET_API int octet_proto_buffer_count(const octet_proto *proto);
/* Its buffer `index` in flatten order, itself a plain proto on the same device. */
OCTET_API OCTET_CHECKED octet_status octet_proto_buffer(octet_proto *out,
                                                        const octet_proto *proto, int index,
                                                        octet_error *err);
/* "_rowwise_data", or "" for the only buffer of a plain proto; NULL when out of range. */
OCTET_API const char *octet_proto_buffer_name(const octet_proto *proto, int index);
/* The bytes of all its buffers together. Rows of a plain E2M1 tensor are rounded up to whole
 * bytes. */
OCTET_API OCTET_CHECKED octet_status octet_proto_bytes(int64_t *out, const octet_proto *proto,
                                                       octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_proto_with_usage(octet_proto *out,
                                                            const octet_proto *proto,
                                                            bool rowwise, bool columnwise,
                                                            octet_error *err);
/* The same elements as M x K: leading axes multiplied. A rank of 0 is 1 x 1, of 1 is 1 x K. */
OCTET_API OCTET_CHECKED octet_status octet_proto_flatten(octet_proto *out,
                                                         const octet_proto *proto,
                                                         octet_error *err);

/* ---- recipe: which quantizer each role gets -------------------------------------------- */

typedef enum octet_role {
    OCTET_INPUT = 0,
    OCTET_WEIGHT,
    OCTET_OUTPUT,
    OCTET_GRAD_OUTPUT,
    OCTET_GRAD_INPUT,
    OCTET_GRAD_WEIGHT,
    OCTET_ROLES
} octet_role;

typedef enum octet_gemm { OCTET_FPROP = 0, OCTET_DGRAD, OCTET_WGRAD, OCTET_GEMMS } octet_gemm;

typedef enum octet_recipe_kind {
    OCTET_RECIPE_NONE = 0, /* no quantization */
    OCTET_RECIPE_DELAYED,
    OCTET_RECIPE_CURRENT,
    OCTET_RECIPE_BLOCK,
    OCTET_RECIPE_MXFP8,
    OCTET_RECIPE_NVFP4,
    OCTET_RECIPE_MXFP4,
    OCTET_RECIPE_CUSTOM,
    OCTET_RECIPES
} octet_recipe_kind;

typedef enum octet_recipe_format {
    OCTET_FORMAT_E4M3 = 0, /* E4M3 everywhere (E2M1 for nvfp4 and mxfp4) */
    OCTET_FORMAT_HYBRID    /* E4M3 forward, E5M2 for gradients */
} octet_recipe_format;

typedef enum octet_amax_algo {
    OCTET_AMAX_MAX = 0,
    OCTET_AMAX_MOST_RECENT,
    OCTET_AMAX_CALLBACK /* the caller computes the scale from the history */
} octet_amax_algo;

typedef enum octet_backward_override {
    OCTET_OVERRIDE_NONE = 0,
    OCTET_OVERRIDE_HIGH_PRECISION, /* backward GEMMs on the original tensors */
    OCTET_OVERRIDE_DEQUANTIZED     /* backward GEMMs on forward's bytes, decoded */
} octet_backward_override;

/* How MXFP8 is multiplied on a device that can fold it (see octet_support). Other devices
 * ignore it. */
typedef enum octet_mx_product {
    OCTET_MX_FOLDED = 0, /* at the speed of FP8, within a bound */
    OCTET_MX_EXACT       /* exact, on the decoded bytes */
} octet_mx_product;

/* Which of weights and activations an NVFP4 option is for; a set of bits. */
typedef enum octet_scope {
    OCTET_SCOPE_NONE = 0,
    OCTET_SCOPE_WEIGHTS = 1,
    OCTET_SCOPE_ACTIVATIONS = 2,
    OCTET_SCOPE_ALL = 3
} octet_scope;

/* The quantization parameters of one group: inputs and outputs, weights, or gradients. */
typedef struct octet_qparams {
    uint8_t pow2;
    uint8_t hadamard; /* octet_hadamard */
    uint8_t stochastic;
    uint8_t two_d; /* square blocks */
    float epsilon;
} octet_qparams;

typedef struct octet_recipe {
    uint32_t size;
    uint8_t kind;        /* octet_recipe_kind */
    uint8_t format;      /* octet_recipe_format */
    uint8_t override_;   /* octet_backward_override */
    uint8_t algo;        /* octet_amax_algo; delayed */
    uint8_t reduce_amax; /* delayed: amaxes are reduced over the group */
    uint8_t split_fprop; /* accumulate in split (accurate) rather than fast mode */
    uint8_t split_dgrad;
    uint8_t split_wgrad;
    uint8_t row_scaled;    /* nvfp4: activations carry one amax per row */
    uint8_t four_over_six; /* nvfp4: octet_scope */
    uint8_t max256;        /* nvfp4: octet_scope in which four-over-six scales reach 256 */
    uint8_t error_mode;    /* nvfp4: octet_four_over_six, MAE or MSE */
    int32_t margin;        /* delayed: scales are divided by 2^margin */
    uint32_t history;      /* delayed: length of the amax history */
    octet_qparams input, weight, grad;
    uint8_t product;         /* mxfp8, custom: octet_mx_product */
    uint8_t batch_invariant; /* a row of fprop's and dgrad's result does not depend on the other
                              * rows, nor on how many there are. Only for recipes whose scales
                              * do not depend on other rows */
    uint8_t reserved[2];
    octet_quantizer custom[OCTET_ROLES]; /* custom: by role; all zero otherwise */
} octet_recipe;

#define OCTET_RECIPE_TEXT 768

/* Who asks a custom recipe for a quantizer. Texts are borrowed for the call. */
typedef struct octet_quantizer_role {
    const char *module_type; /* "linear" */
    const char *tensor_type; /* "input", "weight", ... */
    octet_role role;
} octet_quantizer_role;

/* Fills *out, which arrives zeroed: no quantizer. A failure is passed on to the caller. */
typedef octet_status (*octet_role_fn)(octet_quantizer *out, const octet_quantizer_role *role,
                                      void *user, octet_error *err);

/* The named recipe with its defaults. */
OCTET_API OCTET_CHECKED octet_status octet_recipe_make(octet_recipe *out,
                                                       octet_recipe_kind kind,
                                                       octet_error *err);
/* Calls fn once for each role, now, and stores the answers: the recipe stays a value. */
OCTET_API OCTET_CHECKED octet_status octet_recipe_custom(octet_recipe *out, octet_role_fn fn,
                                                         void *user, octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_recipe_parse(octet_recipe *out, const char *text,
                                                        octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_recipe_check(const octet_recipe *recipe,
                                                        octet_error *err);
OCTET_API size_t octet_recipe_print(char *text, size_t size, const octet_recipe *recipe);
OCTET_API bool octet_recipe_equal(const octet_recipe *a, const octet_recipe *b);
OCTET_API uint64_t octet_recipe_hash(const octet_recipe *recipe);
/* The quantizer of a role, with both usages; scheme NONE when the role is not quantized. */
OCTET_API OCTET_CHECKED octet_status octet_recipe_quantizer(octet_quantizer *out,
                                                            const octet_recipe *recipe,
                                                            octet_role role, octet_error *err);
OCTET_API const char *octet_role_name(octet_role role);

/* How a device multiplies a scheme. Folded: MXFP8 as FP8 with one scale for 128 elements. The
 * codes of each block of 32 are shifted to the largest scale of its group of 128 and rounded
 * again. The error of each is at most half of the format's smallest step times that scale. */
typedef enum octet_support {
    OCTET_SUPPORT_EMULATED = 0, /* the decoded bytes, exactly */
    OCTET_SUPPORT_NATIVE,       /* the bytes as they are */
    OCTET_SUPPORT_FOLDED
} octet_support;

/* With the environment variable OCTET_MXFP8=exact nothing is folded. */
OCTET_API octet_support octet_scheme_support(octet_scheme scheme, const octet_device *device);
/* "emulated", "native" or "folded". */
OCTET_API const char *octet_support_name(octet_support support);
/* Whether it is OCTET_SUPPORT_NATIVE. */
OCTET_API bool octet_scheme_native(octet_scheme scheme, const octet_device *device);

#ifdef __cplusplus
}
#endif

#endif
