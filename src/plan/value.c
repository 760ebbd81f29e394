/* value.c - a plan as a value: equality and hash. */
#include <string.h>

#include "core/fields.h"

/* Plans have no padding, and what they do not use is zero. */
bool octet_plan_equal(const octet_plan *a, const octet_plan *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

uint64_t octet_plan_hash(const octet_plan *plan) {
    return oct_hash_bytes(plan, sizeof *plan);
}
