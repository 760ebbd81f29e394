/* test_decode.c - every code of every format against its definition. */
#include "reference.h"

/* The float a finite code stands for, from its definition. */
static float defined_value(const ref_format *format, uint32_t code) {
    float value = (float)ref_value(format, code & (ref_sign(format) - 1));
    return code & ref_sign(format) ? -value : value;
}

/* Codes without their sign: 0 .. this are finite. */
static uint32_t last_finite(const ref_format *format) {
    return format->nan ? format->last : format->last - 1;
}

TEST(decode__every_finite_code_has_its_defined_value) {
    for (int i = 0; i < REF_FORMATS; i++) {
        const ref_format *format = &ref_formats[i];
        for (uint32_t code = 0; code <= last_finite(format); code++) {
            uint32_t negative = code | ref_sign(format);
            CHECK_EQ_BITS(octet_decode(format->dtype, code), defined_value(format, code));
            CHECK_EQ_BITS(octet_decode(format->dtype, negative),
                          defined_value(format, negative));
        }
    }
}

TEST(decode__every_finite_code_round_trips) {
    for (int i = 0; i < REF_FORMATS; i++) {
        const ref_format *format = &ref_formats[i];
        for (uint32_t code = 0; code <= last_finite(format); code++) {
            uint32_t negative = code | ref_sign(format);
            float value = octet_decode(format->dtype, code);
            float mirrored = octet_decode(format->dtype, negative);
            CHECK_EQ_BITS(octet_encode(format->dtype, value), code);
            CHECK_EQ_BITS(octet_encode(format->dtype, mirrored), negative);
        }
    }
}

TEST(decode__ieee_nans_keep_sign_and_payload) {
    for (uint32_t payload = 1; payload < 0x400; payload++) {
        uint32_t quiet = 0x7fc00000u | payload << 13;
        CHECK_EQ_BITS(octet_decode(OCTET_F16, 0x7c00 | payload), ref_float(quiet));
        CHECK_EQ_BITS(octet_decode(OCTET_F16, 0xfc00 | payload),
                      ref_float(0x80000000u | quiet));
    }
    for (uint32_t code = 0x7f80; code <= 0x7fff; code++) {
        CHECK_EQ_BITS(octet_decode(OCTET_BF16, code), ref_returned(ref_float(code << 16)));
        CHECK_EQ_BITS(octet_decode(OCTET_BF16, code | 0x8000),
                      ref_returned(ref_float((code | 0x8000) << 16)));
    }
}

TEST(decode__specials) {
    static const struct {
        octet_dtype dtype;
        uint32_t code, bits;
    } rows[] = {
        {OCTET_F16, 0x7c00, 0x7f800000},  {OCTET_F16, 0xfc00, 0xff800000},
        {OCTET_E4M3, 0x7f, 0x7ff00000},   {OCTET_E4M3, 0xff, 0xfff00000},
        {OCTET_E4M3, 0x7e, 0x43e00000},   {OCTET_E4M3, 0x80, 0x80000000},
        {OCTET_E5M2, 0x7c, 0x7f800000},   {OCTET_E5M2, 0xfc, 0xff800000},
        {OCTET_E5M2, 0x7d, 0x7fe00000},   {OCTET_E5M2, 0x7e, 0x7fc00000},
        {OCTET_E5M2, 0x7f, 0x7fe00000},   {OCTET_E5M2, 0xfd, 0xffe00000},
        {OCTET_E5M2, 0x7b, 0x47600000},   {OCTET_E2M1, 0x8, 0x80000000},
        {OCTET_E8M0, 0, 0x00400000},      {OCTET_E8M0, 127, 0x3f800000},
        {OCTET_E8M0, 254, 0x7f000000},    {OCTET_E8M0, 255, 0x7fffffff},
        {OCTET_BF16, 0x7f80, 0x7f800000}, {OCTET_BF16, 0x0001, 0x00010000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_EQ_BITS(octet_decode(rows[i].dtype, rows[i].code), ref_float(rows[i].bits));
    }
}

TEST(decode__e2m1_is_the_list_of_sixteen) {
    static const float values[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (uint32_t code = 0; code < 16; code++) {
        CHECK_EQ_BITS(octet_decode(OCTET_E2M1, code), values[code]);
    }
}

TEST_MAIN(decode__every_finite_code_has_its_defined_value,
          decode__every_finite_code_round_trips, decode__ieee_nans_keep_sign_and_payload,
          decode__specials, decode__e2m1_is_the_list_of_sixteen)
