/* proto.c - a tensor without its data: everything it can be asked that is not a number in it.
 */
#include "quant/proto.h"

#include <string.h>

#include "core/dtype.h"
#include "core/fail.h"
#include "core/size.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

_Static_assert(sizeof(octet_proto) == 16 + 8 * OCTET_MAX_RANK + 32, "a proto has no padding");

const char *const oct_device_words[3] = {"cpu", "cuda", NULL};

const octet_field oct_device_fields[] = {
    OCT_WORD(octet_device, kind, "device", oct_device_words, OCT_ANY, "cpu or cuda"),
    OCT_NUMBER(octet_device, index, NULL, OCTET_FIELD_U8, OCT_ANY, "which one"),
    OCT_NUMBER(octet_device, arch, NULL, OCTET_FIELD_U16, OCT_ANY, "10 * major + minor"),
    OCT_FIELDS_END,
};

#define P octet_proto

/* Every field but requires_grad, which a call says of its arguments itself. */
#define ARGUMENT_ROWS                                                                          \
    OCT_WORD(P, dtype, NULL, oct_dtype_words, OCT_ANY, "the dtype it stands for"),             \
        OCT_NUMBER(P, rank, NULL, OCTET_FIELD_U8, OCT_ANY, "number of axes"),                  \
        OCT_ARRAY(P, shape, OCTET_FIELD_I64, NULL, "lengths of the axes"),                     \
        OCT_STRUCT(P, device, NULL, oct_device_fields, "where it is"),                         \
        OCT_STRUCT(P, quantizer, NULL, oct_quantizer_fields, "how it is stored")

const octet_field oct_argument_fields[] = {ARGUMENT_ROWS, OCT_FIELDS_END};

const octet_field oct_proto_fields[] = {
    ARGUMENT_ROWS,
    OCT_FLAG(P, requires_grad, NULL, OCT_ANY, "whether a gradient is wanted"),
    OCT_FIELDS_END,
};

octet_proto octet_proto_make(octet_dtype dtype, int rank, const int64_t *shape) {
    octet_proto proto = {.size = sizeof proto, .dtype = (uint8_t)dtype};
    proto.rank = (uint8_t)(rank < 0 || rank > OCTET_MAX_RANK ? UINT8_MAX : rank);
    for (int i = 0; i < rank && i < OCTET_MAX_RANK; i++) {
        proto.shape[i] = shape[i];
    }
    return proto;
}

static octet_status check_shape(const octet_proto *proto, octet_error *err) {
    if (proto->rank > OCTET_MAX_RANK) {
        return oct_fail(err, OCTET_INVALID,
                        "a proto has rank %u; at most %d axes: flatten the leading ones",
                        proto->rank, OCTET_MAX_RANK);
    }
    octet_extents extents = {0, 0, 0};
    int64_t count;
    for (int i = 0; i < OCTET_MAX_RANK; i++) {
        if (proto->shape[i] < 0 || (i >= proto->rank && proto->shape[i] != 0)) {
            return oct_fail(
                err, OCTET_INVALID,
                "axis %d of a rank-%u shape is %lld; axes are not negative and those "
                "past the rank are 0",
                i, proto->rank, (long long)proto->shape[i]);
        }
    }
    if (!oct_proto_extents(&extents, proto) || !oct_size_mul(&count, extents.m, extents.k)) {
        char text[256];
        oct_writer writer = oct_writer_start(text, sizeof text);
        oct_write_shape(&writer, proto->rank, proto->shape);
        return oct_fail(err, OCTET_INVALID, "the elements of %s exceed 64 bits", text);
    }
    return OCTET_OK;
}

octet_status octet_proto_check(const octet_proto *proto, octet_error *err) {
    octet_status status = oct_need(proto, "proto", err);
    status = status ? status : oct_need_size(proto->size, sizeof *proto, "octet_proto", err);
    status = status ? status : check_shape(proto, err);
    status = status ? status : oct_fields_check(oct_proto_fields, proto, 0, "octet_proto", err);
    status = status
                 ? status
                 : oct_fields_check(oct_device_fields, &proto->device, 0, "octet_device", err);
    status = status ? status : oct_need_zero(&proto->reserved, 1, "octet_proto.reserved", err);
    status = status ? status
                    : oct_need_zero(&proto->reserved2, sizeof proto->reserved2,
                                    "octet_proto.reserved2", err);
    if (!status && proto->device.kind == OCTET_CPU &&
        (proto->device.index || proto->device.arch)) {
        status = oct_fail(err, OCTET_INVALID,
                          "a proto is on cpu with index %u and arch %u; both are 0 there",
                          proto->device.index, proto->device.arch);
    }
    status = status ? status : octet_quantizer_check(&proto->quantizer, err);
    if (!status && proto->dtype == OCTET_NONE) {
        status = oct_fail(err, OCTET_INVALID, "a proto has dtype none: there is no tensor");
    }
    if (!status && oct_quantizer_is(&proto->quantizer) &&
        !oct_dtype_is_high_precision(proto->dtype)) {
        status = oct_fail(err, OCTET_INVALID,
                          "a quantized proto stands for f32, bf16 or f16, not %s",
                          octet_dtype_name(proto->dtype));
    }
    return status;
}

