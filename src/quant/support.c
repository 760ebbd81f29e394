/* support.c - how devices multiply each scheme, and OCTET_MXFP8, which forbids to fold. */
#include "quant/support.h"

#include <string.h>

#include "core/environment.h"
#include "core/fail.h"
#include "core/target.h"

octet_status oct_exact_asked(bool *out, octet_error *err) {
    const char *value = oct_environment("OCTET_MXFP8");
    *out = value && strcmp(value, "exact") == 0;
    if (!value || !*value || *out || strcmp(value, "folded") == 0) {
        return OCTET_OK;
    }
    return oct_fail(err, OCTET_INVALID,
                    "OCTET_MXFP8 is '%.32s'; it is exact, or folded, or not set", value);
}

octet_support octet_scheme_support(octet_scheme scheme, const octet_device *device) {
    if ((unsigned)scheme >= OCTET_SCHEMES) {
        return OCTET_SUPPORT_NATIVE;
    }
    octet_support support = oct_target_of(device)->supports(device, scheme);
    bool exact = false;
    if (support == OCTET_SUPPORT_FOLDED) {
        (void)oct_exact_asked(&exact, NULL);
    }
    return exact ? OCTET_SUPPORT_EMULATED : support;
}

const char *octet_support_name(octet_support support) {
    static const char *const names[] = {"emulated", "native", "folded"};
    return (unsigned)support < 3 ? names[support] : "?";
}

bool octet_scheme_native(octet_scheme scheme, const octet_device *device) {
    return octet_scheme_support(scheme, device) == OCTET_SUPPORT_NATIVE;
}
