/* sha256.c - SHA-256 as FIPS 180-4 has it, plainly. */
#include "cuda/sha256.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};

static uint32_t rotate(uint32_t x, int by) {
    return x >> by | x << (32 - by);
}

static void spread(uint32_t words[64], const uint8_t block[64]) {
    for (int i = 0; i < 16; i++) {
        const uint8_t *b = block + 4 * i;
        words[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = words[i - 15], b = words[i - 2];
        words[i] = words[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + words[i - 7] +
                   (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
}

static void mix(uint32_t sums[8], const uint8_t block[64]) {
    uint32_t words[64], s[8];
    spread(words, block);
    memcpy(s, sums, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t most = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t one = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) + choice +
                       rounds[i] + words[i];
        uint32_t two = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + most;
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) {
        sums[i] += s[i];
    }
}

void oct_sha256_start(oct_sha256 *hash) {
    /* The same of the square roots of the first 8 primes. */
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(hash, 0, sizeof *hash);
    memcpy(hash->sums, first, sizeof first);
}

void oct_sha256_add(oct_sha256 *hash, const void *data, size_t bytes) {
    const uint8_t *from = data;
    while (bytes > 0) {
        size_t at = hash->bytes % 64;
        size_t take = bytes < 64 - at ? bytes : 64 - at;
        memcpy(hash->block + at, from, take);
        hash->bytes += take;
        from += take;
        bytes -= take;
        if (at + take == 64) {
            mix(hash->sums, hash->block);
        }
    }
}

void oct_sha256_text(char out[OCT_SHA256_TEXT], oct_sha256 *hash) {
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = 8 * hash->bytes;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)(bits >> (56 - 8 * i) & 0xff);
    }
    /* Up to 8 bytes before the end of a block. */
    oct_sha256_add(hash, padding, 1 + (119 - hash->bytes % 64) % 64);
    oct_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < 64; i++) {
        uint32_t nibble = hash->sums[i / 8] >> (28 - i % 8 * 4) & 0xf;
        out[i] = "0123456789abcdef"[nibble];
    }
    out[64] = '\0';
}
