/* fail.c - a status and the sentence that goes with it. */
#include "core/fail.h"

#include <stdarg.h>
#include <stdio.h>

static void fill(octet_error *err, octet_status status, int column, const char *format,
                 va_list args) {
    err->status = status;
    err->column = column;
    int start = 0;
    if (column > 0) {
        start = snprintf(err->text, sizeof err->text, "column %d: ", column);
    }
    (void)vsnprintf(err->text + start, sizeof err->text - (size_t)start, format, args);
}

octet_status oct_fail(octet_error *err, octet_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        fill(err, status, 0, format, args);
        va_end(args);
    }
    return status;
}

octet_status oct_fail_at(octet_error *err, int column, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        fill(err, OCTET_INVALID, column, format, args);
        va_end(args);
    }
    return OCTET_INVALID;
}

octet_status oct_need(const void *pointer, const char *name, octet_error *err) {
    return pointer ? OCTET_OK : oct_fail(err, OCTET_INVALID, "%s is NULL", name);
}

octet_status oct_need_size(uint32_t size, size_t expected, const char *name, octet_error *err) {
    if (size == expected) {
        return OCTET_OK;
    }
    return oct_fail(err, OCTET_INVALID,
                    "%s.size is %lu but this library's %s has %zu bytes (octet %s): start from "
                    "its initializer and build with the header of this library",
                    name, (unsigned long)size, name, expected, octet_version());
}

octet_status oct_need_zero(const void *bytes, size_t count, const char *name,
                           octet_error *err) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++) {
        if (at[i]) {
            return oct_fail(err, OCTET_INVALID,
                            "byte %zu of %s is %u; reserved bytes are 0: start from the "
                            "struct's initializer",
                            i, name, at[i]);
        }
    }
    return OCTET_OK;
}

const char *octet_status_name(octet_status status) {
    static const char *const names[] = {"ok", "invalid", "unsupported", "no memory", "device"};
    size_t at = (size_t)status;
    return at < sizeof names / sizeof names[0] ? names[at] : "?";
}
