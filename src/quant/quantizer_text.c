/* quantizer_text.c - a quantizer's text, scheme:format/RxC+option+option, and back. */
#include <string.h>

#include "core/dtype.h"
#include "core/fail.h"
#include "quant/quantizer.h"

#define MOST_OPTIONS 16

static bool offered(const octet_field *field, uint8_t scheme) {
    return field->word && (field->scope >> scheme & 1);
}

static bool is_usage(const octet_field *field) {
    return field->offset == offsetof(octet_quantizer, rowwise) ||
           field->offset == offsetof(octet_quantizer, columnwise);
}

/* The words a scheme offers, NULL-terminated, for messages. */
static void offered_words(const char *words[MOST_OPTIONS], uint8_t scheme) {
    int n = 0;
    for (const octet_field *field = oct_quantizer_fields; field->name; field++) {
        if (offered(field, scheme)) {
            words[n++] = field->word;
        }
    }
    words[n] = NULL;
}

static octet_status unknown_option(oct_span word, uint8_t scheme, octet_error *err) {
    const char *words[MOST_OPTIONS];
    char list[OCT_LIST_TEXT];
    offered_words(words, scheme);
    return oct_fail_at(err, word.column, "'%.*s' is not an option of %s; allowed: %s",
                       OCT_SHOW(word), oct_scheme_words[scheme], oct_list_words(list, words));
}

/* +word sets a flag or a word list's first choice, +noword clears it, +word=value sets it. */
static octet_status parse_option(octet_quantizer *q, oct_span option, uint32_t *seen,
                                 octet_error *err) {
    oct_span rest = option;
    oct_span word = oct_span_take(&rest, "=");
    const octet_field *field = oct_fields_find(oct_quantizer_fields, word);
    bool off = !field && oct_span_starts(word, "no");
    if (off) {
        field = oct_fields_find(oct_quantizer_fields, oct_span_skip(word, 2));
    }
    bool bare = rest.length == 0;
    if (!field || !offered(field, q->scheme) ||
        (off && (field->type == OCTET_FIELD_F32 || is_usage(field) || !bare))) {
        return unknown_option(word, q->scheme, err);
    }
    uint32_t bit = 1u << (field - oct_quantizer_fields);
    if (*seen & bit) {
        return oct_fail_at(err, word.column, "'%.*s' is given twice", OCT_SHOW(word));
    }
    *seen |= bit;
    if (!bare) {
        return oct_field_parse(field, q, oct_span_skip(rest, 1), err);
    }
    if (field->type == OCTET_FIELD_F32) {
        return oct_fail_at(err, word.column, "'%s' needs a value: %s=1e-12", field->word,
                           field->word);
    }
    oct_field_set(field, q, !off);
    return OCTET_OK;
}

static octet_status parse_block(octet_quantizer *q, oct_span block, octet_error *err) {
    oct_span rest = block;
    int64_t rows, cols;
    oct_span first = oct_span_take(&rest, "x");
    bool pair = oct_span_next(&rest) == 'x';
    if (!pair || !oct_span_count(&rows, first, UINT16_MAX) ||
        !oct_span_count(&cols, rest, UINT16_MAX)) {
        return oct_fail_at(err, block.column, "'%.*s' is not a block; it is ROWSxCOLUMNS",
                           OCT_SHOW(block));
    }
    octet_quantizer square = *q;
    oct_quantizer_set_block(&square, true);
    bool is_row = rows == q->block_rows && cols == q->block_cols;
    if (q->block_rows == 0 ||
        (!is_row && (rows != square.block_rows || cols != square.block_cols))) {
        return q->block_rows == 0
                   ? oct_fail_at(err, block.column, "%s has no blocks: one scale per tensor",
                                 oct_scheme_words[q->scheme])
                   : oct_fail_at(err, block.column,
                                 "'%.*s' is not a block of %s; allowed: "
                                 "%ux%u, %ux%u",
                                 OCT_SHOW(block), oct_scheme_words[q->scheme], q->block_rows,
                                 q->block_cols, square.block_rows, square.block_cols);
    }
    oct_quantizer_set_block(q, !is_row);
    return OCTET_OK;
}

