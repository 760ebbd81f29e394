/* numbers.h - matrices in double precision, and how far a format may move their numbers. */
#ifndef OCT_CLI_NUMBERS_H
#define OCT_CLI_NUMBERS_H

#include "cli.h"

/* Row-major; made by oct_cli_matrix_make or _random, given back by oct_cli_matrix_drop. */
typedef struct oct_cli_matrix {
    int64_t rows, cols;
    double *at;
} oct_cli_matrix;

oct_cli_matrix oct_cli_matrix_make(int64_t rows, int64_t cols);
/* About 1, some outliers; numbers that the dtype holds exactly, always the same for a seed. */
oct_cli_matrix oct_cli_matrix_random(int64_t rows, int64_t cols, octet_dtype dtype,
                                     uint64_t seed);
void oct_cli_matrix_drop(oct_cli_matrix *matrix);
double oct_cli_matrix_amax(const oct_cli_matrix *matrix);

double oct_cli_load(const void *at, octet_dtype dtype, int64_t index);
void oct_cli_store(void *at, octet_dtype dtype, int64_t index, double value);
/* Half a unit in the last place, relative to a number, and half the least subnormal. */
double oct_cli_unit_of(octet_dtype dtype);
double oct_cli_least_of(octet_dtype dtype);

/* Bounds |decode(quantize(x)) - x| for each number of a matrix, by the bytes of one direction
 * or, for OCTET_USE_VALUES, of either. amax is the tensor's. */
oct_cli_matrix oct_cli_deviation(const octet_quantizer *quantizer, const oct_cli_matrix *values,
                                 octet_use use, double amax);
/* The Hadamard transform of each 16 rows; missing rows count as 0. */
oct_cli_matrix oct_cli_transformed(const oct_cli_matrix *values, uint8_t hadamard);

#endif
