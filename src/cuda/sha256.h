/* sha256.h - SHA-256, which names compiled kernels and tells a whole file from a broken one. */
#ifndef OCT_CUDA_SHA256_H
#define OCT_CUDA_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct oct_sha256 {
    uint32_t sums[8];
    uint64_t bytes;    /* seen */
    uint8_t block[64]; /* the last bytes % 64 of them */
} oct_sha256;

#define OCT_SHA256_TEXT 65 /* lowercase hexadecimal and its terminator */

void oct_sha256_start(oct_sha256 *hash);
void oct_sha256_add(oct_sha256 *hash, const void *data, size_t bytes);
void oct_sha256_text(char out[OCT_SHA256_TEXT], oct_sha256 *hash);

#endif
