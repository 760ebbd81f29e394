/* matrix.h - the options of a Linear layer, their levels, and what a row of them asks. */
#ifndef OCTET_MATRIX_H
#define OCTET_MATRIX_H

#include <string.h>

#include "octet.h"

typedef enum matrix_option {
    OPT_RECIPE,
    OPT_DTYPE,
    OPT_WEIGHT_DTYPE,
    OPT_OUTPUT_DTYPE,
    OPT_INPUT_GRAD,
    OPT_WEIGHT_GRAD,
    OPT_BIAS_GRAD,
    OPT_BIAS,
    OPT_RETURN_BIAS,
    OPT_INPUT,
    OPT_WEIGHT,
    OPT_GRAD_OUTPUT,
    OPT_CACHE,
    OPT_QUANTIZE_OUTPUT,
    OPT_QUANTIZE_GRAD_INPUT,
    OPT_SAVE_ORIGINAL,
    OPT_OVERRIDE,
    OPT_MAIN_GRAD,
    OPT_MAIN_GRAD_DTYPE,
    OPT_BIAS_MAIN_GRAD,
    OPT_BIAS_MAIN_GRAD_DTYPE,
    OPT_DELAY,
    OPT_PARALLEL,
    OPT_SEQUENCE,
    OPT_GATHER,
    OPT_TP,
    OPT_FSDP,
    OPT_CALIBRATE,
    OPT_RAISE_AMAX,
    OPT_DEVICE,
    OPT_RANK,
    OPT_THREADS,
    OPT_PROLOGUE,
    OPT_NORM,
    OPTIONS
} matrix_option;

/* Of a random row, so many percent have the option's first level; the others share the rest. */
typedef struct matrix_levels {
    uint8_t count, plain;
} matrix_levels;

/* ---- recipes --------------------------------------------------------------------------- */

/* A custom recipe's quantizers by role; NULL is none. */
typedef const char *matrix_roles[OCTET_ROLES];

static const matrix_roles matrix_customs[] = {
    {"nvfp4:e2m1/1x16+rht+sr", "nvfp4:e2m1/16x16+sr", "nvfp4:e2m1/1x16+sr",
     "nvfp4:e2m1/1x16+rht+sr", "nvfp4:e2m1/1x16+sr", "nvfp4:e2m1/1x16+sr"},
    {"mxfp8:e4m3", "mxfp8:e4m3/32x32", "mxfp8:e4m3", "mxfp8:e5m2", "mxfp8:e5m2", NULL},
    {"fp8-tensor:e4m3", "fp8-block:e4m3/128x128", NULL, "mxfp8:e5m2", NULL, NULL},
    {"fp8-block:e4m3/1x128", "mxfp8:e4m3", "fp8-tensor:e4m3", "nvfp4:e2m1/1x16+sr", NULL, NULL},
    {"mxfp8:e4m3", NULL, NULL, "mxfp8:e4m3", NULL, NULL},
    {NULL, "mxfp8:e4m3", NULL, NULL, "fp8-tensor:e5m2", NULL},
    {"fp8-tensor:e4m3", "fp8-tensor:e4m3", NULL, NULL, NULL, NULL},
    {NULL, NULL, "mxfp8:e4m3", "fp8-tensor:e5m2", "mxfp8:e4m3", NULL},
    {"fp8-tensor:e4m3", "fp8-tensor:e4m3", NULL, "fp8-tensor:e5m2", NULL, "fp8-tensor:e4m3"},
    {"nvfp4:e2m1/1x16+rht", "nvfp4:e2m1/16x16", NULL, "nvfp4:e2m1/1x16", NULL, NULL},
    {"nvfp4:e2m1/1x16+rht", "fp8-tensor:e4m3", NULL, "mxfp8:e4m3", NULL, NULL},
    {"mxfp4:e2m1/1x32+rht+sr", "mxfp4:e2m1/32x32+sr", "mxfp4:e2m1/1x32+sr",
     "mxfp4:e2m1/1x32+rht+sr", "mxfp4:e2m1/1x32", "mxfp4:e2m1/1x32+sr"},
    {"mxfp4:e2m1", "nvfp4:e2m1/16x16", NULL, "mxfp8:e4m3", NULL, NULL},
};

