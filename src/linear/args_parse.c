/* args_parse.c - a Linear call from its text, "linear m=8 k=64 n=32 in=bf16 recipe=mxfp8 bias".
 */
#include <string.h>

#include "core/dtype.h"
#include "core/fail.h"
#include "format/prologue.h"
#include "linear/args.h"
#include "quant/proto.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

/* What the words have set so far. */
typedef struct reading {
    octet_linear_args args;
    octet_quantizer grad_output_quantizer;
    uint8_t grad_output_dtype;
    uint8_t bias_dtype, gamma_dtype, beta_dtype;
    int64_t n, k;
    bool has_bias, has_beta, has_grad;
    uint32_t seen; /* bit i: words[i] was given */
    uint64_t seen_fields;
} reading;

static octet_status read_count(int64_t *out, oct_span value, octet_error *err) {
    if (!oct_span_count(out, value, INT64_MAX)) {
        return oct_span_is_integer(value) && value.text[0] != '-'
                   ? oct_fail_at(err, value.column,
                                 "'%.*s' is no size: sizes are from 0 to %lld", OCT_SHOW(value),
                                 (long long)INT64_MAX)
                   : oct_fail_at(err, value.column, "'%.*s' is not a whole number",
                                 OCT_SHOW(value));
    }
    return OCTET_OK;
}

static octet_status read_dtype(uint8_t *out, oct_span value, octet_error *err) {
    int dtype = oct_span_find(value, oct_dtype_words);
    if (dtype < 0 || !oct_dtype_is_high_precision((uint8_t)dtype)) {
        return oct_fail_at(err, value.column,
                           "'%.*s' is not a dtype here; allowed: f32, bf16, f16",
                           OCT_SHOW(value));
    }
    *out = (uint8_t)dtype;
    return OCTET_OK;
}

/* 8192, or 4x128 for leading axes, or none for a vector. */
static octet_status read_m(reading *r, oct_span value, octet_error *err) {
    octet_proto *x = &r->args.input;
    x->rank = 0;
    if (oct_span_is(value, "none")) {
        return OCTET_OK;
    }
    octet_status status = OCTET_OK;
    oct_span rest = value;
    do {
        oct_span axis = oct_span_take(&rest, "x");
        if (x->rank + 1 >= OCTET_MAX_RANK) {
            return oct_fail_at(err, axis.column, "more than %d axes", OCTET_MAX_RANK);
        }
        status = read_count(&x->shape[x->rank++], axis, err);
    } while (!status && oct_span_next(&rest));
    return status;
}

static octet_status read_k(reading *r, oct_span value, octet_error *err) {
    return read_count(&r->k, value, err);
}

static octet_status read_n(reading *r, oct_span value, octet_error *err) {
    return read_count(&r->n, value, err);
}

static octet_status read_in(reading *r, oct_span value, octet_error *err) {
    return read_dtype(&r->args.input.dtype, value, err);
}

static octet_status read_w(reading *r, oct_span value, octet_error *err) {
    return read_dtype(&r->args.weight.dtype, value, err);
}

static octet_status read_qin(reading *r, oct_span value, octet_error *err) {
    return oct_quantizer_parse_span(&r->args.input.quantizer, value, err);
}

static octet_status read_qw(reading *r, oct_span value, octet_error *err) {
    return oct_quantizer_parse_span(&r->args.weight.quantizer, value, err);
}

/* Alone, or with a dtype of its own. */
static octet_status read_bias(reading *r, oct_span value, octet_error *err) {
    r->has_bias = true;
    return value.text ? read_dtype(&r->bias_dtype, value, err) : OCTET_OK;
}

static octet_status read_gamma(reading *r, oct_span value, octet_error *err) {
    return read_dtype(&r->gamma_dtype, value, err);
}

static octet_status read_beta(reading *r, oct_span value, octet_error *err) {
    r->has_beta = true;
    return value.text ? read_dtype(&r->beta_dtype, value, err) : OCTET_OK;
}

static octet_status read_recipe(reading *r, oct_span value, octet_error *err) {
    return oct_recipe_parse_span(&r->args.recipe, value, err);
}

/* Letters of x, w, b, g (gamma) and e (beta), or none. */
static octet_status read_grad(reading *r, oct_span value, octet_error *err) {
    static const char letters[] = "xwbge";
    uint8_t *flags[] = {&r->args.input_requires_grad, &r->args.weight_requires_grad,
                        &r->args.bias_requires_grad, &r->args.gamma_requires_grad,
                        &r->args.beta_requires_grad};
    bool none = oct_span_is(value, "none");
    r->has_grad = true;
    for (int i = 0; !none && i < value.length; i++) {
        const char *at = strchr(letters, value.text[i]);
        if (!at || *flags[at - letters]) {
            return oct_fail_at(err, value.column + i,
                               "'%.*s' is not a set of gradients; allowed: "
                               "none, or letters of x, w, b, g (gamma) and e (beta)",
                               OCT_SHOW(value));
        }
        *flags[at - letters] = 1;
    }
    return OCTET_OK;
}

