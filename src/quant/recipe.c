/* recipe.c - which quantizer each role gets, as a value. */
#include "quant/recipe.h"

#include <string.h>

#include "core/dtype.h"
#include "core/fail.h"
#include "quant/quantizer.h"

_Static_assert(sizeof(octet_recipe) == 52 + 32 * OCTET_ROLES, "a recipe has no padding");

const char *const oct_recipe_words[OCTET_RECIPES + 1] = {
    "none", "delayed", "current", "block", "mxfp8", "nvfp4", "mxfp4", "custom", NULL,
};
const char *const oct_role_words[OCTET_ROLES + 1] = {
    "input", "weight", "output", "grad_output", "grad_input", "grad_weight", NULL,
};
static const char *const format_words[] = {"e4m3", "hybrid", NULL};
static const char *const algo_words[] = {"max", "most_recent", "callback", NULL};
static const char *const override_words[] = {"none", "high_precision", "dequantized", NULL};
static const char *const product_words[] = {"folded", "exact", NULL};
static const char *const split_words[] = {"fast", "split", NULL};
static const char *const scope_words[] = {"none", "weights", "activations", "all", NULL};

#define Q octet_qparams
#define R octet_recipe
#define ON(kind) (1u << OCTET_RECIPE_##kind)
#define QUANTIZED (OCT_ANY & ~ON(NONE))
#define FP4 (ON(NVFP4) | ON(MXFP4))

/* MXFP8 offers square blocks for weights alone. */
#define PARAMETER_ROWS(two_d_scope)                                                            \
    OCT_FLAG(Q, pow2, "pow2", ON(CURRENT) | ON(BLOCK), "scales are powers of two"),            \
        OCT_WORD(Q, hadamard, "rht", oct_hadamard_words, FP4, "Hadamard transform"),           \
        OCT_FLAG(Q, stochastic, "sr", FP4, "stochastic rounding"),                             \
        OCT_FLAG(Q, two_d, "2d", two_d_scope, "square blocks"),                                \
        OCT_NUMBER(Q, epsilon, "eps", OCTET_FIELD_F32, ON(CURRENT) | ON(BLOCK),                \
                   "the least amax a scale is made from"),                                     \
        OCT_FIELDS_END

static const octet_field activation_rows[] = {PARAMETER_ROWS(ON(BLOCK) | FP4)};
const octet_field oct_qparams_fields[] = {PARAMETER_ROWS(ON(BLOCK) | ON(MXFP8) | FP4)};

const octet_field oct_recipe_fields[] = {
    OCT_WORD(R, kind, NULL, oct_recipe_words, OCT_ANY, "the recipe"),
    OCT_WORD(R, format, "format", format_words,
             ON(DELAYED) | ON(CURRENT) | ON(BLOCK) | ON(MXFP8),
             "e4m3, or hybrid: e5m2 for gradients"),
    OCT_WORD(R, override_, "override", override_words, QUANTIZED & ~ON(DELAYED),
             "what backward multiplies instead of quantized bytes"),
    OCT_WORD(R, algo, "algo", algo_words, ON(DELAYED), "how the history gives an amax"),
    OCT_FLAG(R, reduce_amax, "reduce", ON(DELAYED), "amaxes are reduced over the group"),
    OCT_WORD(R, split_fprop, "fprop", split_words, QUANTIZED, "accumulation of fprop"),
    OCT_WORD(R, split_dgrad, "dgrad", split_words, QUANTIZED, "accumulation of dgrad"),
    OCT_WORD(R, split_wgrad, "wgrad", split_words, QUANTIZED, "accumulation of wgrad"),
    OCT_WORD(R, product, "product", product_words, ON(MXFP8) | ON(CUSTOM),
             "of MXFP8 where a device folds it, or exact"),
    OCT_FLAG(R, batch_invariant, "batch_invariant", QUANTIZED,
             "a row's result does not depend on the other rows"),
    OCT_FLAG(R, row_scaled, "rowscaled", ON(NVFP4), "activations have one amax per row"),
    OCT_WORD(R, four_over_six, "4over6", scope_words, ON(NVFP4), "who chooses 4 or 6"),
    OCT_WORD(R, max256, "max256", scope_words, ON(NVFP4), "whose 4over6 scales reach 256"),
    OCT_WORD(R, error_mode, "err", oct_four_over_six_words, ON(NVFP4), "what 4over6 minimizes"),
    OCT_NUMBER(R, margin, "margin", OCTET_FIELD_I32, ON(DELAYED), "scales are over 2^margin"),
    OCT_NUMBER(R, history, "history", OCTET_FIELD_U32, ON(DELAYED), "length of the history"),
    OCT_STRUCT(R, input, "x", activation_rows, "inputs and outputs"),
    OCT_STRUCT(R, weight, "w", oct_qparams_fields, "weights"),
    OCT_STRUCT(R, grad, "g", activation_rows, "gradients"),
    OCT_ARRAY(R, custom, OCTET_FIELD_STRUCT, oct_quantizer_fields, "quantizers by role"),
    OCT_FIELDS_END,
};