#define MATRIX_CUSTOMS ((int)(sizeof matrix_customs / sizeof matrix_customs[0]))

/* Levels of OPT_RECIPE; the custom recipes follow. */
typedef enum matrix_named {
    MATRIX_NONE,
    MATRIX_DELAYED,
    MATRIX_DELAYED_E4M3,
    MATRIX_CURRENT,
    MATRIX_CURRENT_POW2,
    MATRIX_BLOCK,
    MATRIX_BLOCK_1D,
    MATRIX_BLOCK_2D,
    MATRIX_BLOCK_F32, /* scales that are no powers of two */
    MATRIX_BLOCK_INVARIANT,
    MATRIX_MXFP8,
    MATRIX_MXFP8_2D,
    MATRIX_MXFP8_HYBRID,
    MATRIX_MXFP8_EXACT, /* products are never folded */
    MATRIX_MXFP8_INVARIANT,
    MATRIX_NVFP4,
    MATRIX_NVFP4_SIGNLESS, /* a Hadamard transform without a sign mask */
    MATRIX_NVFP4_PLAIN,    /* without one */
    MATRIX_NVFP4_NEAREST,  /* without stochastic rounding */
    MATRIX_NVFP4_1D,
    MATRIX_NVFP4_BARE, /* without any of the three */
    MATRIX_NVFP4_ROWS, /* row-scaled */
    MATRIX_NVFP4_4OVER6,
    MATRIX_NVFP4_4OVER6_ALL, /* activations, too; up to 448, by squared errors */
    MATRIX_MXFP4,
    MATRIX_MXFP4_TRANSFORMED,
    MATRIX_MXFP4_BARE, /* rows of blocks, to nearest */
    MATRIX_NAMED,
    MATRIX_ROUNDED = MATRIX_NAMED /* custom: NVFP4 everywhere, rounded stochastically */
} matrix_named;

static inline octet_status matrix_ask(octet_quantizer *out, const octet_quantizer_role *role,
                                      void *user, octet_error *err) {
    const matrix_roles *roles = user;
    const char *text = (*roles)[role->role];
    return text ? octet_quantizer_parse(out, text, err) : OCTET_OK;
}

static inline octet_recipe matrix_make(octet_recipe_kind kind) {
    octet_recipe recipe;
    memset(&recipe, 0, sizeof recipe);
    if (octet_recipe_make(&recipe, kind, NULL) != OCTET_OK) {
        recipe.size = 0;
    }
    return recipe;
}

static inline void matrix_vary_nvfp4(octet_recipe *recipe, matrix_named level) {
    octet_scope scope = level == MATRIX_NVFP4_4OVER6       ? OCTET_SCOPE_WEIGHTS
                        : level == MATRIX_NVFP4_4OVER6_ALL ? OCTET_SCOPE_ALL
                                                           : OCTET_SCOPE_NONE;
    if (level == MATRIX_NVFP4_PLAIN || level >= MATRIX_NVFP4_BARE) {
        recipe->input.hadamard = recipe->grad.hadamard = OCTET_HADAMARD_NONE;
    } else if (level == MATRIX_NVFP4_SIGNLESS) {
        recipe->input.hadamard = recipe->grad.hadamard = OCTET_HADAMARD_PLAIN;
    }
    if (level == MATRIX_NVFP4_NEAREST || level >= MATRIX_NVFP4_BARE) {
        recipe->grad.stochastic = 0;
    }
    if (level == MATRIX_NVFP4_1D || level == MATRIX_NVFP4_BARE) {
        recipe->weight.two_d = 0;
    }
    recipe->row_scaled = level == MATRIX_NVFP4_ROWS;
    recipe->four_over_six = (uint8_t)scope;
    if (scope == OCTET_SCOPE_ALL) {
        recipe->max256 = OCTET_SCOPE_NONE;
        recipe->error_mode = OCTET_4OVER6_MSE;
    }
}

