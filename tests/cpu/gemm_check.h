/* gemm_check.h - a product against its double-precision value, with a derived bound.
 *
 * With u = 2^-24, n = the length of the product, g = (n + 8) u / (1 - (n + 8) u) and
 * S = sum |a||b| + |bias| + |old|: each term of the sum passes at most n roundings (one
 * multiplication or none, and the additions), an operand at most one when it is decoded, the
 * sum at most three for its factors, and one each for bias and old. Dot products of bf16 also
 * take sums below 2^-126 for zero, before the factors are applied, and the subnormals of a
 * plain bf16 operand. With T the sum of the magnitudes that the latter are multiplied with
 *     |fp32 result - exact| <= E = g S + 2^-126 (n + T) + 2^-148
 * and rounding to dst adds half a unit in the last place of a value of |exact| + E. */
#ifndef GEMM_CHECK_H
#define GEMM_CHECK_H

#include "cpu/gemm.h"
#include "gemm_operand.h"

typedef struct pair {
    octet_gemm gemm;
    const char *a, *b;
    octet_use a_use, b_use;
} pair;

typedef struct product {
    oct_cpu_gemm_call call;
    operand a, b;
    int64_t rows, cols, depth;
    float bias[2048];
    uint16_t bias16[2048];
    void *old; /* dst before the call */
    int64_t dst_bytes;
} product;

/* dst's dtype, and what is added to the product. */
typedef struct product_options {
    octet_dtype dst, bias; /* bias NONE: none */
    bool accumulate;
    operand_kind kind;
    uint64_t seed;
} product_options;

static inline double product_a(const product *p, int64_t i, int64_t k) {
    bool down = p->call.gemm == OCTET_WGRAD;
    return p->a.values[down ? k * p->a.cols + i : i * p->a.cols + k];
}

static inline double product_b(const product *p, int64_t j, int64_t k) {
    bool down = p->call.gemm != OCTET_FPROP;
    return p->b.values[down ? k * p->b.cols + j : j * p->b.cols + k];
}

static inline int64_t product_bytes(octet_dtype dtype) {
    return dtype == OCTET_F32 ? 4 : 2;
}

static inline double product_load(const void *base, int64_t at, octet_dtype dtype) {
    uint32_t code = 0;
    memcpy(&code, (const char *)base + at * product_bytes(dtype), (size_t)product_bytes(dtype));
    return (double)octet_decode(dtype, code);
}

static inline void product_make_dst(product *p, const product_options *o) {
    oct_matrix *dst = &p->call.dst;
    dst->dtype = (uint8_t)o->dst;
    dst->rows = p->rows;
    dst->cols = p->cols;
    dst->stride = p->cols + (p->cols % 8 ? 5 : 16); /* whole rows stay so */
    p->dst_bytes = p->rows * dst->stride * product_bytes(o->dst);
    dst->parts[0] = malloc((size_t)p->dst_bytes + 1);
    p->old = malloc((size_t)p->dst_bytes + 1);
    uint64_t state = o->seed + 17;
    for (int64_t n = 0; n < p->rows * dst->stride; n++) {
        float value = (float)((int64_t)(operand_random(&state) % 401) - 200) / 50.0f;
        uint32_t code = octet_encode(o->dst, value);
        memcpy((char *)p->old + n * product_bytes(o->dst), &code,
               (size_t)product_bytes(o->dst));
    }
}

static inline void product_make_bias(product *p, const product_options *o) {
    uint64_t state = o->seed + 5;
    for (int n = 0; n < 2048; n++) {
        float value = (float)((int64_t)(operand_random(&state) % 401) - 200) / 30.0f;
        p->bias16[n] = (uint16_t)octet_encode(o->bias, value);
        p->bias[n] = value;
    }
    p->call.bias_dtype = o->bias;
    p->call.bias = o->bias == OCTET_NONE  ? NULL
                   : o->bias == OCTET_F32 ? (void *)p->bias
                                          : (void *)p->bias16;
}

/* shape: rows of dst, cols of dst, length of the product. */
static inline product *product_make(const pair *pr, const int64_t shape[3],
                                    const product_options *o) {
    product *p = calloc(1, sizeof *p);
    bool a_down = pr->gemm == OCTET_WGRAD, b_down = pr->gemm != OCTET_FPROP;
    int64_t a_shape[2] = {a_down ? shape[2] : shape[0], a_down ? shape[0] : shape[2]};
    int64_t b_shape[2] = {b_down ? shape[2] : shape[1], b_down ? shape[1] : shape[2]};
    p->rows = shape[0];
    p->cols = shape[1];
    p->a = operand_make(pr->a, pr->a_use, a_shape, o->kind, o->seed + 1);
    p->b = operand_make(pr->b, pr->b_use, b_shape, o->kind, o->seed + 2);
    p->depth = a_down ? p->a.rows : p->a.cols;
    p->call = (oct_cpu_gemm_call){.gemm = pr->gemm,
                                  .a = p->a.m,
                                  .b = p->b.m,
                                  .a_use = pr->a_use,
                                  .b_use = pr->b_use,
                                  .accumulate = o->accumulate};
    product_make_dst(p, o);
    product_make_bias(p, o);
    return p;
}

