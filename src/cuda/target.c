/* target.c - what planners ask of a GPU, and all rules about compute capabilities. */
#include "cuda/target.h"
#include "core/fail.h"

#include "core/size.h"
#include "cuda/lt.h"
#include "cuda/quantize.h"
#include "cuda/room.h"
#include "format/prologue.h"

/* ---- architectures --------------------------------------------------------------------- */

/* What tensor cores and cuBLASLt do with a scheme. */
typedef struct scheme_row {
    uint16_t from, to;  /* the first and last compute capability that multiplies it; 0: none, */
    uint16_t also_from; /* and those from here on; 0: no others */
    bool one_scale;     /* for all of a tensor */
    bool is_swizzled;   /* its scales are read in an order of their own */
    uint8_t outer_multiple; /* of outer indices; 0: its rows are never padded, since
                             * longer ones have other blocks */
} scheme_row;

/* A scheme without a row is emulated everywhere. MXFP8 has two ranges: the consumer parts
 * between them lack it in every layout. */
static const scheme_row schemes[OCTET_SCHEMES] = {
    [OCTET_FP8_TENSOR] = {89, UINT16_MAX, 0, true, false, 1},
    [OCTET_FP8_DELAYED] = {89, UINT16_MAX, 0, true, false, 1},
    [OCTET_FP8_BLOCK] = {90, 90, 0, false, false, OCT_LT_ROWS},
    [OCTET_MXFP8] = {100, 119, 130, false, true, 0},
    [OCTET_NVFP4] = {100, UINT16_MAX, 0, false, true, 0},
};

bool oct_arch_multiplies(int arch, octet_scheme scheme) {
    const scheme_row *row = &schemes[scheme];
    bool first = row->from && arch >= row->from && arch <= row->to;
    return first || (row->also_from && arch >= row->also_from);
}

bool oct_arch_reads_across(int arch) {
    return (arch >= 100 && arch < 120) || arch >= 130;
}

/* With a workspace the library schedules its tiles at run time, from a counter that it zeroes
 * before each product; without one it knows them before, and is no slower, as long as there are
 * tiles for all processors. That has been seen on compute capability 9.0. */
bool oct_arch_wants_workspace(int arch) {
    return arch != 90;
}

int oct_arch_without_blocks(int arch) {
    return arch == 90 ? 89 : arch;
}

bool oct_arch_overtakes(int arch) {
    return arch >= 90;
}

bool oct_arch_has_own(int arch) {
    return arch >= 90;
}

/* ---- products -------------------------------------------------------------------------- */

/* Plain operands have no bytes to decode. */
static bool native(const octet_device *device, octet_scheme scheme) {
    return scheme == OCTET_SCHEME_NONE || oct_arch_multiplies(device->arch, scheme);
}

/* MXFP8 becomes FP8 in blocks of 128 where that has a product and MXFP8 has none. */
static bool folds(const octet_device *device) {
    return native(device, OCTET_FP8_BLOCK) && !native(device, OCTET_MXFP8);
}

static octet_support supports(const octet_device *device, octet_scheme scheme) {
    return native(device, scheme)                   ? OCTET_SUPPORT_NATIVE
           : scheme == OCTET_MXFP8 && folds(device) ? OCTET_SUPPORT_FOLDED
                                                    : OCTET_SUPPORT_EMULATED;
}

static bool is_one_scale(const octet_quantizer *q) {
    return schemes[q->scheme].one_scale;
}

/* Per-tensor bytes multiply each other whoever chose their scales. The library has no product
 * of two squares of 128, of two E5M2 tensors, or with a factor for each row. */
static octet_support multiplies(const octet_device *device, const octet_quantizer *a,
                                const octet_quantizer *b) {
    bool squares = a->scheme == OCTET_FP8_BLOCK && a->block_rows > 1 && b->block_rows > 1;
    bool e5m2 = a->format == OCTET_E5M2 && b->format == OCTET_E5M2;
    bool alike = a->scheme == b->scheme || (is_one_scale(a) && is_one_scale(b));
    bool fits = alike && !squares && !e5m2 && !a->row_scaled && !b->row_scaled;
    return fits ? supports(device, (octet_scheme)a->scheme) : OCTET_SUPPORT_EMULATED;
}

/* An emulated or folded product makes copies, so it can read either direction. */
static bool reads_across(const octet_device *device, octet_scheme scheme) {
    bool any_layout = schemes[scheme].one_scale && oct_arch_reads_across(device->arch);
    return !native(device, scheme) || any_layout;
}

static bool reads_swizzled(const octet_device *device, octet_scheme scheme) {
    return schemes[scheme].is_swizzled && native(device, scheme);
}

static uint16_t outer_multiple(octet_scheme scheme) {
    return schemes[scheme].outer_multiple;
}

/* Schemes whose casts compute a prologue while they read. For the others a separate step writes
 * f(x). Current scaling would compute it twice; the separate step measures the amax as it
 * writes. */
static const bool casts_apply[OCTET_SCHEMES] = {
    [OCTET_FP8_DELAYED] = true,
    [OCTET_FP8_BLOCK] = true,
    [OCTET_MXFP8] = true,
};

/* Norms, whose elements take a few operations. A cast has few threads on a multiprocessor, and
 * an activation takes more time there than memory does: a kernel of its own has more. */
static bool applies(const octet_device *device, const octet_quantizer *q, uint8_t dtype,
                    uint8_t prologue) {
    (void)device;
    (void)dtype;
    return casts_apply[q->scheme] && oct_prologue_is_norm(prologue);
}

static bool scratch(int64_t *bytes, const octet_device *device,
                    const oct_target_product *product, int64_t workers) {
    oct_cuda_room room;
    (void)workers;
    if (product->invariant) { /* the own kernel, which finishes dst itself */
        *bytes = 0;
        return true;
    }
    return oct_cuda_room_of(&room, product) &&
           oct_size_add(bytes, room.rest_at, oct_cuda_rest_bytes(device, product));
}

/* An unknown architecture, 0, is checked when the plan is run. */
static octet_status check(const octet_device *device, octet_error *err) {
    unsigned arch = device->arch;
    return !arch || arch >= OCT_ARCH_LEAST
               ? OCTET_OK
               : oct_fail(err, OCTET_UNSUPPORTED,
                          "the device has compute capability %u.%u; Octet's kernels need "
                          "%d.%d or more",
                          arch / 10, arch % 10, OCT_ARCH_LEAST / 10, OCT_ARCH_LEAST % 10);
}

const oct_target oct_cuda_target = {
    .check = check,
    .supports = supports,
    .multiplies = multiplies,
    .reads_across = reads_across,
    .reads_swizzled = reads_swizzled,
    .outer_multiple = outer_multiple,
    .applies = applies,
    .scratch = scratch,
    .workers = 1, /* the GPU */
    .row_bytes = OCT_LT_ROW_BYTES,
    .amaxes = OCT_AMAX_SHARES,
    .summed_rows = OCT_TILE,
    .note_floats = 2, /* alpha and beta */
};