static octet_status parse_format(octet_quantizer *q, oct_span word, octet_error *err) {
    int format = oct_span_find(word, oct_dtype_words);
    const uint8_t *formats = oct_scheme_of(q)->formats;
    if (format <= OCTET_NONE || !memchr(formats, format, 2)) {
        return oct_fail_at(err, word.column, "'%.*s' is not a format of %s; allowed: %s%s%s",
                           OCT_SHOW(word), oct_scheme_words[q->scheme],
                           octet_dtype_name(formats[0]), formats[1] ? ", " : "",
                           formats[1] ? octet_dtype_name(formats[1]) : "");
    }
    q->format = (uint8_t)format;
    return OCTET_OK;
}

static octet_status parse_options(octet_quantizer *q, oct_span rest, octet_error *err) {
    uint32_t seen = 0;
    uint8_t row = 0, col = 0;
    q->rowwise = q->columnwise = 0;
    while (oct_span_next(&rest) == '+') {
        octet_status status = parse_option(q, oct_span_take(&rest, "+"), &seen, err);
        if (status) {
            return status;
        }
        row = q->rowwise;
        col = q->columnwise;
    }
    q->rowwise = row || !col; /* no usage named: both */
    q->columnwise = col || !row;
    return OCTET_OK;
}

octet_status oct_quantizer_parse_span(octet_quantizer *out, oct_span text, octet_error *err) {
    oct_span rest = text;
    oct_span name = oct_span_take(&rest, ":");
    int scheme = oct_span_find(name, oct_scheme_words);
    if (scheme < 0) {
        char list[OCT_LIST_TEXT];
        return oct_fail_at(err, name.column, "'%.*s' is not a scheme; allowed: %s",
                           OCT_SHOW(name), oct_list_words(list, oct_scheme_words));
    }
    octet_quantizer q = oct_quantizer_default((octet_scheme)scheme);
    if (scheme == OCTET_SCHEME_NONE && rest.length == 0) {
        *out = q;
        return OCTET_OK;
    }
    if (scheme == OCTET_SCHEME_NONE || oct_span_next(&rest) != ':') {
        return oct_fail_at(err, rest.column,
                           scheme ? "a format must follow: %s:%s" : "nothing may follow '%s'",
                           oct_scheme_words[scheme], octet_dtype_name(q.format));
    }
    octet_status status = parse_format(&q, oct_span_take(&rest, "/+"), err);
    if (!status && oct_span_starts(rest, "/")) {
        (void)oct_span_next(&rest);
        status = parse_block(&q, oct_span_take(&rest, "+"), err);
    }
    status = status ? status : parse_options(&q, rest, err);
    octet_error cause;
    if (!status && octet_quantizer_check(&q, &cause)) {
        status =
            oct_fail_at(err, oct_span_named(text, cause.text).column, "%.400s", cause.text);
    }
    if (!status) {
        *out = q;
    }
    return status;
}

octet_status octet_quantizer_parse(octet_quantizer *out, const char *text, octet_error *err) {
    oct_span span;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_span_of(&span, text, err);
    return status ? status : oct_quantizer_parse_span(out, span, err);
}

void oct_quantizer_write(oct_writer *writer, const octet_quantizer *q) {
    oct_write(writer, octet_scheme_name(q->scheme));
    if (!oct_quantizer_is(q) || q->scheme >= OCTET_SCHEMES) {
        return;
    }
    oct_write(writer, ":");
    oct_write(writer, octet_dtype_name(q->format));
    octet_quantizer usual = oct_quantizer_default(q->scheme);
    if (usual.block_rows) {
        oct_write(writer, "/");
        oct_write_i64(writer, q->block_rows);
        oct_write(writer, "x");
        oct_write_i64(writer, q->block_cols);
    }
    for (const octet_field *field = oct_quantizer_fields; field->name; field++) {
        int64_t value = oct_field_get(field, q);
        int64_t as_usual = is_usage(field) ? 0 : oct_field_get(field, &usual);
        if (!offered(field, q->scheme) || value == as_usual) {
            continue;
        }
        oct_write(writer, value ? "+" : "+no");
        oct_write(writer, field->word);
        if (value && (value != 1 || field->type == OCTET_FIELD_F32)) {
            oct_write(writer, "=");
            oct_field_write(field, q, writer);
        }
    }
}

size_t octet_quantizer_print(char *text, size_t size, const octet_quantizer *quantizer) {
    oct_writer writer = oct_writer_start(text, size);
    if (!quantizer) {
        return 0;
    }
    oct_quantizer_write(&writer, quantizer);
    return writer.length;
}
