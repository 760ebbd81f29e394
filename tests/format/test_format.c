/* test_format.c - the public functions: any argument, and the same bits as the inline ones. */
#include "reference.h"

#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e5m2.h"
#include "format/e8m0.h"
#include "format/f16.h"

#define STRIDE 65521u /* prime: all exponents and signs */

TEST(format__encode_is_the_inline_function) {
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STRIDE) {
        float value = ref_float((uint32_t)bits);
        uint8_t random = (uint8_t)(bits & 0xff);
        CHECK_EQ_BITS(octet_encode(OCTET_BF16, value), oct_bf16_encode(value));
        CHECK_EQ_BITS(octet_encode(OCTET_F16, value), oct_f16_encode(value));
        CHECK_EQ_BITS(octet_encode(OCTET_E4M3, value), oct_e4m3_encode(value));
        CHECK_EQ_BITS(octet_encode(OCTET_E5M2, value), oct_e5m2_encode(value));
        CHECK_EQ_BITS(octet_encode(OCTET_E2M1, value), oct_e2m1_encode(value));
        CHECK_EQ_BITS(octet_encode(OCTET_E8M0, value), oct_e8m0_encode(value));
        CHECK_EQ_BITS(octet_encode_stochastic(value, random),
                      oct_e2m1_encode_stochastic(value, random));
    }
}

TEST(format__decode_is_the_inline_function) {
    for (uint32_t code = 0; code <= 0xffff; code++) {
        uint8_t byte = (uint8_t)(code & 0xff);
        CHECK_EQ_BITS(octet_decode(OCTET_BF16, code),
                      ref_returned(oct_bf16_decode((uint16_t)code)));
        CHECK_EQ_BITS(octet_decode(OCTET_F16, code), oct_f16_decode((uint16_t)code));
        CHECK_EQ_BITS(octet_decode(OCTET_E4M3, byte), oct_e4m3_decode(byte));
        CHECK_EQ_BITS(octet_decode(OCTET_E5M2, byte), oct_e5m2_decode(byte));
        CHECK_EQ_BITS(octet_decode(OCTET_E2M1, byte), oct_e2m1_decode(byte));
        CHECK_EQ_BITS(octet_decode(OCTET_E8M0, byte), oct_e8m0_decode(byte));
    }
}

TEST(format__f32_is_its_own_encoding) {
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STRIDE) {
        CHECK_EQ_BITS(octet_encode(OCTET_F32, ref_float((uint32_t)bits)), bits);
        CHECK_EQ_BITS(octet_decode(OCTET_F32, (uint32_t)bits),
                      ref_returned(ref_float((uint32_t)bits)));
    }
    CHECK_EQ_BITS(octet_encode(OCTET_F32, ref_float(0xff800001u)), 0xff800001u);
}

TEST(format__bits_above_the_code_are_not_read) {
    for (uint32_t code = 0; code <= 0xffff; code++) {
        uint32_t above = code ^ 0xdead0000u;
        for (int i = 0; i < REF_FORMATS; i++) {
            const ref_format *format = &ref_formats[i];
            uint32_t low = code & (2 * ref_sign(format) - 1);
            CHECK_EQ_BITS(octet_decode(format->dtype, above), octet_decode(format->dtype, low));
        }
        CHECK_EQ_BITS(octet_decode(OCTET_E8M0, above), octet_decode(OCTET_E8M0, code & 0xff));
    }
}

TEST(format__what_is_no_scalar_format_is_zero) {
    static const int others[] = {OCTET_NONE, OCTET_U8, OCTET_I64, OCTET_DTYPES, 1000, -1};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        CHECK_EQ_BITS(octet_encode((octet_dtype)others[i], -1.5f), 0);
        CHECK_EQ_BITS(octet_decode((octet_dtype)others[i], 0xffffffffu), 0.0f);
    }
}

TEST_MAIN(format__encode_is_the_inline_function, format__decode_is_the_inline_function,
          format__f32_is_its_own_encoding, format__bits_above_the_code_are_not_read,
          format__what_is_no_scalar_format_is_zero)
