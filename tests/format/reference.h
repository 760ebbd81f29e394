/* reference.h - the formats from their definitions, in double; shares nothing with src/format.
 *
 * A code's value is computed from its fields, and a number is rounded by looking for it among
 * the points halfway between neighbouring values. Everything here is exact in double.
 */
#ifndef OCTET_TEST_FORMAT_REFERENCE_H
#define OCTET_TEST_FORMAT_REFERENCE_H

#include "octet.h"
#include "test.h"

#include <math.h>

/* A sign-exponent-mantissa format. Codes are named without their sign bit. */
typedef struct ref_format {
    const char *name;
    octet_dtype dtype;
    int exponent_bits, mantissa_bits, bias;
    uint32_t last; /* the largest code that rounding gives: the maximum, or Inf in IEEE's */
    uint32_t nan;  /* every NaN becomes this code; 0: it keeps sign and payload, as in IEEE's */
} ref_format;

static const ref_format ref_formats[] = {
    {"bf16", OCTET_BF16, 8, 7, 127, 0x7f80, 0}, {"f16", OCTET_F16, 5, 10, 15, 0x7c00, 0},
    {"e4m3", OCTET_E4M3, 4, 3, 7, 0x7e, 0x7f},  {"e5m2", OCTET_E5M2, 5, 2, 15, 0x7b, 0x7f},
    {"e2m1", OCTET_E2M1, 2, 1, 1, 0x7, 0x7},
};

#define REF_FORMATS ((int)(sizeof ref_formats / sizeof ref_formats[0]))
#define REF_LAST 0x7f80

/* halfway[c] lies between the values of codes c and c + 1, for c < last. */
typedef struct ref_table {
    const ref_format *format;
    double halfway[REF_LAST];
} ref_table;

static inline float ref_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What is left of a float that a function has returned: all of it, but on 32-bit x86, where
 * floats are returned through the old unit and a signalling NaN comes out quiet. */
static inline float ref_returned(float x) {
#if defined(__i386__)
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffu) > 0x7f800000u ? ref_float(bits | 0x00400000u) : x;
#else
    return x;
#endif
}

static inline uint32_t ref_sign(const ref_format *format) {
    return 1u << (format->exponent_bits + format->mantissa_bits);
}

/* The value of a code by its definition. An IEEE format's Inf counts as the power of two that
 * would follow the maximum, for that is where overflow is rounded from. */
static inline double ref_value(const ref_format *format, uint32_t code) {
    int exponent = (int)(code >> format->mantissa_bits);
    int mantissa = (int)(code & ((1u << format->mantissa_bits) - 1u));
    int ones = 1 << format->mantissa_bits;
    int lowest = 1 - format->bias - format->mantissa_bits;
    return exponent ? ldexp(ones + mantissa, lowest + exponent - 1) : ldexp(mantissa, lowest);
}

static inline void ref_fill(ref_table *table, const ref_format *format) {
    table->format = format;
    for (uint32_t code = 0; code < format->last; code++) {
        table->halfway[code] = (ref_value(format, code) + ref_value(format, code + 1)) / 2;
    }
}

/* Whether a number is nearer to code + 1, or to a later code, than to `code`; ties to even. */
static inline bool ref_passes(const ref_table *table, uint32_t code, double number) {
    return number > table->halfway[code] || (number == table->halfway[code] && code % 2 == 1);
}

/* The code nearest to a number that is not negative. */
static inline uint32_t ref_nearest(const ref_table *table, double number) {
    uint32_t low = 0, high = table->format->last;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (ref_passes(table, middle, number)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* What the NaN with encoding `bits` becomes. */
static inline uint32_t ref_nan(const ref_format *format, uint32_t bits) {
    uint32_t payload = bits % (1u << 23) >> (23 - format->mantissa_bits);
    uint32_t quiet = 1u << (format->mantissa_bits - 1);
    uint32_t sign = bits >> 31 ? ref_sign(format) : 0;
    return format->nan ? format->nan : format->last | quiet | payload | sign;
}

static inline uint32_t ref_encode(const ref_table *table, uint32_t bits) {
    float value = ref_float(bits);
    if (isnan(value)) {
        return ref_nan(table->format, bits);
    }
    uint32_t code = ref_nearest(table, fabs((double)value));
    return bits >> 31 ? code | ref_sign(table->format) : code;
}

/* ceil(log2 v) + 127, limited to the codes: v is f 2^k with 0.5 <= f < 1. */
static inline uint32_t ref_e8m0(uint32_t bits) {
    double number = (double)ref_float(bits);
    int exponent;
    if (isnan(number)) {
        return 255;
    }
    if (isinf(number) || number <= 0) {
        return number > 0 ? 254 : 0;
    }
    int up = frexp(number, &exponent) == 0.5 ? exponent - 1 : exponent;
    return up < -127 ? 0 : up > 127 ? 254 : (uint32_t)(up + 127);
}

/* E2M1 by stochastic rounding. A number a between the neighbours `low` and `high` becomes high
 * if the float nearest to a + random / 256 (high - low) reaches it. That is so from half a unit
 * of last place below high on: high is even, so a sum halfway is rounded up to it. Which half
 * unit: of the floats below high. */
static inline uint32_t ref_stochastic(uint32_t bits, uint8_t random) {
    static const double grid[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double number = fabs((double)ref_float(bits));
    uint32_t code = 0, sign = bits >> 31 ? 8 : 0;
    if (isnan(number)) {
        return 7;
    }
    while (code < 7 && number >= grid[code + 1]) {
        code++;
    }
    if (code < 7) {
        double low = grid[code], high = grid[code + 1];
        int exponent;
        int below = frexp(high, &exponent) == 0.5 ? exponent - 1 : exponent;
        double reach = high - ldexp(1, below - 25) - random * (high - low) / 256;
        code += number >= reach;
    }
    return code | sign;
}

#endif
