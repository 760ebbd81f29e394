/* gemm_operand.h - operands of random bytes, and what each element is worth, in double. */
#ifndef GEMM_OPERAND_H
#define GEMM_OPERAND_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"

/* A matrix with its bytes; values[r * cols + c] is the element (r, c) as the layout defines it,
 * written here from the definition and not through the library. With a transform the bytes
 * stand for the transformed rows, of which there are a multiple of 16. */
typedef struct operand {
    oct_matrix m;
    octet_use use;
    int64_t rows, cols; /* of values */
    double *values;
} operand;

/* How unusual the bytes are. */
typedef enum operand_kind {
    OPERAND_USUAL,   /* scales within some powers of two of 1 */
    OPERAND_EXTREME, /* the smallest and the largest scales, zero blocks among them */
    OPERAND_FACTORS, /* factors of the whole operand, or of its lines, near fp32's limits */
    OPERAND_TINY,    /* plain: bf16 subnormals among the values */
    OPERAND_APART, /* least codes under huge block scales, or under tiny ones by the seed; plain
                    * values likewise */
    OPERAND_NAN    /* one NaN (or Inf) element */
} operand_kind;

static inline uint64_t operand_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1dull >> 11;
}

static inline int64_t operand_up(int64_t n, int64_t by) {
    return (n + by - 1) / by * by;
}

/* The offset of the scale of (line i, block j) where lines have `blocks` blocks. */
static inline int64_t operand_swizzle(int64_t i, int64_t j, int64_t blocks) {
    int64_t tiles = (blocks + 3) / 4;
    return ((i / 128) * tiles + j / 4) * 512 + (i % 32) * 16 + ((i % 128) / 32) * 4 + j % 4;
}

/* Buffers end exactly where the layout says, so that reading past one is seen. */
static inline void operand_allocate(operand *o) {
    octet_layout layout;
    octet_extents extents = {o->m.rows, o->m.cols, 0};
    if (octet_layout_make(&layout, &o->m.quantizer, NULL)) {
        abort();
    }
    for (int b = 0; b < layout.count; b++) {
        int64_t size = layout.buffers[b].dtype == OCTET_F32 ? 4 : 1;
        for (int d = 0; d < layout.buffers[b].ndim; d++) {
            int64_t extent = 0;
            if (octet_dim_eval(&extent, &layout.buffers[b].dims[d], &extents, NULL)) {
                abort();
            }
            size *= extent;
        }
        o->m.parts[layout.buffers[b].part] = calloc(1, (size_t)size + (size == 0));
    }
}

/* A code that is not NaN or Inf. */
static inline uint8_t operand_code(const octet_quantizer *q, uint64_t *state) {
    uint8_t code = (uint8_t)operand_random(state);
    uint8_t most = q->format == OCTET_E4M3 ? 0x7e : 0x7b;
    return (code & 0x7f) > most ? (uint8_t)(code & 0xbf) : code;
}

/* A scale of an FP8 block. */
static inline float operand_scale(const octet_quantizer *q, int exponent, uint64_t *state) {
    float scale = ldexpf(1.0f, exponent);
    return q->pow2 ? scale : scale * (1.0f + (float)(operand_random(state) % 1000) / 1001.0f);
}

/* The scale of (line, block), stored; lines are rows for rowwise bytes, else columns. */
static inline void operand_put_scale(operand *o, int64_t line, int64_t block, uint8_t code,
                                     float value) {
    const octet_quantizer *q = &o->m.quantizer;
    bool row = o->use == OCTET_USE_ROW;
    void *scale = o->m.parts[row ? OCTET_PART_ROW_SCALE : OCTET_PART_COL_SCALE];
    int64_t lines = row ? o->m.rows : o->m.cols, length = row ? o->m.cols : o->m.rows;
    int64_t blocks = (length + q->block_cols - 1) / q->block_cols;
    if (q->scheme == OCTET_FP8_BLOCK && q->block_rows > 1) {
        ((float *)scale)[line / 128 * operand_up(blocks, 4) + block] = value;
    } else if (q->scheme == OCTET_FP8_BLOCK) {
        ((float *)scale)[block * operand_up(lines, 4) + line] = value;
    } else if (q->swizzled) {
        ((uint8_t *)scale)[operand_swizzle(line, block, blocks)] = code;
    } else if (q->scheme == OCTET_MXFP8 && !row) {
        ((uint8_t *)scale)[block * operand_up(lines, 128) + line] = code;
    } else {
        ((uint8_t *)scale)[line * operand_up(blocks, 4) + block] = code;
    }
}

