/* dtype.c - the element types, one row each. */
#include "core/dtype.h"

#include "core/fail.h"

const char *const oct_dtype_words[OCTET_DTYPES + 1] = {
    "none", "f32", "bf16", "f16", "u8", "i64", "e4m3", "e5m2", "e2m1", "e8m0", NULL,
};

static const uint8_t dtype_bits[OCTET_DTYPES] = {0, 32, 16, 16, 8, 64, 8, 8, 4, 8};

const char *octet_dtype_name(octet_dtype dtype) {
    size_t at = (size_t)dtype;
    return at < OCTET_DTYPES ? oct_dtype_words[at] : "?";
}

int octet_dtype_bits(octet_dtype dtype) {
    size_t at = (size_t)dtype;
    return at < OCTET_DTYPES ? dtype_bits[at] : 0;
}

bool oct_dtype_is_high_precision(uint8_t dtype) {
    return dtype == OCTET_F32 || dtype == OCTET_BF16 || dtype == OCTET_F16;
}

octet_status oct_dtype_parse_span(octet_dtype *out, oct_span text, octet_error *err) {
    int dtype = oct_span_find(text, oct_dtype_words);
    if (dtype < 0) {
        char list[OCT_LIST_TEXT];
        return oct_fail_at(err, text.column, "'%.*s' is not a dtype; allowed: %s",
                           OCT_SHOW(text), oct_list_words(list, oct_dtype_words));
    }
    *out = (octet_dtype)dtype;
    return OCTET_OK;
}

octet_status octet_dtype_parse(octet_dtype *out, const char *text, octet_error *err) {
    oct_span span;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_span_of(&span, text, err);
    return status ? status : oct_dtype_parse_span(out, span, err);
}