bool octet_proto_equal(const octet_proto *a, const octet_proto *b) {
    return oct_fields_equal(oct_proto_fields, a, b);
}

uint64_t octet_proto_hash(const octet_proto *proto) {
    return oct_fields_hash(oct_proto_fields, proto);
}

bool oct_proto_extents(octet_extents *out, const octet_proto *proto) {
    int64_t m = 1;
    int64_t k = proto->rank > 0 ? proto->shape[proto->rank - 1] : 1;
    for (int i = 0; i + 1 < proto->rank; i++) {
        if (!oct_size_mul(&m, m, proto->shape[i])) {
            return false;
        }
    }
    *out = (octet_extents){m, k, 0};
    return true;
}

octet_status octet_proto_flatten(octet_proto *out, const octet_proto *proto, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_proto_check(proto, err);
    octet_extents extents;
    if (!status && !oct_proto_extents(&extents, proto)) {
        status = OCTET_INVALID; /* the check above has refused it with words */
    }
    if (status) {
        return status;
    }
    octet_proto flat = *proto;
    memset(flat.shape, 0, sizeof flat.shape);
    flat.rank = 2;
    flat.shape[0] = extents.m;
    flat.shape[1] = extents.k;
    *out = flat;
    return OCTET_OK;
}

octet_status octet_proto_with_usage(octet_proto *out, const octet_proto *proto, bool rowwise,
                                    bool columnwise, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_proto_check(proto, err);
    if (!status && !oct_quantizer_is(&proto->quantizer)) {
        status = oct_fail(err, OCTET_INVALID, "a proto without a quantizer has no usages");
    }
    if (status) {
        return status;
    }
    octet_proto changed = *proto;
    status = octet_quantizer_with_usage(&changed.quantizer, &proto->quantizer, rowwise,
                                        columnwise, err);
    if (!status) {
        *out = changed;
    }
    return status;
}

void oct_write_device(oct_writer *writer, const octet_device *device) {
    oct_write(writer, device->kind < 2 ? oct_device_words[device->kind] : "?");
    if (device->kind == OCTET_CUDA) {
        oct_write(writer, ":");
        oct_write_i64(writer, device->index);
        if (device->arch) {
            oct_write(writer, "/");
            oct_write_i64(writer, device->arch);
        }
    }
}

octet_status oct_device_parse_span(octet_device *out, oct_span value, octet_error *err) {
    oct_span rest = value;
    int64_t index = 0, arch = 0;
    int kind = oct_span_find(oct_span_take(&rest, ":/"), oct_device_words);
    bool good = kind >= 0;
    if (good && kind == OCTET_CUDA && oct_span_starts(rest, ":")) {
        (void)oct_span_next(&rest);
        good = oct_span_count(&index, oct_span_take(&rest, "/"), UINT8_MAX);
    }
    if (good && kind == OCTET_CUDA && oct_span_next(&rest) == '/') {
        good = oct_span_count(&arch, oct_span_take(&rest, ""), UINT16_MAX);
    }
    if (!good || rest.length) {
        return oct_fail_at(err, value.column,
                           "'%.*s' is not a device; allowed: cpu, cuda, "
                           "cuda:INDEX, cuda:INDEX/ARCH (cuda:0/90)",
                           OCT_SHOW(value));
    }
    *out = (octet_device){(uint8_t)kind, (uint8_t)index, (uint16_t)arch};
    return OCTET_OK;
}

octet_status octet_device_parse(octet_device *out, const char *text, octet_error *err) {
    oct_span span;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_span_of(&span, text, err);
    return status ? status : oct_device_parse_span(out, span, err);
}

size_t octet_device_print(char *text, size_t size, const octet_device *device) {
    oct_writer writer = oct_writer_start(text, size);
    if (!device) {
        return 0;
    }
    oct_write_device(&writer, device);
    return writer.length;
}
