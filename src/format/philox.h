/* philox.h - Philox4x32-10: random bits as a pure function of key and counter. */
#ifndef OCT_FORMAT_PHILOX_H
#define OCT_FORMAT_PHILOX_H

#include <stdint.h>

/* The 64 bits of a product. A GPU's compiler does not see by itself that it is one instruction.
 */
static inline uint64_t oct_wide_product(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && !defined(OCTET_EMULATED)
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (uint64_t)a * b;
#endif
}

/* Four random words for each key and counter: ten rounds of two multiplications. `out` may be
 * `counter`. */
static inline void oct_philox(uint32_t out[4], const uint32_t key[2],
                              const uint32_t counter[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t even = oct_wide_product(0xd2511f53u, c0);
        uint64_t odd = oct_wide_product(0xcd9e8d57u, c2);
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)odd;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)even;
        k0 += 0x9e3779b9u; /* the golden ratio and the square root of 3: a new key per round */
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The random words of one block of 16 elements. The key is the seed, the counter (block,
 * direction, stream), low words first; direction is 0 for rowwise and 1 for columnwise, and
 * each tensor that is rounded by one seed has a stream of its own. Blocks are counted along the
 * direction's rows, each padded to 16. */
static inline void oct_random_words(uint32_t out[4], uint64_t seed, uint64_t block,
                                    uint32_t direction, uint32_t stream) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), direction, stream};
    oct_philox(out, key, counter);
}

/* Their bytes: byte i is for element i, and comes from the words in order, each from its low
 * byte up, on a machine of any byte order. */
static inline uint8_t oct_random_byte(const uint32_t words[4], int i) {
    return (uint8_t)(words[i / 4] >> (8 * (i % 4)) & 0xffu);
}

static inline void oct_random_block(uint8_t out[16], uint64_t seed, uint64_t block,
                                    uint32_t direction, uint32_t stream) {
    uint32_t words[4];
    oct_random_words(words, seed, block, direction, stream);
    for (int i = 0; i < 16; i++) {
        out[i] = oct_random_byte(words, i);
    }
}

#endif
