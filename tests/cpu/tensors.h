/* tensors.h - tensors for tests: buffers by the public layout, filled with dirt and guarded. */
#ifndef OCTET_TEST_CPU_TENSORS_H
#define OCTET_TEST_CPU_TENSORS_H

#include "cpu/cpu.h"

/* A matrix whose parts are its own memory. Dirt shows what was not written, guard bytes behind
 * each part what should not have been. */
typedef struct cpu_tensor {
    oct_matrix m;
    size_t bytes[OCTET_PARTS];
} cpu_tensor;

/* Plain, with rows `stride` apart. */
cpu_tensor cpu_tensor_plain(octet_dtype dtype, int64_t rows, int64_t cols, int64_t stride);
/* The buffers of a quantizer's layout for `rows` x `cols`; `copies` of each, one after the
 * other. */
cpu_tensor cpu_tensor_quantized(const octet_quantizer *quantizer, octet_dtype dtype,
                                int64_t rows, int64_t cols, int64_t copies);
void cpu_tensor_free(cpu_tensor *tensor);
/* Whether no guard byte has changed. */
bool cpu_tensor_guarded(const cpu_tensor *tensor);
/* The first part that differs and where; -1 when all are equal. */
int cpu_tensor_differ(const cpu_tensor *a, const cpu_tensor *b, size_t *at);
void cpu_tensor_copy(cpu_tensor *to, const cpu_tensor *from);

/* Plain elements as floats. */
float cpu_tensor_get(const cpu_tensor *tensor, int64_t row, int64_t col);
void cpu_tensor_set(cpu_tensor *tensor, int64_t row, int64_t col, float value);

/* Threads that come and go with each call; 1: none. */
oct_threads cpu_threads(int count);

#endif
