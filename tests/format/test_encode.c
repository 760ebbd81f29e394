/* test_encode.c - rounding to nearest even against the reference, where it matters. */
#include "reference.h"

#define STRIDE 499u /* prime: 8.6 million floats, no pattern in the mantissa */

static ref_table table;

static void check_input(uint32_t bits) {
    uint32_t got = octet_encode(table.format->dtype, ref_float(bits));
    if (!CHECK_EQ_BITS(got, ref_encode(&table, bits)) && test_failures <= TEST_REPORTS) {
        printf("    %s of the float 0x%08" PRIx32 "\n", table.format->name, bits);
    }
}

static void check_neighbours(uint32_t bits) {
    for (uint32_t i = 0; i < 5; i++) {
        check_input(bits + i - 2);
        check_input((bits + i - 2) ^ 0x80000000u);
    }
}

TEST(encode__every_bf16_input) {
    for (int i = 0; i < REF_FORMATS; i++) {
        ref_fill(&table, &ref_formats[i]);
        for (uint32_t code = 0; code <= 0xffff; code++) {
            check_input(code << 16);
        }
    }
}

TEST(encode__every_f16_input) {
    const ref_format *f16 = &ref_formats[1];
    CHECK_EQ_INT(f16->dtype, OCTET_F16);
    for (int i = 0; i < REF_FORMATS; i++) {
        ref_fill(&table, &ref_formats[i]);
        for (uint32_t code = 0; code < f16->last; code++) {
            uint32_t bits = (uint32_t)TEST_BITS((float)ref_value(f16, code));
            check_input(bits);
            check_input(bits | 0x80000000u);
        }
    }
}

TEST(encode__dense_stride_of_floats) {
    for (int i = 0; i < REF_FORMATS; i++) {
        ref_fill(&table, &ref_formats[i]);
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STRIDE) {
            check_input((uint32_t)bits);
        }
    }
}

TEST(encode__neighbours_of_every_value_and_every_midpoint) {
    for (int i = 0; i < REF_FORMATS; i++) {
        ref_fill(&table, &ref_formats[i]);
        for (uint32_t code = 0; code < table.format->last; code++) {
            check_neighbours((uint32_t)TEST_BITS((float)ref_value(table.format, code)));
            check_neighbours((uint32_t)TEST_BITS((float)table.halfway[code]));
        }
    }
}

TEST(encode__neighbours_of_every_power_of_two) {
    for (int i = 0; i < REF_FORMATS; i++) {
        ref_fill(&table, &ref_formats[i]);
        for (int k = -149; k < 128; k++) {
            check_neighbours((uint32_t)TEST_BITS(ldexpf(1, k)));
        }
        check_neighbours(0x7f7fffffu); /* the largest float, Inf and NaN */
        check_neighbours(0x7fc00000u);
        check_neighbours(0xffffffffu);
    }
}

TEST(encode__saturation_nan_and_signed_zero) {
    static const struct {
        octet_dtype dtype;
        uint32_t bits, code;
    } rows[] = {
        {OCTET_E4M3, 0x43e00000, 0x7e},   /* 448 */
        {OCTET_E4M3, 0x43e80000, 0x7e},   /* 464, where NaN's code would begin */
        {OCTET_E4M3, 0x43f00000, 0x7e},   /* 480 */
        {OCTET_E4M3, 0x7f800000, 0x7e},   /* Inf */
        {OCTET_E4M3, 0xff800000, 0xfe},   /* -Inf */
        {OCTET_E4M3, 0x7fc00000, 0x7f},   /* NaN */
        {OCTET_E4M3, 0xff800001, 0x7f},   /* -NaN, signalling: the sign is dropped */
        {OCTET_E4M3, 0x80000000, 0x80},   /* -0 */
        {OCTET_E4M3, 0x3a800000, 0x00},   /* 2^-10: half the least value, a tie */
        {OCTET_E4M3, 0x3a800001, 0x01},   /* just above it */
        {OCTET_E4M3, 0xba800000, 0x80},   /* underflow keeps the sign */
        {OCTET_E4M3, 0x80000001, 0x80},   /* the least negative float */
        {OCTET_E5M2, 0x47600000, 0x7b},   /* 57344 */
        {OCTET_E5M2, 0x47700000, 0x7b},   /* 61440, where Inf would begin */
        {OCTET_E5M2, 0x7f800000, 0x7b},   /* Inf */
        {OCTET_E5M2, 0xff7fffff, 0xfb},   /* the least finite float */
        {OCTET_E5M2, 0xffffffff, 0x7f},   /* -NaN */
        {OCTET_E5M2, 0x37000000, 0x00},   /* 2^-17, a tie */
        {OCTET_E5M2, 0x37000001, 0x01},   /* just above it */
        {OCTET_E2M1, 0x7f800000, 0x7},    /* Inf */
        {OCTET_E2M1, 0xff800000, 0xf},    /* -Inf */
        {OCTET_E2M1, 0xffc00000, 0x7},    /* -NaN is +6 */
        {OCTET_E2M1, 0xbe800000, 0x8},    /* -0.25 underflows */
        {OCTET_F16, 0x477fefff, 0x7bff},  /* just below 65520 */
        {OCTET_F16, 0x477ff000, 0x7c00},  /* 65520 */
        {OCTET_F16, 0xff800000, 0xfc00},  /* -Inf */
        {OCTET_F16, 0x7f800001, 0x7e00},  /* the last payload bit is lost, NaN is not */
        {OCTET_F16, 0xffa02000, 0xff01},  /* sign and payload kept, quiet */
        {OCTET_F16, 0x33000000, 0x0000},  /* 2^-25, a tie */
        {OCTET_F16, 0x33000001, 0x0001},  /* just above it */
        {OCTET_BF16, 0x7f7f7fff, 0x7f7f}, /* just below the middle of the maximum and Inf */
        {OCTET_BF16, 0x7f7f8000, 0x7f80}, /* the middle */
        {OCTET_BF16, 0x7f800001, 0x7fc0}, /* NaN, signalling */
        {OCTET_BF16, 0xff810000, 0xffc1}, /* sign and payload kept, quiet */
        {OCTET_BF16, 0x00008000, 0x0000}, /* a tie among subnormals */
        {OCTET_BF16, 0x00018000, 0x0002}, /* the next */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_EQ_BITS(octet_encode(rows[i].dtype, ref_float(rows[i].bits)), rows[i].code);
    }
}

TEST(encode__e2m1_ties_go_to_even) {
    static const float ties[][2] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2},
                                    {2.5f, 2},  {3.5f, 4},  {5, 4}};
    for (size_t i = 0; i < sizeof ties / sizeof ties[0]; i++) {
        uint32_t up = octet_encode(OCTET_E2M1, ties[i][0]);
        uint32_t down = octet_encode(OCTET_E2M1, -ties[i][0]);
        CHECK_EQ_BITS(octet_decode(OCTET_E2M1, up), ties[i][1]);
        CHECK_EQ_BITS(octet_decode(OCTET_E2M1, down), -ties[i][1]);
    }
}

TEST_MAIN(encode__every_bf16_input, encode__every_f16_input, encode__dense_stride_of_floats,
          encode__neighbours_of_every_value_and_every_midpoint,
          encode__neighbours_of_every_power_of_two, encode__saturation_nan_and_signed_zero,
          encode__e2m1_ties_go_to_even)