static const uint8_t kind_scheme[OCTET_RECIPES] = {
    [OCTET_RECIPE_DELAYED] = OCTET_FP8_DELAYED, [OCTET_RECIPE_CURRENT] = OCTET_FP8_TENSOR,
    [OCTET_RECIPE_BLOCK] = OCTET_FP8_BLOCK,     [OCTET_RECIPE_MXFP8] = OCTET_MXFP8,
    [OCTET_RECIPE_NVFP4] = OCTET_NVFP4,         [OCTET_RECIPE_MXFP4] = OCTET_MXFP4,
};

/* The row of a recipe's scheme; of a custom one, none's. */
static const oct_scheme *scheme_of(int kind) {
    return &oct_schemes[kind_scheme[kind]];
}

int oct_recipe_groups(int kind, const octet_field *field) {
    if (!(field->scope >> kind & 1)) {
        return 0;
    }
    int groups = OCT_GROUP_WEIGHT;
    for (const octet_field *of = activation_rows; of->name; of++) {
        if (of->offset == field->offset && (of->scope >> kind & 1)) {
            groups |= OCT_GROUP_INPUT | OCT_GROUP_GRAD;
        }
    }
    return groups;
}

int oct_recipe_shorthand(int kind, const octet_field *field) {
    int groups = oct_recipe_groups(kind, field);
    if (kind == OCTET_RECIPE_BLOCK && field->offset == offsetof(octet_qparams, two_d)) {
        return 0;
    }
    if (!(scheme_of(kind)->takes & OCT_TAKES_TRANSFORM) || !groups) {
        return groups;
    }
    return field->offset == offsetof(octet_qparams, hadamard) ? OCT_GROUP_INPUT | OCT_GROUP_GRAD
           : field->offset == offsetof(octet_qparams, two_d)  ? OCT_GROUP_WEIGHT
                                                              : OCT_GROUP_GRAD;
}

octet_qparams *oct_recipe_group(octet_recipe *recipe, int group) {
    return group == OCT_GROUP_INPUT    ? &recipe->input
           : group == OCT_GROUP_WEIGHT ? &recipe->weight
                                       : &recipe->grad;
}

static const octet_recipe defaults[OCTET_RECIPES] = {
    [OCTET_RECIPE_DELAYED] = {.format = OCTET_FORMAT_HYBRID,
                              .reduce_amax = 1,
                              .split_dgrad = 1,
                              .split_wgrad = 1,
                              .history = 1024},
    [OCTET_RECIPE_CURRENT] = {.format = OCTET_FORMAT_HYBRID,
                              .split_dgrad = 1,
                              .split_wgrad = 1},
    [OCTET_RECIPE_BLOCK] = {.split_fprop = 1,
                            .split_dgrad = 1,
                            .split_wgrad = 1,
                            .input.pow2 = 1,
                            .weight = {.pow2 = 1, .two_d = 1},
                            .grad.pow2 = 1},
    [OCTET_RECIPE_MXFP8] = {.split_dgrad = 1, .split_wgrad = 1},
    [OCTET_RECIPE_NVFP4] = {.split_fprop = 1,
                            .split_dgrad = 1,
                            .split_wgrad = 1,
                            .max256 = OCTET_SCOPE_ALL,
                            .error_mode = OCTET_4OVER6_MAE,
                            .input.hadamard = OCTET_HADAMARD_SIGNED,
                            .weight.two_d = 1,
                            .grad = {.hadamard = OCTET_HADAMARD_SIGNED, .stochastic = 1}},
    [OCTET_RECIPE_MXFP4] = {.split_fprop = 1,
                            .split_dgrad = 1,
                            .split_wgrad = 1,
                            .weight.two_d = 1,
                            .grad.stochastic = 1},
    [OCTET_RECIPE_CUSTOM] = {.split_dgrad = 1, .split_wgrad = 1},
};

octet_recipe oct_recipe_default(octet_recipe_kind kind) {
    octet_recipe recipe = defaults[kind];
    recipe.size = sizeof recipe;
    recipe.kind = (uint8_t)kind;
    return recipe;
}

/* Zero where the recipe has none. */
static void add_factor_options(octet_quantizer *q, const octet_recipe *recipe,
                               octet_role role) {
    int scope = role == OCTET_WEIGHT ? OCTET_SCOPE_WEIGHTS : OCTET_SCOPE_ACTIVATIONS;
    if (role != OCTET_WEIGHT) {
        q->row_scaled = recipe->row_scaled;
    }
    if (recipe->four_over_six & scope) {
        q->four_over_six = recipe->error_mode;
        q->max256 = (recipe->max256 & scope) != 0;
    }
}

