/* model.h - quantization by its definition, element by element; shares nothing with src/cpu.
 *
 * Slow and literal. Codes come from octet_encode and octet_decode, which have tests of their
 * own; everything else is written out from the format's rules. */
#ifndef OCTET_TEST_CPU_MODEL_H
#define OCTET_TEST_CPU_MODEL_H

#include "tensors.h"

/* Live state of a quantize. */
typedef struct model_live {
    float scale; /* delayed */
    float amax;  /* current */
    uint64_t seed;
    uint32_t stream;
} model_live;

/* max |x|, NaN ignored. */
float model_amax(const cpu_tensor *x);
/* The amax parts that out has. */
void model_amax_parts(cpu_tensor *out, const cpu_tensor *x);
/* Every other part; reads the amax parts. */
void model_quantize(cpu_tensor *out, const cpu_tensor *x, const model_live *live);
/* out(row, col) from the bytes of one direction, unrounded fp32. */
float *model_dequantize(const cpu_tensor *q, octet_use use);
/* The transform of 16 numbers and its inverse, before rounding. */
void model_hadamard(float out[16], const float x[16], bool is_signed);
void model_hadamard_inverse(float out[16], const float y[16], bool is_signed);

/* Where things lie, by the shapes and index formulas of the layout. */
size_t model_scale_index(const oct_matrix *m, octet_use use, int64_t line, int64_t block);
size_t model_code_index(const oct_matrix *m, octet_use use, int64_t line, int64_t k);
uint32_t model_code(const oct_matrix *m, octet_use use, int64_t line, int64_t k);

#endif