static octet_status read_device(reading *r, oct_span value, octet_error *err) {
    return oct_device_parse_span(&r->args.input.device, value, err);
}

static octet_status read_dy(reading *r, oct_span value, octet_error *err) {
    return read_dtype(&r->grad_output_dtype, value, err);
}

static octet_status read_qdy(reading *r, oct_span value, octet_error *err) {
    return oct_quantizer_parse_span(&r->grad_output_quantizer, value, err);
}

/* Words with a place of their own; the others are fields of the args by their table. */
typedef struct special {
    const char *word;
    octet_status (*read)(reading *, oct_span, octet_error *);
    bool may_be_bare;
    bool backward_only;
} special;

static const special specials[] = {
    {"m", read_m, false, false},           {"k", read_k, false, false},
    {"n", read_n, false, false},           {"in", read_in, false, false},
    {"w", read_w, false, false},           {"qin", read_qin, false, false},
    {"qw", read_qw, false, false},         {"bias", read_bias, true, false},
    {"recipe", read_recipe, false, false}, {"grad", read_grad, false, false},
    {"gamma", read_gamma, false, false},   {"beta", read_beta, true, false},
    {"device", read_device, false, false}, {"dy", read_dy, false, true},
    {"qdy", read_qdy, false, true},
};
enum {
    SPECIALS = sizeof specials / sizeof specials[0],
    MUST = 4,  /* m k n in */
    SIZES = 7, /* bits of m k n */
};

static octet_status unknown_word(oct_span word, bool backward, octet_error *err) {
    char list[480];
    oct_writer writer = oct_writer_start(list, sizeof list);
    for (int i = 0; i < SPECIALS; i++) {
        if (backward || !specials[i].backward_only) {
            oct_write(&writer, i ? ", " : "");
            oct_write(&writer, specials[i].word);
        }
    }
    for (const octet_field *field = oct_linear_fields; field->name; field++) {
        oct_write(&writer, field->word ? ", " : "");
        oct_write(&writer, field->word ? field->word : "");
    }
    return oct_fail_at(err, word.column, "'%.*s' is not a word of a problem; allowed: %s",
                       OCT_SHOW(word), list);
}

static octet_status read_field(reading *r, const octet_field *field, oct_span word,
                               oct_span value, octet_error *err) {
    if (value.text) {
        return oct_field_parse(field, &r->args, value, err);
    }
    if (field->type != OCTET_FIELD_FLAG) {
        return oct_fail_at(err, word.column, "'%s' needs a value: %s=...", field->word,
                           field->word);
    }
    oct_field_set(field, &r->args, 1);
    return OCTET_OK;
}

static octet_status read_word(reading *r, oct_span item, bool backward, octet_error *err) {
    oct_span rest = item;
    oct_span word = oct_span_take(&rest, "=");
    oct_span value = {NULL, 0, rest.column};
    if (oct_span_next(&rest) == '=') {
        value = rest;
    }
    int at = 0;
    while (at < SPECIALS && !oct_span_is(word, specials[at].word)) {
        at++;
    }
    const octet_field *field = at < SPECIALS ? NULL : oct_fields_find(oct_linear_fields, word);
    if ((at == SPECIALS && !field) ||
        (at < SPECIALS && specials[at].backward_only && !backward)) {
        return unknown_word(word, backward, err);
    }
    uint64_t field_bit = field ? (uint64_t)1 << (field - oct_linear_fields) : 0;
    uint32_t bit = field ? 0 : 1u << at;
    if ((r->seen & bit) || (r->seen_fields & field_bit)) {
        return oct_fail_at(err, word.column, "'%.*s' is given twice", OCT_SHOW(word));
    }
    r->seen |= bit;
    r->seen_fields |= field_bit;
    if (field) {
        return read_field(r, field, word, value, err);
    }
    if (!value.text && !specials[at].may_be_bare) {
        return oct_fail_at(err, word.column, "'%s' needs a value: %s=...", specials[at].word,
                           specials[at].word);
    }
    return specials[at].read(r, value, err);
}

/* Every norm has a gamma; a gamma or beta without a norm is made, too: a check refuses it. */
static void complete_norm(reading *r) {
    octet_linear_args *args = &r->args;
    uint8_t usual = args->weight.dtype;
    if (r->gamma_dtype || oct_prologue_is_norm(args->prologue)) {
        args->gamma = octet_proto_make(r->gamma_dtype ? r->gamma_dtype : usual, 1, &r->k);
        args->gamma.device = args->input.device;
    }
    if (r->has_beta) {
        args->beta = octet_proto_make(r->beta_dtype ? r->beta_dtype : usual, 1, &r->k);
        args->beta.device = args->input.device;
    }
}

/* Shapes, dtypes and flags that follow from the words. Example: without "grad=", x and w want
 * gradients, and so does a bias that is there. */
