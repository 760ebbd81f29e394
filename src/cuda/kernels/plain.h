/* plain.h - 8 elements of a row in F32, BF16 or F16, the dtype known at run time. */
#ifndef OCT_CUDA_KERNELS_PLAIN_H
#define OCT_CUDA_KERNELS_PLAIN_H

#include "cuda/kernels/common.h"
#include "cuda/kernels/rows.h"

/* 8 elements as they lie in memory: 16-bit ones are in `a` alone. */
struct oct_eight {
    uint4 a, b;
};

/* A row of a plain matrix. */
struct oct_plain_row {
    char *at;
    uint8_t dtype;
    bool wide; /* multiples of 8 elements are aligned to 16 bytes */
};

static inline oct_plain_row oct_plain_row_of(const oct_plain &m, int64_t row) {
    int64_t bytes = m.dtype == OCTET_F32 ? 4 : 2;
    return {(char *)m.at + row * m.stride * bytes, m.dtype, m.wide != 0};
}

/* How many of 8 columns from col on exist. */
static inline int oct_columns_left(int64_t cols, int64_t col) {
    int64_t left = cols - col;
    return left < 0 ? 0 : left < 8 ? (int)left : 8;
}

static inline oct_eight oct_load_some(const oct_plain_row &row, int64_t col, int count) {
    uint32_t words[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < count && row.dtype == OCTET_F32) {
            words[i] = ((const uint32_t *)row.at)[col + i];
        } else if (i < count) {
            words[i / 2] |= (uint32_t)((const uint16_t *)row.at)[col + i] << (i % 2 * 16);
        }
    }
    return {{words[0], words[1], words[2], words[3]}, {words[4], words[5], words[6], words[7]}};
}

/* `count` of 8 elements from col, a multiple of 8, on; the others are 0. */
static inline oct_eight oct_take(const oct_plain_row &row, int64_t col, int count) {
    if (count < 8 || !row.wide) {
        return oct_load_some(row, col, count);
    }
    const char *at = row.at + col * (row.dtype == OCTET_F32 ? 4 : 2);
    oct_eight x = {oct_load16(at), {0, 0, 0, 0}};
    if (row.dtype == OCTET_F32) {
        x.b = oct_load16(at + 16);
    }
    return x;
}

static inline void oct_store_some(const oct_plain_row &row, int64_t col, const oct_eight &x,
                                  int count) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < count && row.dtype == OCTET_F32) {
            ((uint32_t *)row.at)[col + i] = i < 4 ? oct_word(x.a, i) : oct_word(x.b, i - 4);
        } else if (i < count) {
            uint32_t word = oct_word(x.a, i / 2);
            ((uint16_t *)row.at)[col + i] = i % 2 ? oct_high_u16(word) : oct_low_u16(word);
        }
    }
}

/* A thread's rows, those that exist, all loads before the first use. */
static inline void oct_take_rows(oct_eight raw[OCT_ROWS_DEEP], const oct_plain &plain,
                                 const oct_rows &shape, const oct_rows_at &at) {
    int count = oct_columns_left(shape.cols, at.col);
#pragma unroll
    for (int k = 0; k < OCT_ROWS_DEEP; k++) {
        int64_t row = at.row + k * at.step;
        if (row < shape.rows) {
            raw[k] = oct_take(oct_plain_row_of(plain, row), at.col, count);
        }
    }
}

/* The inverse of oct_take. */
static inline void oct_put(const oct_plain_row &row, int64_t col, const oct_eight &x,
                           int count) {
    if (count < 8 || !row.wide) {
        oct_store_some(row, col, x, count);
        return;
    }
    char *at = row.at + col * (row.dtype == OCTET_F32 ? 4 : 2);
    oct_store16(at, x.a);
    if (row.dtype == OCTET_F32) {
        oct_store16(at + 16, x.b);
    }
}

/* Exact. */
static inline void oct_eight_floats(float *out, const oct_eight &x, uint8_t dtype) {
    if (dtype == OCTET_BF16) {
        oct_unpack<oct_bf16>(out, x.a);
    } else if (dtype == OCTET_F16) {
        oct_unpack<oct_f16>(out, x.a);
    } else {
        oct_unpack<float>(out, x.a);
        oct_unpack<float>(out + 4, x.b);
    }
}

/* Nearest, ties to even. */
static inline oct_eight oct_eight_of(const float *x, uint8_t dtype) {
    oct_eight out = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (dtype == OCTET_BF16) {
        out.a = oct_pack<oct_bf16>(x);
    } else if (dtype == OCTET_F16) {
        out.a = oct_pack<oct_f16>(x);
    } else {
        out.a = oct_pack<float>(x);
        out.b = oct_pack<float>(x + 4);
    }
    return out;
}

#endif