static inline void product_free(product *p) {
    operand_free(&p->a);
    operand_free(&p->b);
    free(p->call.dst.parts[0]);
    free(p->old);
    free(p);
}

/* Threads that are none: the lanes one after the other, last first. */
static inline void product_backwards(void *pool, int64_t count, octet_task task, void *arg) {
    (void)pool;
    for (int64_t n = count; n-- > 0;) {
        task(arg, n, n + 1);
    }
}

static inline void product_run(product *p, const oct_gemm_kernels *kernels, int lanes) {
    memcpy(p->call.dst.parts[0], p->old, (size_t)p->dst_bytes);
    p->call.lanes = lanes;
    p->call.scratch = aligned_alloc(64, (size_t)lanes * OCT_CPU_LANE_BYTES);
    memset(p->call.scratch, 0xff, (size_t)lanes * OCT_CPU_LANE_BYTES);
    oct_gemm_run(kernels, &p->call, &(oct_threads){product_backwards, NULL, lanes});
    free(p->call.scratch);
}

/* Half a unit in the last place of `value` in dtype, subnormals included. */
static inline double product_half_ulp(double value, octet_dtype dtype) {
    int bits = dtype == OCTET_F32 ? 24 : dtype == OCTET_BF16 ? 8 : 11;
    int least = dtype == OCTET_F16 ? -24 : dtype == OCTET_BF16 ? -133 : -149;
    int exponent = value > 0 ? ilogb(value) - bits + 1 : least;
    return ldexp(0.5, exponent > least ? exponent : least);
}

/* From here on dtype rounds to Inf. */
static inline double product_largest(octet_dtype dtype) {
    return dtype == OCTET_F16 ? 65520.0 : dtype == OCTET_BF16 ? 0x1.ffp127 : 0x1.ffffffp127;
}

static inline bool product_is_bf16(const operand *o) {
    return o->use == OCTET_USE_VALUES && o->m.dtype == OCTET_BF16;
}

/* The error of dst(i, j) over its bound; infinite where a NaN or Inf is missing or invented. */
static inline double product_error(const product *p, int64_t i, int64_t j) {
    octet_dtype dtype = (octet_dtype)p->call.dst.dtype;
    double sum = 0.0, size = 0.0, a_size = 0.0, b_size = 0.0;
    for (int64_t k = 0; k < p->depth; k++) {
        double a = product_a(p, i, k), b = product_b(p, j, k);
        sum += a * b;
        size += fabs(a * b);
        a_size += fabs(a);
        b_size += fabs(b);
    }
    int64_t at = i * p->call.dst.stride + j;
    double old = p->call.accumulate ? product_load(p->old, at, dtype) : 0.0;
    double bias = p->call.bias ? product_load(p->call.bias, j, p->call.bias_dtype) : 0.0;
    double exact = sum + bias + old, got = product_load(p->call.dst.parts[0], at, dtype);
    if (!isfinite(exact)) {
        return isnan(exact) == isnan(got) && (isnan(exact) || exact == got) ? 0.0 : INFINITY;
    }
    double n = (double)p->depth + 8.0, u = 0x1p-24;
    double flushed =
        (product_is_bf16(&p->a) ? b_size : 0.0) + (product_is_bf16(&p->b) ? a_size : 0.0) + n;
    double bound =
        n * u / (1.0 - n * u) * (size + fabs(bias) + fabs(old)) + 0x1p-148 + 0x1p-126 * flushed;
    bound += product_half_ulp(fabs(exact) + bound, dtype);
    if (isinf(got) && fabs(exact) + bound >= product_largest(dtype)) {
        return (got > 0) == (exact > 0) ? 0.0 : INFINITY;
    }
    double error = fabs(got - exact);
    return isnan(error) ? INFINITY : error / bound;
}

/* The largest error over its bound, and whether all else in dst was left alone. */
static inline double product_worst(const product *p) {
    double worst = 0.0;
    int64_t bytes = product_bytes((octet_dtype)p->call.dst.dtype);
    for (int64_t i = 0; i < p->rows; i++) {
        for (int64_t j = 0; j < p->cols; j++) {
            double error = product_error(p, i, j);
            worst = error > worst ? error : worst;
        }
        int64_t gap = (i * p->call.dst.stride + p->cols) * bytes;
        if (memcmp((char *)p->call.dst.parts[0] + gap, (char *)p->old + gap,
                   (size_t)((p->call.dst.stride - p->cols) * bytes)) != 0) {
            worst = INFINITY;
        }
    }
    return worst;
}

#endif