/* A random scale for (line, block), square blocks alike in all their lines, as its value. */
static inline double operand_block_scale(operand *o, operand_kind kind, int64_t line,
                                         int64_t block, uint64_t seed) {
    const octet_quantizer *q = &o->m.quantizer;
    int64_t group = q->block_rows > 1 ? line / q->block_rows : line;
    uint64_t state = seed + 977 * (uint64_t)group + 131071 * (uint64_t)block;
    operand_random(&state);
    /* Extreme: the least scales here and there, or in every other line. */
    bool low = (seed % 4 < 2 ? (uint64_t)group : operand_random(&state)) % 2;
    int usual = (int)(operand_random(&state) % 9) - 4;
    int apart = seed % 2 == 0 ? 105 : q->format == OCTET_E4M3 ? -111 : -104;
    int exponent = kind == OPERAND_APART ? apart + usual : usual;
    float value = operand_scale(q, kind == OPERAND_EXTREME && low ? -125 : exponent, &state);
    uint8_t code = (uint8_t)(operand_random(&state) % 0x7f);
    if (q->scheme == OCTET_MXFP8 || q->scheme == OCTET_MXFP4) {
        code = (uint8_t)(kind == OPERAND_EXTREME && low ? 0 : 127 + exponent);
        value = octet_decode(OCTET_E8M0, code);
    } else if (q->scheme == OCTET_NVFP4) {
        value = octet_decode(OCTET_E4M3, code);
    }
    operand_put_scale(o, line, block, code, value);
    return (double)value;
}

/* Stores a code and gives its value. Lines run along the storage but in MXFP8's columns. */
static inline double operand_put(operand *o, int64_t line, int64_t at, uint8_t code) {
    const octet_quantizer *q = &o->m.quantizer;
    bool row = o->use == OCTET_USE_ROW;
    uint8_t *data = o->m.parts[row ? OCTET_PART_ROW_DATA : OCTET_PART_COL_DATA];
    int64_t length = row ? o->m.cols : o->rows;
    if (q->format == OCTET_E2M1) {
        code &= 0xf;
        data[line * ((length + 1) / 2) + at / 2] |= (uint8_t)(code << (at % 2 * 4));
    } else if (q->scheme == OCTET_MXFP8 && !row) {
        data[at * o->m.cols + line] = code;
    } else {
        data[line * length + at] = code;
    }
    return (double)octet_decode((octet_dtype)q->format, code);
}

/* Odd seeds are tiny, even ones huge, so that the product of two operands is neither. */
static inline float operand_amount(operand_kind kind, uint64_t seed, uint64_t *state) {
    float amount = 0.01f + (float)(operand_random(state) % 100) / 7.0f;
    return kind != OPERAND_FACTORS ? amount : amount * (seed % 2 ? 0x1p-125f : 0x1p115f);
}

static inline double operand_factor(operand *o, operand_kind kind, int64_t line, uint64_t seed,
                                    uint64_t *state) {
    const octet_quantizer *q = &o->m.quantizer;
    if (q->scheme == OCTET_FP8_TENSOR || q->scheme == OCTET_FP8_DELAYED) {
        float *scale = o->m.parts[OCTET_PART_SCALE];
        *scale = line == 0 ? operand_amount(kind, seed, state) : *scale;
        return (double)*scale;
    }
    if (q->scheme != OCTET_NVFP4) {
        return 1.0;
    }
    bool row = o->use == OCTET_USE_ROW;
    float *amax = o->m.parts[row ? OCTET_PART_ROW_AMAX : OCTET_PART_COL_AMAX];
    amax += q->row_scaled ? line : 0;
    if (q->row_scaled || line == 0) {
        *amax = operand_amount(kind, seed, state);
    }
    return (double)*amax / (6.0 * (q->max256 ? 256.0 : 448.0));
}

