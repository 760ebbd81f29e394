/* test_stochastic_long.c - all 2^32 floats by stochastic rounding, a byte each. */
#include "reference.h"

TEST(stochastic__all_floats) {
    int64_t wrong = 0;
    uint32_t bits = 0;
    do {
        uint8_t random = (uint8_t)(bits * 0x9e3779b1u >> 24); /* neighbours get distant bytes */
        wrong +=
            octet_encode_stochastic(ref_float(bits), random) != ref_stochastic(bits, random);
    } while (++bits != 0);
    CHECK_EQ_INT(wrong, 0);
}

TEST_MAIN(stochastic__all_floats)
