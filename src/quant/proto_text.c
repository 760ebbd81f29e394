/* proto_text.c - a proto's text, "bf16 (8, 128) mxfp8:e4m3 on cuda:0 with grad", and back. */
#include "core/dtype.h"
#include "core/fail.h"
#include "quant/proto.h"
#include "quant/quantizer.h"

#define FORM "a proto is DTYPE (AXES) [QUANTIZER] [on DEVICE] [with grad]"

void oct_write_shape(oct_writer *writer, int rank, const int64_t *shape) {
    oct_write(writer, "(");
    for (int i = 0; i < rank; i++) {
        oct_write(writer, i ? ", " : "");
        oct_write_i64(writer, shape[i]);
    }
    oct_write(writer, ")");
}

size_t octet_proto_print(char *text, size_t size, const octet_proto *proto) {
    oct_writer writer = oct_writer_start(text, size);
    if (!proto) {
        return 0;
    }
    oct_write(&writer, octet_dtype_name(proto->dtype));
    oct_write(&writer, " ");
    oct_write_shape(&writer, proto->rank > OCTET_MAX_RANK ? 0 : proto->rank, proto->shape);
    if (oct_quantizer_is(&proto->quantizer)) {
        oct_write(&writer, " ");
        oct_quantizer_write(&writer, &proto->quantizer);
    }
    oct_write(&writer, " on ");
    oct_write_device(&writer, &proto->device);
    oct_write(&writer, proto->requires_grad ? " with grad" : "");
    return writer.length;
}

/* ---- and back ---------------------------------------------------------------------------- */

/* The next word, without the blanks around it; empty at the end. */
static oct_span next_word(oct_span *rest) {
    oct_span_blanks(rest);
    oct_span word = oct_span_take(rest, OCT_BLANKS);
    oct_span_blanks(rest);
    return word;
}

static octet_status read_axis(octet_proto *proto, oct_span axis, octet_error *err) {
    oct_span rest = axis;
    oct_span number = next_word(&rest);
    if (proto->rank == OCTET_MAX_RANK) {
        return oct_fail_at(err, number.column, "more than %d axes", OCTET_MAX_RANK);
    }
    if (rest.length || !oct_span_count(&proto->shape[proto->rank], number, INT64_MAX)) {
        return oct_fail_at(err, number.column, "'%.*s' is not the length of an axis",
                           OCT_SHOW(axis));
    }
    proto->rank++;
    return OCTET_OK;
}

/* "(8, 128)", "(8)", "()". */
static octet_status read_shape(octet_proto *proto, oct_span *rest, octet_error *err) {
    oct_span_blanks(rest);
    oct_span whole = *rest;
    bool opens = oct_span_next(rest) == '(';
    oct_span axes = oct_span_take(rest, ")");
    if (!opens || oct_span_next(rest) != ')') {
        return oct_fail_at(err, whole.column, "'%.*s' does not begin with a shape; " FORM,
                           OCT_SHOW(whole));
    }
    octet_status status = OCTET_OK;
    bool more = true;
    oct_span_blanks(&axes);
    while (axes.length && more && !status) {
        status = read_axis(proto, oct_span_take(&axes, ","), err);
        more = oct_span_next(&axes) == ',';
    }
    if (!status && proto->rank && more) {
        status = oct_fail_at(err, axes.column, "the length of an axis follows ','");
    }
    return status;
}

/* What follows dtype and shape; each piece may be left out. */
static octet_status read_rest(octet_proto *proto, oct_span rest, octet_error *err) {
    octet_status status = OCTET_OK;
    oct_span word = next_word(&rest);
    if (word.length && !oct_span_is(word, "on") && !oct_span_is(word, "with")) {
        status = oct_quantizer_parse_span(&proto->quantizer, word, err);
        word = next_word(&rest);
    }
    if (!status && oct_span_is(word, "on")) {
        status = oct_device_parse_span(&proto->device, next_word(&rest), err);
        word = next_word(&rest);
    }
    oct_span after = rest;
    if (!status && oct_span_is(word, "with") && oct_span_is(next_word(&after), "grad")) {
        proto->requires_grad = 1;
        word = next_word(&after);
    }
    if (!status && word.length) {
        status =
            oct_fail_at(err, word.column, "'%.*s' is not expected here; " FORM, OCT_SHOW(word));
    }
    return status;
}

octet_status octet_proto_parse(octet_proto *out, const char *text, octet_error *err) {
    oct_span rest;
    octet_dtype dtype = OCTET_NONE;
    octet_proto proto = {.size = sizeof proto};
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_span_of(&rest, text, err);
    if (status) {
        return status;
    }
    oct_span_blanks(&rest);
    status = oct_dtype_parse_span(&dtype, oct_span_take(&rest, OCT_BLANKS "("), err);
    proto.dtype = (uint8_t)dtype;
    status = status ? status : read_shape(&proto, &rest, err);
    status = status ? status : read_rest(&proto, rest, err);
    status = status ? status : octet_proto_check(&proto, err);
    if (!status) {
        *out = proto;
    }
    return status;
}
