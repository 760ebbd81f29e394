/* quantizer.c - how a tensor becomes bytes, as a value whose text is its identity. */
#include "quant/quantizer.h"

#include <string.h>

#include "core/dtype.h"
#include "core/fail.h"

_Static_assert(sizeof(octet_quantizer) == 32, "a quantizer is 32 bytes, without padding");

const char *const oct_hadamard_words[4] = {"none", "signed", "plain", NULL};
const char *const oct_four_over_six_words[4] = {"none", "mae", "mse", NULL};

#define Q octet_quantizer
#define QUANTIZED (OCT_ANY & ~(1u << OCTET_SCHEME_NONE))

/* The schemes that take something of it, as a field's scope. */
#define BIT(what, name, word, takes, ...) | ((takes) & (what) ? 1u << OCTET_##name : 0u)
#define ON(what) (0u OCT_SCHEME_ROWS(BIT, OCT_TAKES_##what))

const octet_field oct_quantizer_fields[] = {
    OCT_WORD(Q, scheme, NULL, oct_scheme_words, OCT_ANY, "how scales are chosen"),
    OCT_WORD(Q, format, NULL, oct_dtype_words, QUANTIZED, "element format"),
    OCT_NUMBER(Q, block_rows, NULL, OCTET_FIELD_U16, ON(BLOCKS), "rows of a rowwise block"),
    OCT_NUMBER(Q, block_cols, NULL, OCTET_FIELD_U16, ON(BLOCKS), "columns of a rowwise block"),
    OCT_FLAG(Q, rowwise, "row", QUANTIZED, "has rowwise bytes, for fprop and dgrad"),
    OCT_FLAG(Q, columnwise, "col", QUANTIZED, "has columnwise bytes, for wgrad and dgrad"),
    OCT_FLAG(Q, pow2, "pow2", ON(SCALING), "scales are powers of two"),
    OCT_NUMBER(Q, epsilon, "eps", OCTET_FIELD_F32, ON(SCALING),
               "the least amax a scale is made from"),
    OCT_WORD(Q, hadamard, "rht", oct_hadamard_words, ON(TRANSFORM),
             "Hadamard transform of columnwise bytes"),
    OCT_FLAG(Q, stochastic, "sr", ON(STOCHASTIC), "stochastic rounding"),
    OCT_FLAG(Q, row_scaled, "rowscaled", ON(FACTOR), "one amax per row"),
    OCT_WORD(Q, four_over_six, "4over6", oct_four_over_six_words, ON(FACTOR),
             "block scales map the amax to 6 or to 4, whichever errs less"),
    OCT_FLAG(Q, max256, "max256", ON(FACTOR), "four-over-six scales reach 256, not 448"),
    OCT_FLAG(Q, swizzled, "swizzled", ON(SWIZZLED),
             "scales in the order tensor cores read them"),
    OCT_FIELDS_END,
};

octet_quantizer oct_quantizer_default(octet_scheme scheme) {
    const oct_scheme *row = &oct_schemes[scheme];
    octet_quantizer quantizer = {
        .size = sizeof quantizer,
        .scheme = (uint8_t)scheme,
        .format = row->formats[0],
        .rowwise = scheme != OCTET_SCHEME_NONE,
        .columnwise = scheme != OCTET_SCHEME_NONE,
        .block_rows = row->block ? 1 : 0,
        .block_cols = row->block,
        .pow2 = row->pow2,
    };
    return quantizer;
}

void oct_quantizer_set_block(octet_quantizer *quantizer, bool two_d) {
    uint16_t block = oct_scheme_of(quantizer)->block;
    quantizer->block_rows = two_d || !block ? block : 1;
    quantizer->block_cols = block;
}

bool octet_quantizer_transposable(const octet_quantizer *quantizer) {
    const octet_quantizer *q = quantizer;
    return oct_quantizer_one_scale(q) ||
           (q->block_rows > 1 && !q->stochastic && !q->four_over_six);
}

static octet_status check_choice(const octet_quantizer *q, octet_error *err) {
    const oct_scheme *row = oct_scheme_of(q);
    const char *name = oct_scheme_words[q->scheme];
    if (!memchr(row->formats, q->format, 2) || q->format == OCTET_NONE) {
        return oct_fail(err, OCTET_INVALID, "%s does not store %s; it stores %s%s%s", name,
                        octet_dtype_name(q->format), octet_dtype_name(row->formats[0]),
                        row->formats[1] ? " or " : "",
                        row->formats[1] ? octet_dtype_name(row->formats[1]) : "");
    }
    unsigned one = row->block ? 1 : 0; /* row of a block */
    if (q->block_cols != row->block || (q->block_rows != one && q->block_rows != row->block)) {
        return oct_fail(err, OCTET_INVALID, "%s has blocks of %ux%u or %ux%u, not %ux%u", name,
                        one, row->block, row->block, row->block, q->block_rows, q->block_cols);
    }
    if (!q->rowwise && !q->columnwise) {
        return oct_fail(err, OCTET_INVALID,
                        "%s has no usage: a quantizer is rowwise, columnwise or both", name);
    }
    return OCTET_OK;
}

