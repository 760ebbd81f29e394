/* values.h - matrices of doubles, numbers to fill them, and how far a format may move them. */
#ifndef OCTET_RUN_VALUES_H
#define OCTET_RUN_VALUES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "octet.h"

/* Row-major, owned by whoever made it. */
typedef struct run_values {
    int64_t rows, cols;
    double *at;
} run_values;

static inline run_values run_values_make(int64_t rows, int64_t cols) {
    size_t count = (size_t)(rows * cols);
    run_values made = {rows, cols, calloc(count ? count : 1, sizeof(double))};
    if (!made.at) {
        exit(2);
    }
    return made;
}

static inline void run_values_free(run_values *values) {
    free(values->at);
    values->at = NULL;
}

static inline double *run_cell(const run_values *values, int64_t row, int64_t col) {
    return &values->at[row * values->cols + col];
}

/* The part of a whole that begins at (row, col). */
static inline run_values run_values_cut(const run_values *whole, int64_t row, int64_t col,
                                        int64_t rows, int64_t cols) {
    run_values made = run_values_make(rows, cols);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            *run_cell(&made, r, c) = *run_cell(whole, row + r, col + c);
        }
    }
    return made;
}

static inline double run_amax(const run_values *values) {
    double most = 0;
    for (int64_t i = 0; i < values->rows * values->cols; i++) {
        most = fabs(values->at[i]) > most ? fabs(values->at[i]) : most;
    }
    return most;
}

/* ---- numbers in a dtype ---------------------------------------------------------------- */

static inline double run_load(const void *at, octet_dtype dtype, int64_t index) {
    uint32_t bits = 0;
    size_t size = (size_t)octet_dtype_bits(dtype) / 8;
    memcpy(&bits, (const char *)at + (size_t)index * size, size);
    return (double)octet_decode(dtype, bits);
}

static inline void run_store(void *at, octet_dtype dtype, int64_t index, double value) {
    uint32_t bits = octet_encode(dtype, (float)value);
    size_t size = (size_t)octet_dtype_bits(dtype) / 8;
    memcpy((char *)at + (size_t)index * size, &bits, size);
}

/* Half a unit in the last place, relative to the number. */
static inline double run_unit(octet_dtype dtype) {
    return dtype == OCTET_F32 ? 0x1p-24 : dtype == OCTET_F16 ? 0x1p-11 : 0x1p-8;
}

/* Half the distance of numbers near zero. */
static inline double run_least(octet_dtype dtype) {
    return dtype == OCTET_F16 ? 0x1p-25 : 0x1p-134;
}

/* ---- random numbers, always the same ---------------------------------------------------- */

static inline uint64_t run_next(uint64_t *state) {
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Mostly about 1, some zeros of either sign, tiny numbers, powers of two and outliers. */
static inline double run_number(uint64_t *state) {
    uint64_t bits = run_next(state);
    double sign = bits & 1 ? -1.0 : 1.0;
    double part = (double)(bits >> 40) * 0x1p-24;
    switch (bits >> 1 & 31) {
    case 0:
        return sign * 0.0;
    case 1:
        return sign * part * 0x1p-14;
    case 2:
        return sign * (bits & 64 ? 0.5 : 2.0);
    case 3:
        return sign * (4.0 + part * 4.0);
    default:
        return sign * part;
    }
}

/* A matrix of such numbers that the dtype holds exactly. */
static inline run_values run_values_random(int64_t rows, int64_t cols, octet_dtype dtype,
                                           uint64_t *state) {
    run_values made = run_values_make(rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        float number = (float)run_number(state);
        made.at[i] = (double)octet_decode(dtype, octet_encode(dtype, number));
    }
    return made;
}

/* ---- how far quantizing moves a number -------------------------------------------------- */

/* The largest |number| of the block of `height` x `width` around (row, col). */
static inline double run_block(const run_values *values, int64_t row, int64_t col, int height,
                               int width) {
    double most = 0;
    int64_t top = row / height * height, left = col / width * width;
    for (int64_t r = top; r < top + height && r < values->rows; r++) {
        for (int64_t c = left; c < left + width && c < values->cols; c++) {
            most = fmax(most, fabs(*run_cell(values, r, c)));
        }
    }
    return most;
}

/* Half a step of E2M1 around x, where 6 is at most `most`, give or take the rounding of the
 * block's scale to E4M3, 2^-4. Steps are 1/2, 1 and 2 below 2, below 4 and above. */
static inline double run_half_step(double x, double most) {
    double unit = most / 6 * (1 + 0x1p-4), codes = unit > 0 ? x / unit * (1 + 0x1p-3) : 0;
    return unit * (codes < 2 ? 0.25 : codes < 4 ? 0.5 : 1);
}

/* The same where the unit is a power of two from most / 6 on, below most / 3: from 2 units on a
 * quarter of x at most, below that a quarter of the unit. */
static inline double run_half_step_up(double x, double most) {
    return fmax(x / 4, most / 12) * (1 + 0x1p-3);
}

/* The side of the square that blocks of E2M1 lie in. */
static inline int run_side(const octet_quantizer *q) {
    return q->scheme == OCTET_MXFP4 ? 32 : 16;
}

/* A number of a tensor, read in one direction. */
typedef struct run_spot {
    const run_values *values;
    int64_t row, col;
    octet_use use;
    double amax; /* of the tensor */
} run_spot;

/* Bounds |decode(quantize(x)) - x|.
 *
 * FP8: half a step is 2^-4 (E4M3) or 2^-3 (E5M2) of x, or below the smallest normal number half
 * a subnormal, 2^-10 or 2^-17, over the scale. Scales are at least 1/2 max/amax of the block (a
 * power of two below it, or delayed with headroom), hence amax 2^-10 / 224, amax 2^-17 / 28672.
 * E2M1: half a step of the block's unit, a whole one with stochastic rounding; four-over-six
 * may scale the block's amax to 4 instead of 6, and where that scale is beyond E4M3's largest
 * anything between: then x is at least 4 of the unit where half a step is all of it. Block
 * scales that are subnormal or zero lose less than 2^-16 of the tensor's amax. */
static inline double run_law(const octet_quantizer *q, const run_spot *at) {
    double x = fabs(*run_cell(at->values, at->row, at->col));
    if (q->format == OCTET_E2M1) {
        bool col = at->use == OCTET_USE_COL, square = q->block_rows > 1;
        int side = run_side(q);
        double most = run_block(at->values, at->row, at->col, col || square ? side : 1,
                                !col || square ? side : 1);
        double half =
            q->scheme == OCTET_MXFP4 ? run_half_step_up(x, most) : run_half_step(x, most);
        half = q->four_over_six ? fmax(half, run_half_step(x, most * 1.5)) : half;
        half = q->four_over_six && !q->max256 ? fmax(half, x / 4) : half;
        return (q->stochastic ? 2 : 1) * half + at->amax * 0x1p-16;
    }
    return q->format == OCTET_E4M3 ? x * 0x1p-4 + at->amax * 0x1p-10 / 224
                                   : x * 0x1p-3 + at->amax * 0x1p-17 / 28672;
}

/* The same whatever the direction, for bytes that are no longer there. */
static inline double run_law_either(const octet_quantizer *q, const run_spot *at) {
    double tile = run_block(at->values, at->row, at->col, run_side(q), run_side(q));
    double half = q->scheme == OCTET_MXFP4 ? 0.29 : q->four_over_six ? 0.27 : 0.18;
    return q->format == OCTET_E2M1 ? (q->stochastic ? 2 : 1) * half * tile + at->amax * 0x1p-16
                                   : run_law(q, at);
}

#endif
