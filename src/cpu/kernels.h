/* kernels.h - the inner loops of every operation but the product.
 *
 * The drivers decide what is done and where; a kernel does it to a tile. Every kernel's result
 * is defined by the reference, and that of every instruction set gives the same bytes, NaN,
 * Inf, -0 and subnormals included. Where a kernel multiplies or adds, the floating-point
 * environment must be the default one: to nearest, subnormals kept. Sizes may be 0; nothing is
 * read or written outside the sizes given; no pointer needs more than its element's alignment.
 */
#ifndef OCT_CPU_KERNELS_H
#define OCT_CPU_KERNELS_H

#include "cpu/plain.h"
#include "format/prologue.h"
#include "format/scaling.h"

/* A rectangle of bytes: codes, one each, or anything else. */
typedef struct oct_bytes {
    uint8_t *at;
    int64_t stride;
} oct_bytes;

/* The factor of element (r, c) is factors[r * row_step + c / block]. `block` is 1, a power of
 * two from 16 on, or OCT_WHOLE_ROW. */
#define OCT_WHOLE_ROW ((int64_t)1 << 62)
typedef struct oct_factors {
    const float *factors;
    int64_t block, row_step;
} oct_factors;

/* Blocks of 16 random bytes: their numbers are first, first + step, ... */
typedef struct oct_random {
    uint64_t seed, first, step;
    uint32_t direction; /* 0 rowwise, 1 columnwise */
    uint32_t stream;
} oct_random;

/* Floats of a row, in whole OCT_ACT_BLOCKs: what an activation reads and writes. */
#define OCT_ACT_BLOCK 16
typedef struct oct_act_call {
    oct_activation act;
    int64_t count;
    const float *x;
    const float *gate;     /* what act(x) is multiplied by, or NULL */
    const float *grad;     /* backward: the gradient of the result */
    float *out, *gate_out; /* the result; backward: the gradients of x and of gate */
} oct_act_call;

typedef struct oct_kernels {
    /* The encoding of the largest |x|; NaN is ignored, Inf is not; 0 where there is nothing. */
    uint32_t (*absmax)(const oct_tile *x);
    /* The same by column, and by blocks of each row: row by row, ceil(cols / block) each. */
    void (*absmax_columns)(uint32_t *out, const oct_tile *x);
    void (*absmax_blocks)(uint32_t *out, const oct_tile *x, int64_t block);
    /* out(r, c) = the code of fl32(x(r, c) factor), by the format's header; E2M1 in the low
     * nibble of a byte. */
    void (*encode)(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                   octet_dtype format);
    /* The same for E2M1 by stochastic rounding, with a random byte per element. */
    void (*encode_stochastic)(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                              const oct_bytes *random);
    /* The random bytes of `count` blocks, 16 each. */
    void (*random)(uint8_t *out, const oct_random *which, int64_t count);
    /* out(r, c) = fl32(value of the code factor), rounded to the dtype of out. */
    void (*decode)(const oct_tile *out, const oct_bytes *codes, const oct_factors *by,
                   octet_dtype format);
    /* Block scales of `count` amaxes and what their elements are multiplied by. */
    void (*fp8_scales)(float *inverses, float *factors, const uint32_t *amaxes, int64_t count,
                       const oct_scale_rule *rule);
    void (*mx_scales)(uint8_t *codes, float *factors, const uint32_t *amaxes, int64_t count,
                      octet_dtype format);
    void (*nv_scales)(uint8_t *codes, float *factors, const uint32_t *amaxes, int64_t count,
                      const oct_nv_global *global);
    /* out(c, r) = x(r, c). */
    void (*transpose)(const oct_bytes *out, const oct_bytes *x, int64_t rows, int64_t cols);
    /* The same for an out that will not be read soon: it may be written past the cache. */
    void (*transpose_away)(const oct_bytes *out, const oct_bytes *x, int64_t rows,
                           int64_t cols);
    /* Two codes a byte. Of one row: out[i] = x[2i] | x[2i + 1] << 4, an odd last one alone. */
    void (*pack)(uint8_t *out, const uint8_t *x, int64_t count);
    /* Of two rows: out[i] = low[i] | high[i] << 4. */
    void (*pack_rows)(uint8_t *out, const uint8_t *low, const uint8_t *high, int64_t count);
    /* The inverse of pack. */
    void (*unpack)(uint8_t *out, const uint8_t *x, int64_t count);
    /* out[c] = the column's sum, row after row from 0, in fp32. */
    void (*sum_columns)(float *out, const oct_tile *x);
    /* out(g, c) of 16 rows, dense: the Hadamard transform of up to 16 rows, rounded to bf16
     * and widened again. hadamard.h has the order. */
    void (*hadamard)(float *out, const oct_tile *x, uint32_t signs);
    /* out = act(x) gate, and the gradients of x and gate; activation.h has each element. NaN is
     * the one NaN. */
    void (*activate)(const oct_act_call *call);
    void (*activate_grad)(const oct_act_call *call);
    /* fp32 from a row and back, each element rounded once. */
    void (*widen)(float *out, const void *x, int64_t count, octet_dtype dtype);
    void (*narrow)(void *out, const float *x, int64_t count, octet_dtype dtype);
} oct_kernels;

/* In plain C; others use it for what they leave over. */
extern const oct_kernels oct_kernels_reference;

/* Those of the instruction set that runs; isa.h has the list. */
const oct_kernels *oct_cpu_kernels(void);

#endif
