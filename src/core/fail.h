/* fail.h - a status and the sentence that goes with it. */
#ifndef OCT_CORE_FAIL_H
#define OCT_CORE_FAIL_H

#include "octet.h"

#if defined(__GNUC__)
#define OCT_FORMAT(at) __attribute__((format(printf, at, at + 1)))
#else
#define OCT_FORMAT(at)
#endif

/* Fills *err (which may be NULL) and returns status. */
octet_status oct_fail(octet_error *err, octet_status status, const char *format, ...)
    OCT_FORMAT(3);

/* A caller's mistake at a 1-based column of a text. */
octet_status oct_fail_at(octet_error *err, int column, const char *format, ...) OCT_FORMAT(3);

/* OCTET_INVALID with "NAME is NULL" when pointer is NULL. */
octet_status oct_need(const void *pointer, const char *name, octet_error *err);

/* OCTET_INVALID unless a struct's size is that of this library's header. */
/* Bytes that have no meaning yet: a later library may give them one, so they must be 0. */
octet_status oct_need_zero(const void *bytes, size_t count, const char *name, octet_error *err);
octet_status oct_need_size(uint32_t size, size_t expected, const char *name, octet_error *err);

#endif
