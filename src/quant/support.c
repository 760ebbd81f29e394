/* support.c - which schemes a device multiplies as they are. */
#include "octet.h"

/* Compute capabilities, first to last, whose tensor cores take a scheme's bytes and scales
 * directly; none: by emulation. Two ranges: the consumer parts between them lack MXFP8 in every
 * layout. */
typedef struct native_range {
    uint16_t from, to, also_from;
} native_range;

static const native_range cuda_native[OCTET_SCHEMES] = {
    [OCTET_FP8_TENSOR] = {89, UINT16_MAX, UINT16_MAX},
    [OCTET_FP8_DELAYED] = {89, UINT16_MAX, UINT16_MAX},
    [OCTET_FP8_BLOCK] = {90, 90, UINT16_MAX},
    [OCTET_MXFP8] = {100, 119, 130},
    [OCTET_NVFP4] = {100, UINT16_MAX, UINT16_MAX},
};

bool octet_scheme_native(octet_scheme scheme, const octet_device *device) {
    if (device->kind == OCTET_CPU || (unsigned)scheme >= OCTET_SCHEMES ||
        scheme == OCTET_SCHEME_NONE) {
        return true; /* the CPU's GEMM decodes while it packs, whatever the scheme */
    }
    const native_range *range = &cuda_native[scheme];
    return range->from && ((device->arch >= range->from && device->arch <= range->to) ||
                           device->arch >= range->also_from);
}
