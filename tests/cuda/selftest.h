/* selftest.h - what the kernels that test the emulation take. */
#ifndef OCTET_TEST_CUDA_SELFTEST_H
#define OCTET_TEST_CUDA_SELFTEST_H

typedef struct selftest_params {
    const unsigned *numbers;
    unsigned *sums;
    unsigned *total, *largest;
} selftest_params;

#endif
