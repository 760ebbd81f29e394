/* test_flush.c - the same codes in a process that flushes subnormal floats to zero.
 *
 * A host may have switched that on for the thread that calls. What is expected comes from the
 * reference, before the switch. Machines without SSE keep their environment.
 */
#include "reference.h"

#include "format/e8m0.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#define FLUSH 0x8040u /* results (FTZ) and operands (DAZ) */

static void flush_subnormals(bool on) {
    _mm_setcsr(on ? _mm_getcsr() | FLUSH : _mm_getcsr() & ~FLUSH);
}

TEST(flush__is_on_while_the_others_run) {
    volatile float tiny = 0x1p-140f, small = 0x1p-100f, one = 1;
    flush_subnormals(true);
    volatile float operand = tiny * one, result = small * small;
    flush_subnormals(false);
    CHECK_EQ_BITS(operand, 0.0f);
    CHECK_EQ_BITS(result, 0.0f);
    CHECK_EQ_BITS(tiny * one, 0x1p-140f);
}
#else
static void flush_subnormals(bool on) {
    (void)on;
}

TEST(flush__is_on_while_the_others_run) {
    volatile float tiny = 0x1p-140f;
    CHECK_EQ_BITS(tiny * 1.0f, 0x1p-140f);
}
#endif

#define INPUTS 40000
static uint32_t inputs[INPUTS], want[INPUTS], got[INPUTS];
static ref_table table;

/* Subnormal floats of both signs, close together at the ends, and a stride of all others. */
static void fill_inputs(void) {
    for (uint32_t i = 0; i < INPUTS / 4; i++) {
        inputs[4 * i] = i < 1000 ? i : 0x00800000u - 838u * (i - 1000);
        inputs[4 * i + 1] = (0x00400000u - 5000u + i) ^ 0x80000000u;
        inputs[4 * i + 2] = 429497u * i;
        inputs[4 * i + 3] = 0x38000000u + 14561u * i;
    }
}

static void check_all(const char *name) {
    for (int i = 0; i < INPUTS; i++) {
        if (!CHECK_EQ_BITS(got[i], want[i]) && test_failures <= TEST_REPORTS) {
            printf("    %s of the float 0x%08" PRIx32 "\n", name, inputs[i]);
        }
    }
}

static void encode_flushed(octet_dtype dtype) {
    flush_subnormals(true);
    for (int i = 0; i < INPUTS; i++) {
        got[i] = octet_encode(dtype, ref_float(inputs[i]));
    }
    flush_subnormals(false);
}

TEST(flush__encode_is_unaffected) {
    fill_inputs();
    for (int f = 0; f < REF_FORMATS; f++) {
        ref_fill(&table, &ref_formats[f]);
        for (int i = 0; i < INPUTS; i++) {
            want[i] = ref_encode(&table, inputs[i]);
        }
        encode_flushed(ref_formats[f].dtype);
        check_all(ref_formats[f].name);
    }
}

TEST(flush__e8m0_encode_is_unaffected) {
    fill_inputs();
    for (int i = 0; i < INPUTS; i++) {
        want[i] = ref_e8m0(inputs[i]);
    }
    encode_flushed(OCTET_E8M0);
    check_all("e8m0");
}

TEST(flush__stochastic_rounding_is_unaffected) {
    fill_inputs();
    for (int random = 0; random < 256; random += 15) { /* 0 and 255 included */
        for (int i = 0; i < INPUTS; i++) {
            want[i] = ref_stochastic(inputs[i], (uint8_t)random);
        }
        flush_subnormals(true);
        for (int i = 0; i < INPUTS; i++) {
            got[i] = octet_encode_stochastic(ref_float(inputs[i]), (uint8_t)random);
        }
        flush_subnormals(false);
        check_all("stochastic e2m1");
    }
}

TEST(flush__decode_is_unaffected) {
    for (int f = 0; f < REF_FORMATS; f++) {
        const ref_format *format = &ref_formats[f];
        uint32_t finite = format->nan ? format->last : format->last - 1;
        for (uint32_t code = 0; code <= finite; code++) {
            float value = (float)ref_value(format, code);
            flush_subnormals(true);
            uint64_t bits = TEST_BITS(octet_decode(format->dtype, code));
            flush_subnormals(false);
            CHECK_EQ_BITS(bits, TEST_BITS(value));
        }
    }
    flush_subnormals(true);
    volatile uint64_t scale = TEST_BITS(octet_decode(OCTET_E8M0, 0));
    volatile uint64_t reciprocal = TEST_BITS(oct_e8m0_reciprocal(254));
    flush_subnormals(false);
    CHECK_EQ_BITS(scale, 0x00400000);
    CHECK_EQ_BITS(reciprocal, 0x00400000);
}

TEST_MAIN(flush__is_on_while_the_others_run, flush__encode_is_unaffected,
          flush__e8m0_encode_is_unaffected, flush__stochastic_rounding_is_unaffected,
          flush__decode_is_unaffected)