octet_quantizer oct_recipe_role(const octet_recipe *recipe, octet_role role) {
    if (recipe->kind == OCTET_RECIPE_CUSTOM) {
        return recipe->custom[role];
    }
    octet_quantizer q = oct_quantizer_default(kind_scheme[recipe->kind]);
    if (recipe->kind == OCTET_RECIPE_NONE || role == OCTET_GRAD_WEIGHT) {
        return oct_quantizer_default(OCTET_SCHEME_NONE);
    }
    bool is_grad = role == OCTET_GRAD_OUTPUT || role == OCTET_GRAD_INPUT;
    const octet_qparams *params = is_grad                ? &recipe->grad
                                  : role == OCTET_WEIGHT ? &recipe->weight
                                                         : &recipe->input;
    if (is_grad && recipe->format == OCTET_FORMAT_HYBRID) {
        q.format = OCTET_E5M2;
    }
    q.pow2 = params->pow2;
    q.epsilon = params->epsilon;
    q.hadamard = params->hadamard;
    q.stochastic = params->stochastic;
    oct_quantizer_set_block(&q, params->two_d);
    if (!is_grad) {
        add_factor_options(&q, recipe, role);
    }
    return q;
}

static octet_status check_groups(const octet_recipe *r, octet_error *err) {
    octet_status status =
        oct_fields_check(activation_rows, &r->input, r->kind, "octet_recipe.input", err);
    status = status ? status
                    : oct_fields_check(oct_qparams_fields, &r->weight, r->kind,
                                       "octet_recipe.weight", err);
    return status
               ? status
               : oct_fields_check(activation_rows, &r->grad, r->kind, "octet_recipe.grad", err);
}

/* Far beyond these a scale and its reciprocal do not fit a float together. */
static octet_status check_margin(const octet_recipe *r, octet_error *err) {
    if (r->margin >= -OCT_MOST_MARGIN && r->margin <= OCT_MOST_MARGIN) {
        return OCTET_OK;
    }
    return oct_fail(err, OCTET_INVALID, "recipe %s: margin is %ld; it is from %d to %d",
                    oct_recipe_words[r->kind], (long)r->margin, -OCT_MOST_MARGIN,
                    OCT_MOST_MARGIN);
}

/* Combinations that cannot mean anything. */
static octet_status check_sense(const octet_recipe *r, octet_error *err) {
    bool all_split = r->split_fprop && r->split_dgrad && r->split_wgrad;
    const char *why = NULL;
    if (r->kind == OCTET_RECIPE_DELAYED && r->history == 0) {
        why = "history is 0; it holds at least one amax";
    } else if (scheme_of(r->kind)->split && !all_split) {
        why = "block scales are applied in split accumulation; fast has no meaning";
    } else if ((scheme_of(r->kind)->takes & OCT_TAKES_FACTOR) && !r->error_mode) {
        why = "err is none; it is mae or mse";
    } else if (r->weight.hadamard) {
        why =
            "w.rht: the weight's columnwise bytes meet grad_output's rowwise bytes, which are "
            "never transformed";
    } else if (r->input.hadamard != r->grad.hadamard && !r->override_) {
        why = "x.rht and g.rht differ; in wgrad the transform cancels only if both carry it";
    }
    return why ? oct_fail(err, OCTET_INVALID, "recipe %s: %s", oct_recipe_words[r->kind], why)
               : OCTET_OK;
}

/* What of a recipe makes a row's bytes depend on other rows; NULL: nothing. Gradients count,
 * because dgrad's rows are rows, too. Delayed scaling has one scale for all rows, but it is an
 * argument: nothing of this batch is in it. */
static const char *looks_across_rows(const octet_recipe *r) {
    if (r->kind == OCTET_RECIPE_CURRENT) {
        return "one scale is made of all rows of a tensor";
    }
    if (r->kind == OCTET_RECIPE_NVFP4) {
        return "an amax is that of all rows of a tensor";
    }
    if (r->kind == OCTET_RECIPE_CUSTOM) {
        return "its quantizers may look at all rows of a tensor";
    }
    if (r->input.two_d || r->grad.two_d) {
        return "square blocks of inputs or gradients (x.2d, g.2d) share a scale between rows";
    }
    return r->input.stochastic || r->grad.stochastic
               ? "stochastic rounding draws by a row's place; leave it out with +nosr"
               : NULL;
}

static octet_status check_invariant(const octet_recipe *r, octet_error *err) {
    const char *why = r->batch_invariant ? looks_across_rows(r) : NULL;
    return why ? oct_fail(err, OCTET_INVALID,
                          "recipe %s: batch_invariant: %s; recipes that can: block, mxfp8, "
                          "delayed, mxfp4 without stochastic rounding",
                          oct_recipe_words[r->kind], why)
               : OCTET_OK;
}