/* Combinations that cannot mean anything. */
static octet_status check_sense(const octet_quantizer *q, octet_error *err) {
    bool square = q->block_rows > 1;
    const char *why = NULL;
    if (q->epsilon < 0) {
        why = "eps is negative; an amax never is";
    } else if (q->hadamard && square) {
        why = "rht transforms columnwise bytes only, but those of square blocks are the "
              "transpose of rowwise bytes; drop one of the two";
    } else if (q->row_scaled && (square || q->hadamard || q->stochastic)) {
        why = "rowscaled goes with neither square blocks nor rht nor sr";
    } else if (q->four_over_six && (q->hadamard || q->stochastic)) {
        why = "4over6 goes with neither rht nor sr";
    } else if (q->max256 && !q->four_over_six) {
        why = "max256 is an option of 4over6, which is off";
    }
    return why ? oct_fail(err, OCTET_INVALID, "%s: %s", oct_scheme_words[q->scheme], why)
               : OCTET_OK;
}

octet_status octet_quantizer_check(const octet_quantizer *quantizer, octet_error *err) {
    octet_status status = oct_need(quantizer, "quantizer", err);
    if (!status && (quantizer->scheme != OCTET_SCHEME_NONE || quantizer->size != 0)) {
        status = oct_need_size(quantizer->size, sizeof *quantizer, "octet_quantizer", err);
    }
    if (!status && quantizer->scheme >= OCTET_SCHEMES) {
        status =
            oct_fail(err, OCTET_INVALID, "octet_quantizer.scheme is %u; it must be below %d",
                     quantizer->scheme, OCTET_SCHEMES);
    }
    if (!status) {
        status = oct_fields_check(oct_quantizer_fields, quantizer, quantizer->scheme,
                                  "octet_quantizer", err);
    }
    status = status ? status
                    : oct_need_zero(&quantizer->reserved0, 1, "octet_quantizer.reserved0", err);
    status = status ? status
                    : oct_need_zero(quantizer->reserved, sizeof quantizer->reserved,
                                    "octet_quantizer.reserved", err);
    if (!status && oct_quantizer_is(quantizer)) {
        status = check_choice(quantizer, err);
        status = status ? status : check_sense(quantizer, err);
    }
    return status;
}

bool octet_quantizer_equal(const octet_quantizer *a, const octet_quantizer *b) {
    return oct_fields_equal(oct_quantizer_fields, a, b);
}

uint64_t octet_quantizer_hash(const octet_quantizer *quantizer) {
    return oct_fields_hash(oct_quantizer_fields, quantizer);
}

octet_status octet_quantizer_with_usage(octet_quantizer *out, const octet_quantizer *quantizer,
                                        bool rowwise, bool columnwise, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_quantizer_check(quantizer, err);
    if (status) {
        return status;
    }
    octet_quantizer changed = *quantizer;
    changed.rowwise = rowwise;
    changed.columnwise = columnwise;
    status = octet_quantizer_check(&changed, err);
    if (!status) {
        *out = changed;
    }
    return status;
}

/* A block's rows stay together: rowwise as it is written, columnwise turned round. Swizzled
 * scales of 128 rows lie among each other. */
int64_t octet_quantizer_row_step(const octet_quantizer *quantizer) {
    int64_t rows = quantizer->block_rows, cols = quantizer->block_cols;
    int64_t step = quantizer->columnwise && cols > rows ? cols : rows;
    return quantizer->swizzled ? 0 : step > 1 ? step : 1;
}

int64_t octet_quantizer_column_step(const octet_quantizer *quantizer) {
    int64_t step = quantizer->rowwise ? quantizer->block_cols : quantizer->block_rows;
    return quantizer->swizzled ? 0 : step > 1 ? step : 1;
}

const char *octet_scheme_name(octet_scheme scheme) {
    size_t at = (size_t)scheme;
    return at < OCTET_SCHEMES ? oct_scheme_words[at] : "?";
}

octet_dtype octet_scale_format(octet_scheme scheme) {
    octet_quantizer q = {.scheme = (uint8_t)scheme};
    bool has = (unsigned)scheme < OCTET_SCHEMES && scheme != OCTET_SCHEME_NONE;
    return has ? (octet_dtype)oct_scheme_of(&q)->scale_format : OCTET_NONE;
}
