/* test_philox.c - the random bits: published vectors, golden blocks, what goes in. */
#include "octet.h"
#include "test.h"

#include "format/philox.h"

#define SEED 0x0123456789abcdefu

TEST(philox__known_answers) {
    static const uint32_t rows[][10] = {
        /* counter, key, output */
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t out[4];
        oct_philox(out, rows[i] + 4, rows[i]);
        for (int word = 0; word < 4; word++) {
            CHECK_EQ_BITS(out[word], rows[i][6 + word]);
        }
    }
}

TEST(philox__golden_blocks) {
    static const uint8_t golden[2][16] = {
        {0x2e, 0x22, 0x50, 0xb8, 0x4b, 0xb0, 0x8c, 0xc5, 0x20, 0xa0, 0xa7, 0x14, 0xf9, 0xff,
         0x84, 0x7a},
        {0x5e, 0xff, 0x9d, 0xfa, 0x4b, 0x84, 0x10, 0x6c, 0x17, 0xc7, 0x79, 0x69, 0x83, 0xff,
         0x90, 0x05},
    };
    for (uint32_t direction = 0; direction < 2; direction++) {
        uint8_t bytes[16];
        octet_random_block(bytes, SEED, 0, direction, 0);
        for (int i = 0; i < 16; i++) {
            CHECK_EQ_BITS(bytes[i], golden[direction][i]);
        }
    }
}

/* All of seed, block, direction and stream go in, each word in its place, low word first. */
TEST(philox__block_is_the_counter_and_seed_the_key) {
    static const uint64_t blocks[] = {1, 0xffffffffu, 0x100000000u, 0xfedcba9876543210u};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        const uint32_t key[2] = {0x89abcdefu, 0x01234567u};
        const uint32_t counter[4] = {(uint32_t)(blocks[i] & 0xffffffffu),
                                     (uint32_t)(blocks[i] >> 32), 1, (uint32_t)i};
        uint32_t words[4];
        uint8_t bytes[16];
        oct_philox(words, key, counter);
        octet_random_block(bytes, SEED, blocks[i], 1, (uint32_t)i);
        for (int k = 0; k < 16; k++) {
            CHECK_EQ_BITS(bytes[k], words[k / 4] >> 8 * (k % 4) & 0xff);
        }
    }
}

TEST(philox__output_may_be_the_counter) {
    const uint32_t key[2] = {5, 6};
    uint32_t counter[4] = {1, 2, 3, 4}, out[4];
    oct_philox(out, key, counter);
    oct_philox(counter, key, counter);
    CHECK(memcmp(out, counter, sizeof out) == 0);
}

/* 65536 blocks hold every byte value about 4096 times: six standard deviations are 383. */
TEST(philox__bytes_are_uniform) {
    int counts[256] = {0};
    for (uint64_t block = 0; block < 65536; block++) {
        uint8_t bytes[16];
        octet_random_block(bytes, SEED, block, 0, 0);
        for (int i = 0; i < 16; i++) {
            counts[bytes[i]]++;
        }
    }
    for (int value = 0; value < 256; value++) {
        CHECK(counts[value] > 4096 - 383 && counts[value] < 4096 + 383);
    }
}

TEST(philox__null_output_is_left_alone) {
    uint8_t bytes[16] = {0}, again[16] = {0};
    octet_random_block(bytes, SEED, 7, 0, 0);
    octet_random_block(NULL, SEED, 7, 0, 0);
    octet_random_block(again, SEED, 7, 0, 0);
    CHECK(memcmp(bytes, again, sizeof bytes) == 0);
}

TEST_MAIN(philox__known_answers, philox__golden_blocks,
          philox__block_is_the_counter_and_seed_the_key, philox__output_may_be_the_counter,
          philox__bytes_are_uniform, philox__null_output_is_left_alone)