/* Every role's quantizer is valid; the message says whose is not. Outputs are quantized as
 * inputs and grad_inputs as grad_outputs unless each role has its own. */
static octet_status check_roles(const octet_recipe *recipe, octet_error *err) {
    bool custom = recipe->kind == OCTET_RECIPE_CUSTOM;
    for (int role = 0; role < OCTET_ROLES; role++) {
        if (!custom && role != OCTET_INPUT && role != OCTET_WEIGHT &&
            role != OCTET_GRAD_OUTPUT) {
            continue;
        }
        octet_error cause;
        octet_quantizer q = oct_recipe_role(recipe, (octet_role)role);
        octet_status status = octet_quantizer_check(&q, &cause);
        if (status) {
            return oct_fail(err, status, "recipe %s, %s: %.300s",
                            oct_recipe_words[recipe->kind], oct_role_words[role], cause.text);
        }
    }
    return OCTET_OK;
}

octet_status octet_recipe_check(const octet_recipe *recipe, octet_error *err) {
    octet_status status = oct_need(recipe, "recipe", err);
    if (!status && (recipe->kind != OCTET_RECIPE_NONE || recipe->size != 0)) {
        status = oct_need_size(recipe->size, sizeof *recipe, "octet_recipe", err);
    }
    if (!status && recipe->kind >= OCTET_RECIPES) {
        status = oct_fail(err, OCTET_INVALID, "octet_recipe.kind is %u; it must be below %d",
                          recipe->kind, OCTET_RECIPES);
    }
    status =
        status ? status
               : oct_fields_check(oct_recipe_fields, recipe, recipe->kind, "octet_recipe", err);
    status = status ? status
                    : oct_need_zero(recipe->reserved, sizeof recipe->reserved,
                                    "octet_recipe.reserved", err);
    status = status ? status : check_groups(recipe, err);
    const octet_quantizer none = {.scheme = OCTET_SCHEME_NONE};
    for (int i = 0; !status && recipe->kind != OCTET_RECIPE_CUSTOM && i < OCTET_ROLES; i++) {
        if (!octet_quantizer_equal(&recipe->custom[i], &none)) {
            status = oct_fail(err, OCTET_INVALID,
                              "octet_recipe.custom[%d] is set but the kind "
                              "is %s",
                              i, oct_recipe_words[recipe->kind]);
        }
    }
    status = status ? status : check_margin(recipe, err);
    status = status ? status : check_sense(recipe, err);
    status = status ? status : check_invariant(recipe, err);
    return status ? status : check_roles(recipe, err);
}

octet_status octet_recipe_make(octet_recipe *out, octet_recipe_kind kind, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    if (!status && (unsigned)kind >= OCTET_RECIPES) {
        status = oct_fail(err, OCTET_INVALID, "recipe kind %d; it must be below %d", (int)kind,
                          OCTET_RECIPES);
    }
    if (!status) {
        *out = oct_recipe_default(kind);
    }
    return status;
}

octet_status octet_recipe_custom(octet_recipe *out, octet_role_fn fn, void *user,
                                 octet_error *err) {
    if (!out || !fn) {
        return oct_need(out ? NULL : out, out ? "fn" : "out", err);
    }
    octet_recipe recipe = oct_recipe_default(OCTET_RECIPE_CUSTOM);
    for (int role = 0; role < OCTET_ROLES; role++) {
        octet_quantizer_role asked = {"linear", oct_role_words[role], (octet_role)role};
        octet_status status = fn(&recipe.custom[role], &asked, user, err);
        if (status) {
            return status;
        }
    }
    octet_status status = octet_recipe_check(&recipe, err);
    if (!status) {
        *out = recipe;
    }
    return status;
}

octet_status octet_recipe_quantizer(octet_quantizer *out, const octet_recipe *recipe,
                                    octet_role role, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_recipe_check(recipe, err);
    if (!status && (unsigned)role >= OCTET_ROLES) {
        status = oct_fail(err, OCTET_INVALID, "role %d; it must be below %d", (int)role,
                          OCTET_ROLES);
    }
    if (!status) {
        *out = oct_recipe_role(recipe, role);
    }
    return status;
}

bool octet_recipe_equal(const octet_recipe *a, const octet_recipe *b) {
    return oct_fields_equal(oct_recipe_fields, a, b);
}

uint64_t octet_recipe_hash(const octet_recipe *recipe) {
    return oct_fields_hash(oct_recipe_fields, recipe);
}

const char *octet_role_name(octet_role role) {
    size_t at = (size_t)role;
    return at < OCTET_ROLES ? oct_role_words[at] : "?";
}
