/* size.h - arithmetic on counts that says when it overflows. Operands are not negative. */
#ifndef OCT_CORE_SIZE_H
#define OCT_CORE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

static inline bool oct_size_mul(int64_t *out, int64_t a, int64_t b) {
#if defined(__GNUC__)
    return !__builtin_mul_overflow(a, b, out);
#else
    if (a != 0 && b > INT64_MAX / a) {
        return false;
    }
    *out = a * b;
    return true;
#endif
}

static inline bool oct_size_add(int64_t *out, int64_t a, int64_t b) {
    if (b > INT64_MAX - a) {
        return false;
    }
    *out = a + b;
    return true;
}

static inline int64_t oct_size_ceil_div(int64_t n, int64_t by) {
    return by == 1 ? n : n / by + (n % by != 0); /* a division is worth a comparison */
}

/* The least s with 2^s >= n. */
static inline uint8_t oct_log2(int64_t n) {
    uint8_t shift = 0;
    while ((int64_t)1 << shift < n) {
        shift++;
    }
    return shift;
}

/* Of sizes that a plan has found to fit. */
static inline int64_t oct_round_up(int64_t n, int64_t align) {
    return oct_size_ceil_div(n, align) * align;
}

/* n rounded up to a multiple of align; false when that does not fit. */
static inline bool oct_size_round_up(int64_t *out, int64_t n, int64_t align) {
    return oct_size_mul(out, oct_size_ceil_div(n, align), align);
}

#endif