static void complete(reading *r) {
    octet_linear_args *args = &r->args;
    octet_proto *x = &args->input, *w = &args->weight, *b = &args->bias;
    int wide = oct_prologue_is_gated(args->prologue) ? 2 : 1;
    x->shape[x->rank++] = r->k <= INT64_MAX / wide ? r->k * wide : r->k;
    w->dtype = w->dtype ? w->dtype : x->dtype;
    w->rank = 2;
    w->shape[0] = r->n;
    w->shape[1] = r->k;
    w->device = x->device;
    x->size = w->size = sizeof *x;
    if (r->has_bias) {
        *b = octet_proto_make(r->bias_dtype ? r->bias_dtype : w->dtype, 1, &r->n);
        b->device = x->device;
    }
    complete_norm(r);
    if (!r->has_grad) {
        args->input_requires_grad = args->weight_requires_grad = 1;
        args->bias_requires_grad = r->has_bias;
        args->gamma_requires_grad = oct_has(&args->gamma);
        args->beta_requires_grad = oct_has(&args->beta);
    }
}

/* The words of a problem; those that `r` has seen before are not asked for. */
static octet_status read_words(reading *r, oct_span rest, bool backward, octet_error *err) {
    octet_status status = OCTET_OK;
    while (!status && rest.length) {
        oct_span_blanks(&rest);
        oct_span item = oct_span_take(&rest, OCT_BLANKS);
        status = item.length ? read_word(r, item, backward, err) : OCTET_OK;
    }
    for (int i = 0; !status && i < MUST; i++) {
        if (!(r->seen >> i & 1)) {
            status = oct_fail_at(err, rest.column,
                                 "'%s=' is missing; a problem gives m, k, n "
                                 "and in",
                                 specials[i].word);
        }
    }
    if (!status) {
        complete(r);
        status = octet_linear_check(&r->args, err);
    }
    return status;
}

static reading start(void) {
    return (reading){.args = {.size = sizeof(octet_linear_args)}};
}

static octet_status read_text(reading *r, const char *text, bool backward, octet_error *err) {
    oct_span rest;
    octet_status status = oct_span_of(&rest, text, err);
    if (status) {
        return status;
    }
    const char *head = backward ? "linear-backward" : "linear";
    *r = start();
    oct_span_blanks(&rest);
    oct_span first = oct_span_take(&rest, OCT_BLANKS);
    if (!oct_span_is(first, head)) {
        return oct_fail_at(err, first.column, "a problem begins with '%s', not '%.*s'", head,
                           OCT_SHOW(first));
    }
    return read_words(r, rest, backward, err);
}

/* The input's axes, with K for its columns, and then N, in the place of the words for them. */
static octet_status take_sizes(reading *r, const int64_t *sizes, int count, octet_error *err) {
    octet_proto *x = &r->args.input;
    if (count < 2 || count > OCTET_MAX_RANK) {
        return oct_fail(err, OCTET_INVALID,
                        "%d sizes; they are the input's axes, at most %d, and then N", count,
                        OCTET_MAX_RANK);
    }
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0) {
            return oct_fail(err, OCTET_INVALID, "size %d is %lld", i, (long long)sizes[i]);
        }
    }
    x->rank = (uint8_t)(count - 2);
    memcpy(x->shape, sizes, (size_t)x->rank * sizeof *sizes);
    r->k = sizes[count - 2];
    r->n = sizes[count - 1];
    r->seen = SIZES;
    return OCTET_OK;
}

octet_status octet_linear_parse_words(octet_linear_args *out, const char *words,
                                      const int64_t *sizes, int count, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    oct_span rest;
    reading r = start();
    status = status ? status : oct_need(sizes, "sizes", err);
    status = status ? status : oct_span_of(&rest, words, err);
    status = status ? status : take_sizes(&r, sizes, count, err);
    status = status ? status : read_words(&r, rest, false, err);
    if (!status) {
        *out = r.args;
    }
    return status;
}

static octet_status make_backward(octet_linear_backward_args *out, const reading *r,
                                  octet_error *err) {
    oct_facts facts;
    octet_linear_backward_args made;
    octet_status status = octet_linear_backward_make(&made, &r->args, err);
    if (!status) {
        made.grad_output.quantizer = r->grad_output_quantizer;
        if (r->grad_output_dtype) {
            made.grad_output.dtype = r->grad_output_dtype;
        }
        status = oct_linear_backward_check(&made, &facts, err);
    }
    if (!status) {
        *out = made;
    }
    return status;
}

octet_status octet_linear_parse(octet_linear_args *out, const char *text, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    reading r;
    status = status ? status : read_text(&r, text, false, err);
    if (!status) {
        *out = r.args;
    }
    return status;
}

octet_status octet_linear_backward_parse(octet_linear_backward_args *out, const char *text,
                                         octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    reading r;
    status = status ? status : read_text(&r, text, true, err);
    return status ? status : make_backward(out, &r, err);
}

octet_status octet_linear_backward_parse_words(octet_linear_backward_args *out,
                                               const char *words, const int64_t *sizes,
                                               int count, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    oct_span rest;
    reading r = start();
    status = status ? status : oct_need(sizes, "sizes", err);
    status = status ? status : oct_span_of(&rest, words, err);
    status = status ? status : take_sizes(&r, sizes, count, err);
    status = status ? status : read_words(&r, rest, true, err);
    return status ? status : make_backward(out, &r, err);
}
