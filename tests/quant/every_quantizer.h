/* every_quantizer.h - every quantizer value there is, valid or not, one by one. */
#ifndef TESTS_EVERY_QUANTIZER_H
#define TESTS_EVERY_QUANTIZER_H

#include "octet.h"

/* Digits of a mixed-radix counter, one per choice. */
enum {
    SCHEME,
    FORMAT,
    BLOCK,
    ROW,
    COL,
    POW2,
    EPS,
    RHT,
    SR,
    ROWSCALED,
    FOUR,
    MAX256,
    SWIZZLE,
    CHOICES
};

static const int choice_counts[CHOICES] = {
    [SCHEME] = 6, [FORMAT] = 3, [BLOCK] = 3,   [ROW] = 2, [COL] = 2,
    [POW2] = 2,   [EPS] = 3,    [RHT] = 3,     [SR] = 2,  [ROWSCALED] = 2,
    [FOUR] = 3,   [MAX256] = 2, [SWIZZLE] = 2,
};

static inline int64_t quantizer_count(void) {
    int64_t count = 1;
    for (int i = 0; i < CHOICES; i++) {
        count *= choice_counts[i];
    }
    return count;
}

/* Rows and columns of the block of a scheme: none, a row of it, or square. */
static inline void set_block(octet_quantizer *q, int shape) {
    static const uint16_t sides[OCTET_SCHEMES] = {
        [OCTET_FP8_BLOCK] = 128, [OCTET_MXFP8] = 32, [OCTET_NVFP4] = 16, [OCTET_MXFP4] = 32};
    uint16_t side = sides[q->scheme] ? sides[q->scheme] : 8;
    q->block_rows = shape == 0 ? 0 : shape == 1 ? 1 : side;
    q->block_cols = shape == 0 ? 0 : side;
}

static inline octet_quantizer quantizer_number(int64_t number) {
    static const uint8_t formats[] = {OCTET_E4M3, OCTET_E5M2, OCTET_E2M1};
    static const float epsilons[] = {0.0f, 1e-12f, 0.333333343f};
    int digit[CHOICES];
    for (int i = 0; i < CHOICES; i++) {
        digit[i] = (int)(number % choice_counts[i]);
        number /= choice_counts[i];
    }
    octet_quantizer q = {.size = sizeof q};
    q.scheme = (uint8_t)(1 + digit[SCHEME]);
    q.format = formats[digit[FORMAT]];
    set_block(&q, digit[BLOCK]);
    q.rowwise = (uint8_t)digit[ROW];
    q.columnwise = (uint8_t)digit[COL];
    q.pow2 = (uint8_t)digit[POW2];
    q.epsilon = epsilons[digit[EPS]];
    q.hadamard = (uint8_t)digit[RHT];
    q.stochastic = (uint8_t)digit[SR];
    q.row_scaled = (uint8_t)digit[ROWSCALED];
    q.four_over_six = (uint8_t)digit[FOUR];
    q.max256 = (uint8_t)digit[MAX256];
    q.swizzled = (uint8_t)digit[SWIZZLE];
    return q;
}

#endif