static inline octet_recipe matrix_named_recipe(matrix_named level) {
    octet_recipe recipe = matrix_make(level >= MATRIX_MXFP4     ? OCTET_RECIPE_MXFP4
                                      : level >= MATRIX_NVFP4   ? OCTET_RECIPE_NVFP4
                                      : level >= MATRIX_MXFP8   ? OCTET_RECIPE_MXFP8
                                      : level >= MATRIX_BLOCK   ? OCTET_RECIPE_BLOCK
                                      : level >= MATRIX_CURRENT ? OCTET_RECIPE_CURRENT
                                      : level >= MATRIX_DELAYED ? OCTET_RECIPE_DELAYED
                                                                : OCTET_RECIPE_NONE);
    if (level == MATRIX_DELAYED_E4M3) {
        recipe.format = OCTET_FORMAT_E4M3;
    } else if (level == MATRIX_CURRENT_POW2) {
        recipe.input.pow2 = recipe.weight.pow2 = recipe.grad.pow2 = 1;
    } else if (level == MATRIX_BLOCK_1D) {
        recipe.weight.two_d = 0;
    } else if (level == MATRIX_BLOCK_2D) {
        recipe.input.two_d = recipe.grad.two_d = 1;
    } else if (level == MATRIX_BLOCK_F32) {
        recipe.input.pow2 = recipe.weight.pow2 = recipe.grad.pow2 = 0;
    } else if (level == MATRIX_MXFP8_2D) {
        recipe.weight.two_d = 1;
    } else if (level == MATRIX_MXFP8_HYBRID) {
        recipe.format = OCTET_FORMAT_HYBRID;
    } else if (level == MATRIX_MXFP8_EXACT) {
        recipe.product = OCTET_MX_EXACT;
    } else if (level == MATRIX_BLOCK_INVARIANT || level == MATRIX_MXFP8_INVARIANT) {
        recipe.batch_invariant = 1;
    } else if (level == MATRIX_MXFP4_TRANSFORMED) {
        recipe.input.hadamard = recipe.grad.hadamard = OCTET_HADAMARD_SIGNED;
    } else if (level == MATRIX_MXFP4_BARE) {
        recipe.weight.two_d = recipe.grad.stochastic = 0;
    } else if (level > MATRIX_NVFP4 && level < MATRIX_MXFP4) {
        matrix_vary_nvfp4(&recipe, level);
    }
    return recipe;
}

static inline octet_recipe matrix_recipe(int level) {
    if (level < MATRIX_NAMED) {
        return matrix_named_recipe((matrix_named)level);
    }
    octet_recipe custom = matrix_make(OCTET_RECIPE_NONE);
    matrix_roles roles;
    memcpy(roles, matrix_customs[level - MATRIX_NAMED], sizeof roles);
    octet_status status = octet_recipe_custom(&custom, matrix_ask, &roles, NULL);
    custom.size = status == OCTET_OK ? custom.size : 0;
    return custom;
}

/* ---- options --------------------------------------------------------------------------- */

