/* target.c - what planners ask of the CPU: its products decode while they pack.
 *
 * So they take every scheme, in either direction, beside any other, in sizes as they come. */
#include "cpu/target.h"

#include "cpu/cpu.h"

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

/* A lane for each worker. */
static oct_scratch scratch(const octet_device *device, const oct_target_product *product,
                           uint32_t threads) {
    (void)device;
    (void)product;
    return (oct_scratch){threads, OCT_CPU_LANE_BYTES};
}

const oct_target oct_cpu_target = {
    .supports = supports,
    .multiplies = multiplies,
    .reads_across = any_scheme,
    .reads_swizzled = no_scheme,
    .lines = any_size,
    .scratch = scratch,
    .row_bytes = 1,
    .amaxes = 1,
};
