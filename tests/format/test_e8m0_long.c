/* test_e8m0_long.c - all 2^32 floats to E8M0. */
#include "reference.h"

static int64_t count_wrong(uint32_t sign) {
    int64_t wrong = 0;
    for (uint32_t bits = 0; bits <= 0x7fffffffu; bits++) {
        wrong += octet_encode(OCTET_E8M0, ref_float(bits | sign)) != ref_e8m0(bits | sign);
    }
    return wrong;
}

TEST(e8m0__all_floats_not_negative) {
    CHECK_EQ_INT(count_wrong(0), 0);
}

TEST(e8m0__all_negative_floats) {
    CHECK_EQ_INT(count_wrong(0x80000000u), 0);
}

TEST_MAIN(e8m0__all_floats_not_negative, e8m0__all_negative_floats)