static inline void operand_fill(operand *o, operand_kind kind, uint64_t seed) {
    const octet_quantizer *q = &o->m.quantizer;
    bool row = o->use == OCTET_USE_ROW;
    int64_t lines = row ? o->rows : o->cols, length = row ? o->cols : o->rows;
    uint64_t state = seed;
    for (int64_t line = 0; line < lines; line++) {
        double factor = operand_factor(o, kind, line, seed, &state), scale = 1.0;
        for (int64_t at = 0; at < length; at++) {
            if (q->block_cols && at % q->block_cols == 0) {
                scale = operand_block_scale(o, kind, line, at / q->block_cols, seed);
            }
            uint8_t code = operand_code(q, &state);
            /* A block of zeros usually has the least scale; some blocks of it are not zero. */
            if (kind == OPERAND_EXTREME && scale < 1e-37 && seed % 2) {
                code = 0;
            }
            if (kind == OPERAND_APART && q->scheme != OCTET_NVFP4) {
                code &= q->format == OCTET_E4M3 ? 0x87 : q->format == OCTET_E5M2 ? 0x83 : 0x9;
            }
            if (kind == OPERAND_NAN && q->format != OCTET_E2M1 && line == lines / 2 &&
                at == length / 2) {
                code = 0x7f;
            }
            double value = operand_put(o, line, at, code) * scale * factor;
            o->values[row ? line * o->cols + at : at * o->cols + line] = value;
        }
    }
}

/* By what plain values are multiplied to lie apart from those of the other operand. */
static inline float operand_apart(octet_dtype dtype, uint64_t seed) {
    return dtype == OCTET_F16 ? 1.0f
           : seed % 2 == 0    ? 0x1p100f
                              : (dtype == OCTET_F32 ? 0x1p-140f : 0x1p-118f);
}

static inline void operand_fill_plain(operand *o, operand_kind kind, uint64_t seed) {
    uint64_t state = seed;
    int64_t bytes = o->m.dtype == OCTET_F32 ? 4 : 2;
    o->m.stride = o->cols + 3;
    int64_t size = o->rows ? (o->rows - 1) * o->m.stride + o->cols : 0;
    char *data = calloc(1, (size_t)(size * bytes) + (size == 0));
    o->m.parts[0] = data;
    for (int64_t r = 0; r < o->rows; r++) {
        for (int64_t c = 0; c < o->cols; c++) {
            float value = (float)((int64_t)(operand_random(&state) % 2001) - 1000) / 777.0f;
            bool special = r == o->rows / 2 && c == o->cols / 2;
            value = kind == OPERAND_NAN && special ? INFINITY : value;
            value = kind == OPERAND_EXTREME && r % 2 ? value * 0x1p-60f : value;
            value = kind == OPERAND_TINY && c % 3 == 0 ? value * 0x1p-128f : value;
            if (kind == OPERAND_APART) {
                value *= operand_apart((octet_dtype)o->m.dtype, seed);
            }
            uint32_t code = octet_encode((octet_dtype)o->m.dtype, value);
            memcpy(data + (r * o->m.stride + c) * bytes, &code, (size_t)bytes);
            o->values[r * o->cols + c] = (double)octet_decode((octet_dtype)o->m.dtype, code);
        }
    }
}

/* rows x cols of random bytes of `text` ("f32", "bf16", "f16" or a quantizer), to be read
 * through `use`. */
static inline operand operand_make(const char *text, octet_use use, const int64_t shape[2],
                                   operand_kind kind, uint64_t seed) {
    operand o = {.use = use, .rows = shape[0], .cols = shape[1]};
    o.m.rows = shape[0];
    o.m.cols = shape[1];
    o.m.dtype = OCTET_BF16;
    bool plain = use == OCTET_USE_VALUES;
    if (!plain && octet_quantizer_parse(&o.m.quantizer, text, NULL)) {
        abort();
    }
    if (o.m.quantizer.hadamard && use == OCTET_USE_COL) {
        o.rows = operand_up(o.rows, 16);
    }
    o.values = calloc((size_t)(o.rows * o.cols) + 1, sizeof *o.values);
    if (plain) {
        o.m.dtype = !strcmp(text, "f32")   ? OCTET_F32
                    : !strcmp(text, "f16") ? OCTET_F16
                                           : OCTET_BF16;
        operand_fill_plain(&o, kind, seed);
    } else {
        operand_allocate(&o);
        operand_fill(&o, kind, seed);
    }
    return o;
}

static inline void operand_free(operand *o) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        free(o->m.parts[part]);
    }
    free(o->values);
}

#endif
