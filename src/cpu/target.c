/* target.c - what planners ask of the CPU: its products decode while they pack.
 *
 * So they take every scheme, in either direction, beside any other, in sizes as they come. */
#include "cpu/target.h"

#include "cpu/cpu.h"
#include "format/prologue.h"

static octet_support supports(const octet_device *device, octet_scheme scheme) {
    (void)device;
    (void)scheme;
    return OCTET_SUPPORT_NATIVE;
}

static bool any_scheme(const octet_device *device, octet_scheme scheme) {
    (void)device;
    (void)scheme;
    return true;
}

static octet_support multiplies(const octet_device *device, const octet_quantizer *a,
                                const octet_quantizer *b) {
    (void)device;
    (void)a;
    (void)b;
    return OCTET_SUPPORT_NATIVE;
}

static bool no_scheme(const octet_device *device, octet_scheme scheme) {
    (void)device;
    (void)scheme;
    return false;
}

static uint16_t any_size(octet_scheme scheme) {
    (void)scheme;
    return 0;
}

/* The scheme's cast computes some elements at a time, into the cache. Current scaling would
 * compute all of them twice, first for the amax; f(x) is written once instead. Gated functions
 * read two places of a row: in tiles that have columns' blocks, too, these are short, and f(x)
 * is written faster than it is computed so. A tile of FP8 blocks has 128 x 128 elements, which
 * a stack has room for where they have 16 bits. Four over six reads small squares, each
 * direction for itself. bench/prologue.c has the figures. */
static bool applies(const octet_device *device, const octet_quantizer *q, uint8_t dtype,
                    uint8_t prologue) {
    (void)device;
    bool short_rows = oct_prologue_is_gated(prologue) && q->columnwise && q->block_cols;
    return q->scheme != OCTET_FP8_TENSOR && !q->four_over_six && !short_rows &&
           !(q->scheme == OCTET_FP8_BLOCK && dtype == OCTET_F32);
}

/* A lane for each worker. */
static bool scratch(int64_t *bytes, const octet_device *device,
                    const oct_target_product *product, int64_t workers) {
    (void)device;
    (void)product;
    *bytes = workers * OCT_CPU_LANE_BYTES;
    return true;
}

const oct_target oct_cpu_target = {
    .supports = supports,
    .multiplies = multiplies,
    .reads_across = any_scheme,
    .reads_swizzled = no_scheme,
    .outer_multiple = any_size,
    .applies = applies,
    .scratch = scratch,
    .workers = (uint16_t)(((int64_t)2 << 30) / OCT_CPU_LANE_BYTES), /* 2 GiB of lanes */
    .row_bytes = 1,
    .amaxes = 1,
};
