/* test_encode_long.c - all 2^32 floats to every format.
 *
 * Floats of one sign come in the order of their values, so the reference need not search: it
 * moves on to the next code as the floats pass the points halfway.
 */
#include "reference.h"

static ref_table table;

/* The number of floats, of both signs, whose code is not the reference's. */
static int64_t count_wrong(void) {
    const ref_format *format = table.format;
    uint32_t code = 0, sign = ref_sign(format);
    int64_t wrong = 0;
    for (uint32_t bits = 0; bits <= 0x7f800000u; bits++) {
        float value = ref_float(bits);
        while (code < format->last && ref_passes(&table, code, (double)value)) {
            code++;
        }
        wrong += octet_encode(format->dtype, value) != code;
        wrong += octet_encode(format->dtype, ref_float(bits | 0x80000000u)) != (code | sign);
    }
    return wrong + (code != format->last);
}

static int64_t count_wrong_nans(uint32_t sign) {
    const ref_format *format = table.format;
    int64_t wrong = 0;
    for (uint32_t bits = 0x7f800001u; bits <= 0x7fffffffu; bits++) {
        uint32_t nan = bits | sign;
        wrong += octet_encode(format->dtype, ref_float(nan)) != ref_nan(format, nan);
    }
    return wrong;
}

TEST(encode__all_floats) {
    for (int i = 0; i < REF_FORMATS; i++) {
        ref_fill(&table, &ref_formats[i]);
        CHECK_EQ_INT(count_wrong(), 0);
        CHECK_EQ_INT(count_wrong_nans(0), 0);
        CHECK_EQ_INT(count_wrong_nans(0x80000000u), 0);
    }
}

TEST_MAIN(encode__all_floats)
