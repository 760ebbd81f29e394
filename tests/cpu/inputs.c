/* inputs.c - numbers that quantizers get wrong. */
#include "inputs.h"

#include <math.h>

uint64_t cpu_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int below(uint64_t *state, int limit) {
    return (int)(cpu_random(state) % (uint64_t)limit);
}

/* In [-1, 1). */
static float fraction(uint64_t *state) {
    return (float)((double)(int64_t)cpu_random(state) / 9223372036854775808.0);
}

static float finite_special(uint64_t *state) {
    static const float values[] = {
        0.0f,          -0.0f,         0x1p-149f,      -0x1p-149f, 0x1p-133f,   0x1p-24f,
        0x1p-126f,     -0x1p-127f,    448.0f,         -464.0f,    57344.0f,    61440.0f,
        6.0f,          -5.0f,         0.25f,          0.75f,      2.5f,        65504.0f,
        0x1.fep127f,   3.4028235e38f, -3.4028235e38f, 2688.0f,    0x1.5p-110f, 1.469e-38f,
        0x1.fffffep0f, 1.0f / 3.0f,
    };
    int at = below(state, 60);
    if (at < (int)(sizeof values / sizeof values[0])) {
        return values[at];
    }
    float power = ldexpf(1, below(state, 276) - 149);
    float near = at % 3 == 0   ? nextafterf(power, 0)
                 : at % 3 == 1 ? power
                               : nextafterf(power, 1e30f);
    return at % 2 ? -near : near;
}

static float special(uint64_t *state) {
    static const float values[] = {INFINITY, -INFINITY, NAN, -NAN};
    int at = below(state, 400);
    return at < 4 ? values[at] : finite_special(state);
}

/* One in about fifty elements is far larger than its block. */
static float in_block(uint64_t *state, int64_t row, int64_t col, uint64_t seed) {
    uint64_t block = seed ^ (uint64_t)(row / 16 * 7919 + col / 16);
    int exponent = below(&block, 41) - 20;
    int more = below(state, 50) == 0 ? 7 : 0;
    return ldexpf(fraction(state), exponent + more);
}

static uint32_t random_code(uint64_t *state, octet_dtype dtype) {
    return (uint32_t)(cpu_random(state) >> 32) >> (dtype == OCTET_F32 ? 0 : 16);
}

static float tiny(uint64_t *state, octet_dtype dtype) {
    int least = dtype == OCTET_F16 ? -24 : dtype == OCTET_BF16 ? -133 : -149;
    return ldexpf(fraction(state), least + below(state, 40));
}

static float huge(uint64_t *state, octet_dtype dtype) {
    float most = dtype == OCTET_F16    ? 65504.0f
                 : dtype == OCTET_BF16 ? 0x1.fep127f
                                       : 0x1.fffffep127f;
    return below(state, 20) == 0 ? most : most * fraction(state);
}

static float value_of(uint64_t *state, cpu_input kind, octet_dtype dtype, uint64_t at) {
    uint32_t code = (uint32_t)(at * 40503u % 65536u);
    switch (kind) {
    case CPU_INPUT_SPECIALS:
        return special(state);
    case CPU_INPUT_FINITE:
        return finite_special(state);
    case CPU_INPUT_BITS:
        return octet_decode(dtype, random_code(state, dtype));
    case CPU_INPUT_TIES:
        return (float)(below(state, 129) - 64) / 8;
    case CPU_INPUT_ZEROS:
        return below(state, 2) ? 0.0f : -0.0f;
    case CPU_INPUT_TINY:
        return tiny(state, dtype);
    case CPU_INPUT_HUGE:
        return huge(state, dtype);
    default:
        return octet_decode(dtype, dtype == OCTET_F32 ? code << 16 : code);
    }
}

void cpu_fill(cpu_tensor *x, cpu_input kind, uint64_t seed) {
    uint64_t state = seed;
    for (int64_t r = 0; r < x->m.rows; r++) {
        for (int64_t c = 0; c < x->m.cols; c++) {
            uint64_t at = (uint64_t)(r * x->m.cols + c);
            cpu_tensor_set(x, r, c,
                           kind == CPU_INPUT_BLOCKS
                               ? in_block(&state, r, c, seed)
                               : value_of(&state, kind, (octet_dtype)x->m.dtype, at));
        }
    }
}
