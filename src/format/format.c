/* format.c - the scalar formats behind one pair of functions. */
#include "octet.h"

#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e5m2.h"
#include "format/e8m0.h"
#include "format/f16.h"
#include "format/philox.h"

typedef struct format_row {
    uint32_t (*encode)(float value);
    float (*decode)(uint32_t code);
} format_row;

static uint32_t encode_f32(float value) {
    return oct_f32_bits(value);
}

static float decode_f32(uint32_t code) {
    return oct_bits_f32(code);
}

static uint32_t encode_bf16(float value) {
    return oct_bf16_encode(value);
}

static float decode_bf16(uint32_t code) {
    return oct_bf16_decode(oct_low_u16(code));
}

static uint32_t encode_f16(float value) {
    return oct_f16_encode(value);
}

static float decode_f16(uint32_t code) {
    return oct_f16_decode(oct_low_u16(code));
}

static uint32_t encode_e4m3(float value) {
    return oct_e4m3_encode(value);
}

static float decode_e4m3(uint32_t code) {
    return oct_e4m3_decode((uint8_t)(code & 0xffu));
}

static uint32_t encode_e5m2(float value) {
    return oct_e5m2_encode(value);
}

static float decode_e5m2(uint32_t code) {
    return oct_e5m2_decode((uint8_t)(code & 0xffu));
}

static uint32_t encode_e2m1(float value) {
    return oct_e2m1_encode(value);
}

static float decode_e2m1(uint32_t code) {
    return oct_e2m1_decode((uint8_t)(code & 0xfu));
}

static uint32_t encode_e8m0(float value) {
    return oct_e8m0_encode(value);
}

static float decode_e8m0(uint32_t code) {
    return oct_e8m0_decode((uint8_t)(code & 0xffu));
}

static const format_row formats[OCTET_DTYPES] = {
    [OCTET_F32] = {encode_f32, decode_f32},    [OCTET_BF16] = {encode_bf16, decode_bf16},
    [OCTET_F16] = {encode_f16, decode_f16},    [OCTET_E4M3] = {encode_e4m3, decode_e4m3},
    [OCTET_E5M2] = {encode_e5m2, decode_e5m2}, [OCTET_E2M1] = {encode_e2m1, decode_e2m1},
    [OCTET_E8M0] = {encode_e8m0, decode_e8m0},
};

/* The row of a scalar format; NULL for any other number. */
static const format_row *find_format(octet_dtype format) {
    unsigned index = (unsigned)format;
    return index < OCTET_DTYPES && formats[index].encode ? &formats[index] : NULL;
}

/* The code is in the low bits, the others are 0; F32's is the float's encoding. Rounding and
 * specials are those of the format's header. */
uint32_t octet_encode(octet_dtype format, float value) {
    const format_row *row = find_format(format);
    return row ? row->encode(value) : 0u;
}

/* Bits of `code` above the format's are not read. Anything but a scalar format decodes to 0. */
float octet_decode(octet_dtype format, uint32_t code) {
    const format_row *row = find_format(format);
    return row ? row->decode(code) : 0.0f;
}

uint32_t octet_encode_stochastic(float value, uint8_t random) {
    return oct_e2m1_encode_stochastic(value, random);
}

/* Writes nothing when `out` is NULL. */
void octet_random_block(uint8_t out[16], uint64_t seed, uint64_t block, uint32_t direction,
                        uint32_t stream) {
    if (out) {
        oct_random_block(out, seed, block, direction, stream);
    }
}
