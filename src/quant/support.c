/* support.c - which schemes a device multiplies as they are. */
#include "core/target.h"

bool octet_scheme_native(octet_scheme scheme, const octet_device *device) {
    return (unsigned)scheme >= OCTET_SCHEMES || oct_target_of(device)->native(device, scheme);
}