static const matrix_levels matrix_table[OPTIONS] = {
    [OPT_RECIPE] = {MATRIX_NAMED + MATRIX_CUSTOMS, 5},
    [OPT_DTYPE] = {3, 60},        /* bf16, f32, f16 */
    [OPT_WEIGHT_DTYPE] = {3, 70}, /* as the input, f32, bf16 */
    [OPT_OUTPUT_DTYPE] = {2, 85}, /* as the input, f32 */
    [OPT_INPUT_GRAD] = {2, 70},   /* yes, no */
    [OPT_WEIGHT_GRAD] = {2, 70},
    [OPT_BIAS_GRAD] = {2, 50}, /* no, yes */
    [OPT_BIAS] = {3, 40},      /* none, as the input, f32 */
    [OPT_RETURN_BIAS] = {2, 85},
    [OPT_INPUT] = {7,
                   75}, /* plain; the recipe's row, col, both; another's row, both; swizzled */
    [OPT_WEIGHT] = {7, 75},
    [OPT_GRAD_OUTPUT] = {7, 80},
    [OPT_CACHE] = {3, 75},
    [OPT_QUANTIZE_OUTPUT] = {2, 80},
    [OPT_QUANTIZE_GRAD_INPUT] = {2, 80},
    [OPT_SAVE_ORIGINAL] = {2, 85},
    [OPT_OVERRIDE] = {3, 75},
    [OPT_MAIN_GRAD] = {3, 70},
    [OPT_MAIN_GRAD_DTYPE] = {3, 60}, /* none, bf16, f32 */
    [OPT_BIAS_MAIN_GRAD] = {3, 60},
    [OPT_BIAS_MAIN_GRAD_DTYPE] = {3, 60}, /* likewise */
    [OPT_DELAY] = {2, 75},
    [OPT_PARALLEL] = {3, 40},
    [OPT_SEQUENCE] = {2, 60},
    [OPT_GATHER] = {2, 70},
    [OPT_TP] = {3, 34}, /* 2, 4, 1 */
    [OPT_FSDP] = {2, 80},
    [OPT_CALIBRATE] = {2, 92},
    [OPT_RAISE_AMAX] = {3, 50}, /* returned, raised, not measured */
    [OPT_DEVICE] = {6, 40},     /* cpu, then cuda of these architectures */
    [OPT_RANK] = {3, 70},       /* 2, 3, 1 */
    [OPT_THREADS] = {2, 80},    /* none said, 6 */
    [OPT_PROLOGUE] = {5, 85},   /* see matrix_prologues */
    [OPT_NORM] = {6, 40},       /* see matrix_norm */
};

typedef struct matrix_row {
    uint8_t level[OPTIONS];
    uint8_t chunks;        /* of a product that is scattered; it is not drawn: a test sets it */
    uint8_t gather_chunks; /* of one whose operand is gathered, likewise */
    uint8_t save;          /* octet_save, of a weight that the caller has, or */
    uint8_t temporary;     /* has not */
} matrix_row;

typedef struct matrix_size {
    int64_t m, k, n;
} matrix_size;

/* ---- random rows, always the same ------------------------------------------------------ */

typedef struct matrix_random {
    uint64_t state;
} matrix_random;

