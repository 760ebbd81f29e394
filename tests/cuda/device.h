/* device.h - the emulated GPU for tests, and copies of tensors that end where they end. */
#ifndef OCTET_TEST_CUDA_DEVICE_H
#define OCTET_TEST_CUDA_DEVICE_H

#include "../cpu/tensors.h"
#include "cuda/cuda.h"

/* An emulated GPU of this compute capability: 80, 89, 90, 100 or 120. The library finds it as
 * it finds any driver. */
octet_cuda *cuda_open(int arch);
/* The one of 9.0, opened once. */
const oct_cuda_on *cuda_on(void);

/* A tensor for a kernel to read: no byte follows its parts, and a plain one begins `shift`
 * elements past a 16-byte boundary. */
cpu_tensor cuda_exact(const cpu_tensor *from, int64_t shift);
void cuda_exact_free(cpu_tensor *tensor, int64_t shift);

/* Whether plain tensors hold the same elements, bit for bit but for NaNs, of which any equals
 * any; *row and *col: the first that differ. */
bool cuda_same(const cpu_tensor *a, const cpu_tensor *b, int64_t *row, int64_t *col);

#endif
