/* test_e8m0.c - the power-of-two scales: encode rounds up, decode and reciprocal are exact. */
#include "reference.h"

#include "format/e8m0.h"

#define STRIDE 487u /* prime: 8.8 million floats */

TEST(e8m0__encode_is_the_ceiling_of_log2) {
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STRIDE) {
        CHECK_EQ_BITS(octet_encode(OCTET_E8M0, ref_float((uint32_t)bits)),
                      ref_e8m0((uint32_t)bits));
    }
}

TEST(e8m0__encode_around_every_power_of_two) {
    for (int k = -149; k < 128; k++) {
        uint32_t power = (uint32_t)TEST_BITS(ldexpf(1, k));
        uint32_t code = k < -127 ? 0 : (uint32_t)(k + 127);
        CHECK_EQ_BITS(octet_encode(OCTET_E8M0, ref_float(power)), code);
        for (uint32_t i = 0; i < 9; i++) {
            uint32_t bits = power + i - 4;
            CHECK_EQ_BITS(octet_encode(OCTET_E8M0, ref_float(bits)), ref_e8m0(bits));
        }
    }
}

TEST(e8m0__encode_specials) {
    static const uint32_t rows[][2] = {
        {0x00000000, 0},   {0x80000000, 0},   /* +-0 */
        {0x00000001, 0},   {0x003fffff, 0},   /* below 2^-127 */
        {0x00400000, 0},   {0x00400001, 1},   /* 2^-127 and the next float */
        {0x007fffff, 1},   {0x00800000, 1},   /* up to 2^-126 */
        {0x00800001, 2},   {0x3f800000, 127}, /* above it; 1 */
        {0x3f800001, 128}, {0x3f7fffff, 127}, /* around 1 */
        {0x7effffff, 254}, {0x7f000000, 254}, /* 2^127 */
        {0x7f000001, 254}, {0x7f7fffff, 254}, /* above it: saturated */
        {0x7f800000, 254}, {0xff800000, 0},   /* +-Inf */
        {0x7fc00000, 255}, {0xffc00000, 255}, /* NaN of either sign */
        {0x7f800001, 255}, {0xffffffff, 255}, /* and any payload */
        {0xbf800000, 0},   {0x80000001, 0},   /* negative */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_EQ_BITS(octet_encode(OCTET_E8M0, ref_float(rows[i][0])), rows[i][1]);
    }
}

/* The scale of an MXFP8 block: the block's largest magnitude over the format's, rounded up. */
TEST(e8m0__scale_codes_of_known_blocks) {
    float over_448 = ref_float(0x3b124925u);
    CHECK_EQ_INT(octet_encode(OCTET_E8M0, 448.0f * over_448), 127);
    CHECK_EQ_INT(octet_encode(OCTET_E8M0, ref_float(0x43e00001u) * over_448), 128);
    CHECK_EQ_INT(octet_encode(OCTET_E8M0, 1.0f * over_448), 119); /* 1/448 is below 2^-8 */
    CHECK_EQ_INT(octet_encode(OCTET_E8M0, 0.0f * over_448), 0);
}

TEST(e8m0__every_code_decodes_and_round_trips) {
    for (int code = 0; code < 255; code++) {
        float value = octet_decode(OCTET_E8M0, (uint32_t)code);
        CHECK_EQ_BITS(value, (float)ldexp(1, code - 127));
        CHECK_EQ_INT(octet_encode(OCTET_E8M0, value), code);
    }
    CHECK_EQ_BITS(octet_decode(OCTET_E8M0, 255), ref_float(0x7fffffffu));
}

TEST(e8m0__every_reciprocal_undoes_its_scale) {
    for (int code = 0; code < 255; code++) {
        float reciprocal = oct_e8m0_reciprocal((uint8_t)code);
        CHECK_EQ_BITS(reciprocal, (float)ldexp(1, 127 - code));
        CHECK_EQ_BITS(reciprocal * octet_decode(OCTET_E8M0, (uint32_t)code), 1.0f);
    }
    CHECK_EQ_BITS(oct_e8m0_reciprocal(254), ref_float(0x00400000u));
    CHECK_EQ_BITS(oct_e8m0_reciprocal(255), ref_float(0x7fffffffu));
}

TEST_MAIN(e8m0__encode_is_the_ceiling_of_log2, e8m0__encode_around_every_power_of_two,
          e8m0__encode_specials, e8m0__scale_codes_of_known_blocks,
          e8m0__every_code_decodes_and_round_trips, e8m0__every_reciprocal_undoes_its_scale)