static inline uint64_t matrix_next(matrix_random *random) {
    uint64_t x = random->state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline int matrix_below(matrix_random *random, int limit) {
    return (int)(matrix_next(random) % (uint64_t)limit);
}

/* What is saved is drawn apart, a third of the rows: memory. */
static inline matrix_row matrix_draw(matrix_random *random) {
    matrix_random apart = {~random->state};
    matrix_row row = {.save = matrix_below(&apart, 3) ? OCTET_SAVE_SPEED : OCTET_SAVE_MEMORY};
    row.temporary = matrix_below(&apart, 3) == 0;
    for (int i = 0; i < OPTIONS; i++) {
        const matrix_levels *option = &matrix_table[i];
        bool plain = matrix_below(random, 100) < option->plain;
        row.level[i] = (uint8_t)(plain ? 0 : 1 + matrix_below(random, option->count - 1));
    }
    return row;
}

/* ---- a row's arguments ----------------------------------------------------------------- */

/* The quantizer of a given tensor: none, the recipe's, or one of another scheme. */
static inline octet_quantizer matrix_given(const octet_recipe *recipe, octet_role role,
                                           int level) {
    octet_quantizer q = {.size = sizeof q};
    bool other = level == 4 || level == 5;
    if (level == 0 || octet_recipe_quantizer(&q, recipe, role, NULL) != OCTET_OK) {
        return q;
    }
    if (other || q.scheme == OCTET_SCHEME_NONE) {
        const char *text = q.scheme == OCTET_MXFP8 ? "fp8-tensor:e4m3" : "mxfp8:e4m3";
        q.scheme = octet_quantizer_parse(&q, text, NULL) == OCTET_OK ? q.scheme : OCTET_SCHEMES;
    }
    q.rowwise = level != 2;
    q.columnwise = level != 1 && level != 4;
    q.swizzled = level == 6 && q.scheme >= OCTET_MXFP8;
    return q;
}

static inline octet_proto matrix_proto(octet_dtype dtype, int rank, const int64_t *shape,
                                       octet_device device) {
    octet_proto proto = octet_proto_make(dtype, rank, shape);
    proto.device = device;
    return proto;
}

static inline octet_device matrix_device(int level) {
    static const uint16_t archs[] = {0, 80, 89, 90, 100, 120};
    octet_device device = {.kind = level > 0 ? OCTET_CUDA : OCTET_CPU, .arch = archs[level]};
    return device;
}

/* Of each kind of plan; tests of their numbers have the others. */
static const octet_prologue matrix_prologues[] = {OCTET_PROLOGUE_NONE, OCTET_RMSNORM,
                                                  OCTET_LAYERNORM, OCTET_GELU, OCTET_SWIGLU};

/* A norm's parameters: with and without beta, trained or frozen, in another dtype,
 * zero-centered.
 */
static inline void matrix_norm(octet_linear_args *args, int level, int64_t cols) {
    octet_dtype dtype = level == 5 ? OCTET_F32 : (octet_dtype)args->weight.dtype;
    bool beta = args->prologue == OCTET_LAYERNORM && level != 1;
    if (!octet_prologue_is_norm((octet_prologue)args->prologue)) {
        return;
    }
    args->eps = level == 2 ? 0x1p-10f : 1e-5f;
    args->zero_centered = level >= 4;
    args->gamma = matrix_proto(dtype, 1, &cols, args->input.device);
    args->gamma_requires_grad = level != 2 && level != 4;
    if (beta) {
        args->beta = matrix_proto(dtype, 1, &cols, args->input.device);
        args->beta_requires_grad = level != 3 && level != 4;
    }
}

static inline void matrix_tensors(octet_linear_args *args, const matrix_row *row,
                                  const matrix_size *size) {
    static const octet_dtype dtypes[] = {OCTET_BF16, OCTET_F32, OCTET_F16};
    const uint8_t *level = row->level;
    octet_device device = matrix_device(level[OPT_DEVICE]);
    octet_dtype dtype = dtypes[level[OPT_DTYPE]];
    octet_dtype weight = level[OPT_WEIGHT_DTYPE] == 0   ? dtype
                         : level[OPT_WEIGHT_DTYPE] == 1 ? OCTET_F32
                                                        : OCTET_BF16;
    bool whole = level[OPT_RANK] == 2 && size->m == 1;
    octet_prologue prologue = matrix_prologues[level[OPT_PROLOGUE]];
    bool gated = octet_prologue_is_gated(prologue);
    int64_t wide = gated ? 2 * size->k : size->k;
    int64_t cube[] = {size->m, 1, wide}, matrix[] = {size->m, wide};
    int64_t sides[] = {size->n, size->k};
    args->input = level[OPT_RANK] == 1 ? matrix_proto(dtype, 3, cube, device)
                  : whole              ? matrix_proto(dtype, 1, &wide, device)
                                       : matrix_proto(dtype, 2, matrix, device);
    args->weight = matrix_proto(weight, 2, sides, device);
    if (level[OPT_BIAS]) {
        args->bias =
            matrix_proto(level[OPT_BIAS] == 1 ? dtype : OCTET_F32, 1, &size->n, device);
    }
    args->input.quantizer = matrix_given(&args->recipe, OCTET_INPUT, level[OPT_INPUT]);
    args->weight.quantizer = matrix_given(&args->recipe, OCTET_WEIGHT, level[OPT_WEIGHT]);
    args->prologue = (uint8_t)prologue;
    matrix_norm(args, level[OPT_NORM], size->k);
}

static inline void matrix_options(octet_linear_args *args, const uint8_t *level) {
    static const uint32_t ranks[] = {2, 4, 1};
    static const uint8_t grads[] = {OCTET_NONE, OCTET_BF16, OCTET_F32};
    bool adds_bias = level[OPT_BIAS] && !level[OPT_RETURN_BIAS];
    args->output_dtype = level[OPT_OUTPUT_DTYPE] ? OCTET_F32 : OCTET_NONE;
    args->input_requires_grad = !level[OPT_INPUT_GRAD];
    args->weight_requires_grad = !level[OPT_WEIGHT_GRAD];
    args->bias_requires_grad = level[OPT_BIAS] && level[OPT_BIAS_GRAD];
    args->return_bias = level[OPT_RETURN_BIAS];
    args->quantize_output = level[OPT_QUANTIZE_OUTPUT];
    args->quantize_grad_input = level[OPT_QUANTIZE_GRAD_INPUT];
    args->save_original_input = level[OPT_SAVE_ORIGINAL];
    args->weight_cache = level[OPT_CACHE];
    args->main_grad = level[OPT_MAIN_GRAD];
    args->main_grad_dtype = grads[level[OPT_MAIN_GRAD_DTYPE]];
    args->bias_main_grad = adds_bias ? level[OPT_BIAS_MAIN_GRAD] : 0;
    args->bias_main_grad_dtype = grads[level[OPT_BIAS_MAIN_GRAD_DTYPE]];
    args->delay_wgrad = level[OPT_DELAY];
    args->calibrate = level[OPT_CALIBRATE];
    args->raise_amax = level[OPT_RAISE_AMAX] == 1;
    args->skip_amax = level[OPT_RAISE_AMAX] == 2 && !level[OPT_CALIBRATE];
    args->parallel = level[OPT_PARALLEL];
    args->sequence_parallel = level[OPT_SEQUENCE];
    args->gather = level[OPT_GATHER];
    args->fsdp = level[OPT_FSDP];
    args->threads = level[OPT_THREADS] ? 6 : 0;
    args->tp_size = ranks[level[OPT_TP]];
}

/* Rows that every rank can share: whole where shards must be, whole blocks where bytes travel.
 */
static inline int64_t matrix_rows(const matrix_row *row, int64_t m) {
    bool sequence = row->level[OPT_SEQUENCE] && row->level[OPT_PARALLEL];
    return !sequence ? m : m * 4 * (row->level[OPT_GATHER] == 0 ? 128 : 1);
}

/* The arguments of a row; when they are refused, err says why. */
static inline octet_status matrix_args(octet_linear_backward_args *out, const matrix_row *row,
                                       const matrix_size *size, octet_error *err) {
    octet_linear_args args = OCTET_LINEAR_ARGS_INIT;
    int64_t cols = row->chunks ? 128 * row->chunks : 1; /* chunks are whole blocks */
    /* Pieces of a swizzled input have whole tiles of 128 rows; matrix_rows has made it 4. */
    int64_t tiles = row->level[OPT_INPUT] == 6 ? 32 : 1;
    int64_t rows = row->gather_chunks ? row->gather_chunks * tiles : 1;
    matrix_size scaled = {matrix_rows(row, size->m) * rows, size->k * cols, size->n * cols};
    args.chunks = row->chunks;
    args.gather_chunks = row->gather_chunks;
    args.save = row->save;
    args.temporary_weight = row->temporary;
    args.recipe = matrix_recipe(row->level[OPT_RECIPE]);
    args.recipe.override_ = row->level[OPT_OVERRIDE];
    matrix_tensors(&args, row, &scaled);
    matrix_options(&args, row->level);
    octet_status status = octet_linear_check(&args, err);
    status = status ? status : octet_linear_backward_make(out, &args, err);
    if (!status) {
        out->grad_output.quantizer =
            matrix_given(&args.recipe, OCTET_GRAD_OUTPUT, row->level[OPT_GRAD_OUTPUT]);
    }
    return status;
}

#endif
