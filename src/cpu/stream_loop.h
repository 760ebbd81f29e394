/* stream_loop.h - what the vector kernels that stream have in common: which rows are taken
 * together, and the walk along them.
 *
 * All of this is inlined into functions of an instruction set. Kinds, numbers of sums and
 * functions are constants there, so nothing is called and nothing is decided in a loop. */
#ifndef OCT_CPU_STREAM_LOOP_H
#define OCT_CPU_STREAM_LOOP_H

#include <string.h>

#include "cpu/gemm.h"

#define OCT_STREAM_INLINE static inline __attribute__((always_inline))

/* What a kernel is made for. */
typedef struct oct_stream_kind {
    octet_dtype format;
    int shift;      /* log2 of a block's length, 0 without scales */
    int rows, cols; /* of a and of b: rows * cols sums fit the registers */
} oct_stream_kind;

/* Some rows of a and of b in a call, and the element p to which the walk has come. */
typedef struct oct_stream_place {
    const char *a;
    const uint8_t *codes[OCT_GEMM_ROWS];
    const float *scales[OCT_GEMM_ROWS];
    int64_t a_pitch, count, ahead, p;
} oct_stream_place;

/* Adds a group of elements from p on to the sums: `codes`, those of row j of b, times a. */
typedef void oct_stream_step(void *sums, const oct_stream_place *in, int j,
                             const uint8_t *codes, const oct_stream_kind of);

/* Rows of a from `row` on by rows of b from `col` on, as many as the kind says. */
typedef void oct_stream_part(const oct_stream_call *call, int row, int col,
                             const oct_stream_kind of);

OCT_STREAM_INLINE oct_stream_place oct_stream_at(const oct_stream_call *call, int row, int col,
                                                 const oct_stream_kind of) {
    oct_stream_place in = {.a = (const char *)call->a + row * call->a_pitch,
                           .a_pitch = call->a_pitch,
                           .count = call->count,
                           .ahead = call->ahead};
    OCT_UNROLL
    for (int j = 0; j < of.cols; j++) {
        in.codes[j] = call->codes[col + j];
        in.scales[j] = call->scales[col + j];
    }
    return in;
}

/* From group to group, of each row of b in turn. The codes of the last one, if it is not whole,
 * are copied, with zeros after them. A group is at most OCT_STREAM_PAD elements. */
OCT_STREAM_INLINE void oct_stream_walk(void *sums, oct_stream_place *in, const int group,
                                       const oct_stream_kind of, oct_stream_step *step) {
    const int64_t bits = of.format == OCTET_E2M1 ? 4 : 8;
    for (; in->p + group <= in->count; in->p += group) {
        OCT_UNROLL
        for (int j = 0; j < of.cols; j++) {
            /* By a shift: if GCC sees that 8 cancels, it loads the codes once for every use. */
            const uint8_t *codes = in->codes[j] + (in->p * bits >> 3);
            __builtin_prefetch(codes + in->ahead);
            if (group * bits / 8 > 64) {
                __builtin_prefetch(codes + in->ahead + 64);
            }
            step(sums, in, j, codes, of);
        }
    }
    if (in->p < in->count) {
        OCT_UNROLL
        for (int j = 0; j < of.cols; j++) {
            uint8_t codes[OCT_STREAM_PAD];
            memset(codes, 0, (size_t)group);
            memcpy(codes, in->codes[j] + in->p * bits / 8,
                   (size_t)((in->count - in->p) * bits + 7) / 8);
            step(sums, in, j, codes, of);
        }
    }
}

/* Four rows of b at a time where their sums are at most `most`, else two. More rows of a than
 * `most` allows are never asked for, and not compiled. */
OCT_STREAM_INLINE void oct_stream_columns(const oct_stream_call *call, int row,
                                          oct_stream_kind of, const int most,
                                          oct_stream_part *part) {
    of.cols = of.rows * 4 <= most ? 4 : 2;
    if (of.rows * of.cols > most) {
        return;
    }
    for (int col = 0; col < OCT_GEMM_ROWS; col += of.cols) {
        part(call, row, col, of);
    }
}

/* The rows of a, at most half of `most` at a time, each number of them by a kernel made for it.
 */
OCT_STREAM_INLINE void oct_stream_rows(const oct_stream_call *call, octet_dtype format,
                                       const int shift, const int most, oct_stream_part *part) {
    for (int row = 0; row < call->rows; row += most / 2) {
        switch (oct_min(most / 2, call->rows - row)) {
        case 1:
            oct_stream_columns(call, row, (oct_stream_kind){format, shift, 1, 0}, most, part);
            break;
        case 2:
            oct_stream_columns(call, row, (oct_stream_kind){format, shift, 2, 0}, most, part);
            break;
        case 3:
            oct_stream_columns(call, row, (oct_stream_kind){format, shift, 3, 0}, most, part);
            break;
        case 4:
            oct_stream_columns(call, row, (oct_stream_kind){format, shift, 4, 0}, most, part);
            break;
        case 5:
            oct_stream_columns(call, row, (oct_stream_kind){format, shift, 5, 0}, most, part);
            break;
        case 6:
            oct_stream_columns(call, row, (oct_stream_kind){format, shift, 6, 0}, most, part);
            break;
        case 7:
            oct_stream_columns(call, row, (oct_stream_kind){format, shift, 7, 0}, most, part);
            break;
        default:
            oct_stream_columns(call, row, (oct_stream_kind){format, shift, 8, 0}, most, part);
        }
    }
}

/* The same for the blocks that FP8 has. */
OCT_STREAM_INLINE void oct_stream_fp8(const oct_stream_call *call, octet_dtype format,
                                      const int most, oct_stream_part *part) {
    switch (call->shift) {
    case 0:
        oct_stream_rows(call, format, 0, most, part);
        break;
    case 5:
        oct_stream_rows(call, format, 5, most, part);
        break;
    default:
        oct_stream_rows(call, format, 7, most, part);
    }
}

#endif
