/* proto.h - the proto's field table and the pieces other layers build on. */
#ifndef OCT_QUANT_PROTO_H
#define OCT_QUANT_PROTO_H

#include "core/fields.h"

extern const octet_field oct_proto_fields[];
/* Without requires_grad: of its arguments a call says itself who wants a gradient. */
extern const octet_field oct_argument_fields[];
extern const octet_field oct_device_fields[];
extern const char *const oct_device_words[3];

/* M and K of the proto flattened; false when the product overflows. n is left 0. */
bool oct_proto_extents(octet_extents *out, const octet_proto *proto);

/* "(8, 128)": a shape for people. */
void oct_write_shape(oct_writer *writer, int rank, const int64_t *shape);
/* Whether it is the one that texts leave out. */
static inline bool oct_device_is_default(const octet_device *device) {
    return device->kind == OCTET_CPU;
}
/* "cpu" or "cuda:0/90" (index/arch; the arch when it is known). */
void oct_write_device(oct_writer *writer, const octet_device *device);
/* Also "cuda" and "cuda:1". */
octet_status oct_device_parse_span(octet_device *out, oct_span value, octet_error *err);

#endif
