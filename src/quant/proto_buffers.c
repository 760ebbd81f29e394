/* proto_buffers.c - the buffers of a proto with their numbers. */
#include <string.h>

#include "core/fail.h"
#include "core/size.h"
#include "quant/layout.h"
#include "quant/proto.h"
#include "quant/quantizer.h"

int octet_proto_buffer_count(const octet_proto *proto) {
    if (octet_proto_check(proto, NULL)) {
        return -1;
    }
    if (!oct_quantizer_is(&proto->quantizer)) {
        return 1;
    }
    octet_layout layout;
    oct_layout_fill(&layout, &proto->quantizer);
    return layout.count;
}

/* A leading axis stands for all of them, which may be none. */
static bool append_dim(octet_proto *out, const octet_dim *dim, const octet_proto *whole) {
    if (dim->axis == OCTET_AXIS_LEADING) {
        for (int i = 0; i + 1 < whole->rank; i++) {
            out->shape[out->rank++] = whole->shape[i];
        }
        return true;
    }
    octet_extents extents;
    return oct_proto_extents(&extents, whole) &&
           oct_dim_number(&out->shape[out->rank++], dim, &extents);
}

octet_status octet_proto_buffer(octet_proto *out, const octet_proto *proto, int index,
                                octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_proto_check(proto, err);
    int count = status ? 0 : octet_proto_buffer_count(proto);
    if (!status && (index < 0 || index >= count)) {
        status = oct_fail(err, OCTET_INVALID, "buffer %d of a proto that has %d", index, count);
    }
    if (status) {
        return status;
    }
    octet_proto buffer = {
        .size = sizeof buffer, .dtype = proto->dtype, .device = proto->device};
    if (!oct_quantizer_is(&proto->quantizer)) {
        buffer.rank = proto->rank;
        memcpy(buffer.shape, proto->shape, sizeof buffer.shape);
        *out = buffer;
        return OCTET_OK;
    }
    octet_layout layout;
    oct_layout_fill(&layout, &proto->quantizer);
    const octet_buffer *row = &layout.buffers[index];
    buffer.dtype = row->dtype;
    for (int i = 0; i < row->ndim; i++) {
        if (!append_dim(&buffer, &row->dims[i], proto)) {
            return oct_fail(err, OCTET_INVALID, "dimension %d of %s exceeds 64 bits", i,
                            row->name);
        }
    }
    *out = buffer;
    return OCTET_OK;
}

const char *octet_proto_buffer_name(const octet_proto *proto, int index) {
    if (index < 0 || index >= octet_proto_buffer_count(proto)) {
        return NULL;
    }
    if (!oct_quantizer_is(&proto->quantizer)) {
        return "";
    }
    octet_layout layout;
    oct_layout_fill(&layout, &proto->quantizer);
    return layout.buffers[index].name;
}

/* Rows of elements that are less than a byte end with one. */
static bool buffer_bytes(int64_t *out, const octet_proto *buffer) {
    int bits = octet_dtype_bits((octet_dtype)buffer->dtype);
    *out = bits < 8 ? 1 : bits / 8;
    for (int axis = 0; axis < buffer->rank; axis++) {
        bool packed = bits < 8 && axis + 1 == buffer->rank;
        int64_t size = buffer->shape[axis];
        if (!oct_size_mul(out, *out, packed ? oct_size_ceil_div(size, 8 / bits) : size)) {
            return false;
        }
    }
    return true;
}

octet_status octet_proto_bytes(int64_t *out, const octet_proto *proto, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_proto_check(proto, err);
    int64_t total = 0;
    for (int i = 0; !status && i < octet_proto_buffer_count(proto); i++) {
        octet_proto buffer;
        status = octet_proto_buffer(&buffer, proto, i, err);
        int64_t bytes;
        if (!status && !(buffer_bytes(&bytes, &buffer) && oct_size_add(&total, total, bytes))) {
            status = oct_fail(err, OCTET_INVALID, "the bytes of a proto exceed 64 bits");
        }
    }
    if (!status) {
        *out = total;
    }
    return status;
}
