/* stream.h - dot products that read a quantized operand where it lies.
 *
 * A product with few rows reads b once, so its codes are decoded in registers and never stored.
 * A block scale is not applied to the elements but to the sum of its block:
 *     out(j, i) = sum over blocks of scale(j, block) * (sum over the block of a(i, p) code(j,
 * p)) So codes need not fit anything together with their scales, and the inner sums see no
 * scale of b. They neither overflow nor lose bits to small numbers if a is moderate
 * (oct_view_is_moderate says when): with |a| in 2^-103 .. 2^74, or 0, Inf or NaN, every term
 * and every sum of terms is a multiple of 2^-126 where a is bf16, or far above that where it is
 * fp32. */
#ifndef OCT_CPU_STREAM_H
#define OCT_CPU_STREAM_H

#include "cpu/pack.h"

#define OCT_STREAM_ROWS 8  /* rows of a in one call of a streaming kernel, at most */
#define OCT_GEMM_ROWS 4    /* rows of b in one call of a kernel, and of a in one that decodes */
#define OCT_STREAM_PAD 128 /* rows of a are zero up to a multiple of so many elements */
#define OCT_STREAM_SCALES 16 /* floats that may be read past the last scale of a row */

/* Dot products of `rows` (1 to 8) rows of a with 4 rows of b, which may be the same one. */
typedef struct oct_stream_call {
    float *out;                          /* [4 rows of b][rows] */
    const void *a;                       /* in the order that `arrange` makes */
    int64_t a_pitch;                     /* bytes */
    const uint8_t *codes[OCT_GEMM_ROWS]; /* of b; those past count are not read */
    const float *scales[OCT_GEMM_ROWS];  /* of its blocks; NULL where shift is 0 */
    int64_t count;                       /* elements */
    int64_t ahead; /* bytes to codes that will be read next, in the same order; any number */
    int shift;     /* log2 of a block's length: 0 without scales; 4 of E2M1; 5 or 7 of FP8 */
    int rows;
} oct_stream_call;

/* How one format is streamed. Sums are fp32: at most count additions in an order that depends
 * on nothing but count, and one fused multiply-add for each block. NaN and Inf codes, and such
 * values of a or of a scale, reach every sum they are part of. */
typedef struct oct_streamer {
    void (*dot)(const oct_stream_call *call);
    /* A row of `count` elements, a multiple of OCT_STREAM_PAD, is put into the order and unit
     * in which dot wants it, in place. NULL: it is as dot wants it. */
    void (*arrange)(void *row, int64_t count);
} oct_streamer;

#endif
