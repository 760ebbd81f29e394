/* numbers.c - matrices in double precision, and how far a format may move their numbers. */
#include "numbers.h"

#include <stdlib.h>
#include <string.h>

#define TILE 16 /* rows that the transform takes */

static double larger(double most, double x) {
    double size = x < 0 ? -x : x;
    return size > most ? size : most;
}

oct_cli_matrix oct_cli_matrix_make(int64_t rows, int64_t cols) {
    uint64_t most = SIZE_MAX / sizeof(double);
    bool fits = cols == 0 || (uint64_t)rows <= most / (uint64_t)cols;
    size_t bytes = fits ? (size_t)rows * (size_t)cols * sizeof(double) : SIZE_MAX;
    oct_cli_matrix made = {rows, cols, oct_cli_memory(NULL, bytes)};
    memset(made.at, 0, bytes);
    return made;
}

void oct_cli_matrix_drop(oct_cli_matrix *matrix) {
    free(matrix->at);
    matrix->at = NULL;
}

double oct_cli_matrix_amax(const oct_cli_matrix *matrix) {
    double most = 0;
    for (int64_t i = 0; i < matrix->rows * matrix->cols; i++) {
        most = larger(most, matrix->at[i]);
    }
    return most;
}

double oct_cli_load(const void *at, octet_dtype dtype, int64_t index) {
    size_t size = (size_t)octet_dtype_bits(dtype) / 8;
    uint32_t bits = 0;
    memcpy(&bits, (const char *)at + (size_t)index * size, size);
    return (double)octet_decode(dtype, bits);
}

void oct_cli_store(void *at, octet_dtype dtype, int64_t index, double value) {
    size_t size = (size_t)octet_dtype_bits(dtype) / 8;
    uint32_t bits = octet_encode(dtype, (float)value);
    memcpy((char *)at + (size_t)index * size, &bits, size);
}

double oct_cli_unit_of(octet_dtype dtype) {
    return dtype == OCTET_F32 ? 0x1p-24 : dtype == OCTET_F16 ? 0x1p-11 : 0x1p-8;
}

double oct_cli_least_of(octet_dtype dtype) {
    return dtype == OCTET_F16 ? 0x1p-25 : 0x1p-134;
}

static uint64_t next_random(uint64_t *counter) {
    uint64_t x = *counter += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

oct_cli_matrix oct_cli_matrix_random(int64_t rows, int64_t cols, octet_dtype dtype,
                                     uint64_t seed) {
    oct_cli_matrix made = oct_cli_matrix_make(rows, cols);
    uint64_t counter = seed;
    for (int64_t i = 0; i < rows * cols; i++) {
        uint64_t bits = next_random(&counter);
        /* The sum of four 12-bit numbers is bell-shaped; one in 64 is an outlier. */
        int64_t sum = (int64_t)((bits & 4095) + (bits >> 12 & 4095) + (bits >> 24 & 4095) +
                                (bits >> 36 & 4095));
        double value = (double)(sum - 8190) / 4096.0 * (bits >> 58 ? 1 : 8);
        made.at[i] = (double)octet_decode(dtype, octet_encode(dtype, (float)value));
    }
    return made;
}

/* The largest |number| of the block of `height` x `width` at (top, left). */
static double block_amax(const oct_cli_matrix *values, int64_t top, int64_t left, int height,
                         int width) {
    double most = 0;
    for (int64_t r = top; r < top + height && r < values->rows; r++) {
        for (int64_t c = left; c < left + width && c < values->cols; c++) {
            most = larger(most, values->at[r * values->cols + c]);
        }
    }
    return most;
}

/* Half a step around x where the code 6 is at most `most`, and 2^-4 more or less as the block's
 * scale was rounded. Steps are 1/2 below 2, 1 below 4, then 2. */
static double half_step(double x, double most) {
    double unit = most / 6 * (1 + 0x1p-4);
    double code = unit > 0 ? larger(0, x) / unit * (1 + 0x1p-3) : 0;
    return unit * (code < 2 ? 0.25 : code < 4 ? 0.5 : 1);
}

/* The same where the unit is a power of two from most / 6 on, below most / 3: a quarter of x at
 * most from 2 units on, below that a quarter of the unit. */
static double half_step_up(double x, double most) {
    return larger(larger(0, x) / 4, most / 12) * (1 + 0x1p-3);
}

/* E2M1: half a step of the block's unit, a whole one where rounding is stochastic;
 * four-over-six may scale the block's amax to 4. Block scales that are subnormal lose less than
 * 2^-16 of the tensor's amax. Which block it was is not known for OCTET_USE_VALUES: then half
 * the widest step of the square around. */
static double move_e2m1(const octet_quantizer *q, const oct_cli_matrix *values, octet_use use,
                        int64_t index) {
    bool square = q->block_rows > 1 || use == OCTET_USE_VALUES;
    int height = square || use == OCTET_USE_COL ? q->block_cols : 1;
    int width = square || use != OCTET_USE_COL ? q->block_cols : 1;
    int64_t r = index / values->cols, c = index % values->cols;
    double most = block_amax(values, r / height * height, c / width * width, height, width);
    double x = use == OCTET_USE_VALUES ? most : values->at[index];
    double half = q->scheme == OCTET_MXFP4 ? half_step_up(x, most) : half_step(x, most);
    if (q->four_over_six) {
        half = larger(half, half_step(x, 1.5 * most));
    }
    return q->stochastic ? 2 * half : half;
}

/* FP8: half a step is 2^-4 (E4M3) or 2^-3 (E5M2) of the number, and below the smallest normal
 * half a subnormal over the scale, which is at least half of maximum / amax. */
oct_cli_matrix oct_cli_deviation(const octet_quantizer *quantizer, const oct_cli_matrix *values,
                                 octet_use use, double amax) {
    oct_cli_matrix deviation = oct_cli_matrix_make(values->rows, values->cols);
    bool e4m3 = quantizer->format == OCTET_E4M3;
    double step = e4m3 ? 0x1p-4 : 0x1p-3;
    double least = e4m3 ? 0x1p-10 / 224 : 0x1p-17 / 28672;
    for (int64_t i = 0; i < values->rows * values->cols; i++) {
        deviation.at[i] = quantizer->format == OCTET_E2M1
                              ? move_e2m1(quantizer, values, use, i) + amax * 0x1p-16
                              : step * larger(0, values->at[i]) + least * amax;
    }
    return deviation;
}

oct_cli_matrix oct_cli_transformed(const oct_cli_matrix *values, uint8_t hadamard) {
    static const uint32_t masks[] = {0, 0xD7E8, 0};
    oct_cli_matrix made =
        oct_cli_matrix_make((values->rows + TILE - 1) / TILE * TILE, values->cols);
    for (int64_t i = 0; i < made.rows * TILE; i++) {
        int64_t to = i / TILE, from = to / TILE * TILE + i % TILE;
        uint32_t both = (uint32_t)(i % TILE & to % TILE);
        uint32_t minus = masks[hadamard] >> (i % TILE) & 1;
        for (; both != 0; both &= both - 1) {
            minus ^= 1;
        }
        for (int64_t c = 0; c < values->cols && from < values->rows; c++) {
            double quarter = 0.25 * values->at[from * values->cols + c];
            made.at[to * values->cols + c] += minus ? -quarter : quarter;
        }
    }
    return made;
}
