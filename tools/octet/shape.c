/* shape.c - lengths joined by x: 300x129, 4x128x64. */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

_Static_assert(OCTET_MAX_RANK == 16, "the message says how many axes there may be");

static int refuse(octet_error *err, size_t column, const char *rule) {
    err->status = OCTET_INVALID;
    err->column = (int32_t)(column < INT32_MAX ? column : INT32_MAX);
    (void)snprintf(err->text, sizeof(err->text), "column %" PRId32 ": %s", err->column, rule);
    return -1;
}

/* One length at *at, which moves past it. Returns 0, or -1 and the reason. */
static int read_length(int64_t *out, const char *text, size_t *at, octet_error *err) {
    size_t start = *at;
    int64_t length = 0;
    for (; text[*at] >= '0' && text[*at] <= '9'; ++*at) {
        int digit = text[*at] - '0';
        if (length > (INT64_MAX - digit) / 10) {
            return refuse(err, start + 1, "a length does not fit 64 bits");
        }
        length = 10 * length + digit;
    }
    *out = length;
    return *at > start ? 0 : refuse(err, start + 1, "a length is missing: 300x129, 4x128x64");
}

int oct_cli_read_shape(int64_t shape[OCTET_MAX_RANK], const char *text, octet_error *err) {
    size_t at = 0;
    if (strcmp(text, "scalar") == 0) {
        return 0;
    }
    for (int rank = 1;; rank++) {
        if (rank > OCTET_MAX_RANK) {
            return refuse(err, at + 1, "a shape has at most 16 axes");
        }
        if (read_length(&shape[rank - 1], text, &at, err) != 0) {
            return -1;
        }
        if (text[at] == '\0') {
            return rank;
        }
        if (text[at++] != 'x') {
            return refuse(err, at, "lengths are decimal and joined by x: 300x129, 4x128x64");
        }
    }
}
