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

/* MXFP4's scale is that of amax / 6; kernels multiply by fl32(1 / 6). */
TEST(e8m0__of_a_sixth_by_product_or_by_division) {
    float sixth = ref_float(0x3e2aaaabu);
    int64_t wrong = 0;
    for (uint32_t bits = 0; bits <= 0x7f800000u; bits++) {
        float amax = ref_float(bits);
        wrong += octet_encode(OCTET_E8M0, amax * sixth) != octet_encode(OCTET_E8M0, amax / 6);
    }
    CHECK_EQ_INT(wrong, 0);
}

TEST_MAIN(e8m0__all_floats_not_negative, e8m0__all_negative_floats,
          e8m0__of_a_sixth_by_product_or_by_division)
