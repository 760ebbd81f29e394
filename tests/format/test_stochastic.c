/* test_stochastic.c - E2M1 by one random byte: the exact rule, and that it is fair. */
#include "reference.h"

static const float grid[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

static float step_at(float z) {
    return z >= 4 ? 2 : z >= 2 ? 1 : 0.5f;
}

/* The rule as it is written: t = a + u step(a), cut off to a multiple of step(t), in floats. */
static uint32_t written_rule(float value, uint8_t random) {
    float a = fabsf(value), t = fmaf((float)random / 256, step_at(a), a);
    float cut = fminf(floorf(t / step_at(t)) * step_at(t), 6);
    uint32_t code = 0;
    while (grid[code] < cut) {
        code++;
    }
    return isnan(value) ? 7 : signbit(value) ? code | 8 : code;
}

static void check_every_byte(uint32_t bits) {
    for (int random = 0; random < 256; random++) {
        uint32_t got = octet_encode_stochastic(ref_float(bits), (uint8_t)random);
        uint32_t want = ref_stochastic(bits, (uint8_t)random);
        CHECK_EQ_BITS(got, written_rule(ref_float(bits), (uint8_t)random));
        if (!CHECK_EQ_BITS(got, want) && test_failures <= TEST_REPORTS) {
            printf("    the float 0x%08" PRIx32 " with byte %d\n", bits, random);
        }
    }
}

TEST(stochastic__every_byte_over_a_stride_of_floats) {
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 1000003) { /* all exponents */
        check_every_byte((uint32_t)bits);
    }
    for (uint32_t bits = 0x37800000u; bits < 0x41000000u; bits += 2503) { /* 2^-16 .. 8 */
        check_every_byte(bits);
    }
}

/* Where the sum is rounded onto the next code: some floats around every byte's threshold. */
TEST(stochastic__neighbours_of_every_threshold) {
    for (int code = 0; code < 7; code++) {
        for (int random = 0; random < 256; random++) {
            double step = (double)grid[code + 1] - (double)grid[code];
            double threshold = (double)grid[code + 1] - random * step / 256;
            uint32_t bits = (uint32_t)TEST_BITS((float)threshold);
            for (uint32_t i = bits > 300 ? bits - 300 : 0; i < bits + 300; i++) {
                CHECK_EQ_BITS(octet_encode_stochastic(ref_float(i), (uint8_t)random),
                              ref_stochastic(i, (uint8_t)random));
            }
        }
    }
}

/* Bytes, of all 256, that round the float up from grid[code]. */
static int count_up(float value, int code) {
    int up = 0;
    for (int random = 0; random < 256; random++) {
        int got = (int)octet_encode_stochastic(value, (uint8_t)random);
        CHECK(got == code || got == code + 1);
        up += got == code + 1;
    }
    return up;
}

TEST(stochastic__bytes_that_round_up_are_the_fraction) {
    for (int code = 0; code < 7; code++) {
        double low = (double)grid[code], step = (double)grid[code + 1] - low;
        for (int i = 0; i < 4099; i++) { /* a prime: most fractions are no multiple of 1/256 */
            float value = (float)(low + step * i / 4099);
            double share = ((double)value - low) / step * 256;
            int up = count_up(value, code);
            CHECK(up == (int)floor(share) || up == (int)ceil(share));
        }
    }
}

TEST(stochastic__mean_over_all_bytes_is_the_value) {
    for (int code = 0; code < 7; code++) {
        float step = grid[code + 1] - grid[code];
        for (int i = 0; i < 256; i++) {
            float value = grid[code] + step * (float)i / 256;
            CHECK_EQ_INT(count_up(value, code), i);
        }
    }
}

TEST(stochastic__values_with_a_code_and_specials_ignore_the_byte) {
    static const uint32_t rows[][2] = {
        {0x40c00001, 0x7}, {0x41000000, 0x7}, {0x7f7fffff, 0x7}, /* above 6 */
        {0x7f800000, 0x7}, {0xff800000, 0xf}, {0xc0c00000, 0xf}, /* +-Inf, -6 */
        {0x7fc00000, 0x7}, {0xffc00000, 0x7}, {0xff800001, 0x7}, /* NaN */
        {0x00000000, 0x0}, {0x80000000, 0x8}, {0x80000001, 0x8}, /* +-0, the least float */
    };
    for (int random = 0; random < 256; random++) {
        for (uint32_t code = 0; code < 16; code++) {
            float value = octet_decode(OCTET_E2M1, code);
            CHECK_EQ_BITS(octet_encode_stochastic(value, (uint8_t)random), code);
        }
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            float value = ref_float(rows[i][0]);
            CHECK_EQ_BITS(octet_encode_stochastic(value, (uint8_t)random), rows[i][1]);
        }
    }
}

TEST(stochastic__golden_numbers) {
    static const struct {
        float value;
        uint8_t random;
        uint32_t code;
    } rows[] = {
        {0.2f, 153, 0x0},   {0.2f, 154, 0x1},   /* 256 (1 - 0.4) = 153.6 */
        {-0.2f, 153, 0x8},  {-0.2f, 154, 0x9},  /* the sign is kept, of zero too */
        {1.75f, 127, 0x3},  {1.75f, 128, 0x4},  /* half way from 1.5 to 2 */
        {2.25f, 191, 0x4},  {2.25f, 192, 0x5},  /* a quarter from 2 to 3 */
        {-3.75f, 63, 0xd},  {-3.75f, 64, 0xe},  /* three quarters from 3 to 4 */
        {5, 127, 0x6},      {5, 128, 0x7},      /* half way from 4 to 6 */
        {0x1p-9f, 254, 0},  {0x1p-9f, 255, 1},  /* one byte in 256 */
        {0x1p-10f, 255, 0}, {0x1p-10f, 0, 0},   /* half a byte: none */
        {5.99999f, 0, 0x6}, {5.99999f, 1, 0x7}, /* 255 bytes in 256 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_EQ_BITS(octet_encode_stochastic(rows[i].value, rows[i].random), rows[i].code);
    }
}

TEST(stochastic__golden_block) {
    uint8_t bytes[16];
    uint32_t up = 0;
    octet_random_block(bytes, 0x0123456789abcdefu, 0, 0, 0);
    for (int i = 0; i < 16; i++) {
        up |= octet_encode_stochastic(0.2f, bytes[i]) << i;
    }
    CHECK_EQ_BITS(up, 0x36a8);
}

TEST_MAIN(stochastic__every_byte_over_a_stride_of_floats,
          stochastic__neighbours_of_every_threshold,
          stochastic__bytes_that_round_up_are_the_fraction,
          stochastic__mean_over_all_bytes_is_the_value,
          stochastic__values_with_a_code_and_specials_ignore_the_byte,
          stochastic__golden_numbers, stochastic__golden_block)
