/* decode_loop.h - what the vector kernels that decode have in common: the formats and dtypes
 * that each is made for, and the walk along codes.
 *
 * All of this is inlined into functions of an instruction set, as in stream_loop.h. */
#ifndef OCT_CPU_DECODE_LOOP_H
#define OCT_CPU_DECODE_LOOP_H

#include <string.h>

#include "cpu/isa.h"

#define OCT_DECODE_INLINE static inline __attribute__((always_inline))

/* A tile of codes of a format, times their factors, into a dtype. */
typedef void oct_decode_tile(const oct_tile *out, const oct_bytes *codes, const oct_factors *by,
                             octet_dtype format, octet_dtype dtype);

OCT_DECODE_INLINE void oct_decode_format(const oct_tile *out, const oct_bytes *codes,
                                         const oct_factors *by, octet_dtype format,
                                         oct_decode_tile *tile) {
    switch (out->dtype) {
    case OCTET_F32:
        tile(out, codes, by, format, OCTET_F32);
        break;
    case OCTET_BF16:
        tile(out, codes, by, format, OCTET_BF16);
        break;
    default:
        tile(out, codes, by, format, OCTET_F16);
    }
}

/* By a kernel that is made for this format and dtype. */
OCT_DECODE_INLINE void oct_decode_any(const oct_tile *out, const oct_bytes *codes,
                                      const oct_factors *by, octet_dtype format,
                                      oct_decode_tile *tile) {
    switch (format) {
    case OCTET_E4M3:
        oct_decode_format(out, codes, by, OCTET_E4M3, tile);
        break;
    case OCTET_E5M2:
        oct_decode_format(out, codes, by, OCTET_E5M2, tile);
        break;
    default:
        oct_decode_format(out, codes, by, OCTET_E2M1, tile);
    }
}

/* Decodes elements from c on, as many as the instruction set takes at a time. */
typedef void oct_decode_put(const oct_decode_call *call, const uint8_t *codes, int64_t c,
                            octet_dtype format);

/* `width` elements at a time; the last ones, if they are fewer, are copied with zeros after
 * them. A whole group is at most 64 bytes. */
OCT_DECODE_INLINE void oct_decode_walk(const oct_decode_call *call, octet_dtype format,
                                       const int64_t bits, const int width,
                                       oct_decode_put *put) {
    int64_t c = 0;
    for (; c + width <= call->count; c += width) {
        put(call, call->codes + c * bits / 8, c, format);
    }
    if (c < call->count) {
        uint8_t tail[64] = {0};
        memcpy(tail, call->codes + c * bits / 8, (size_t)((call->count - c) * bits + 7) / 8);
        put(call, tail, c, format);
    }
}

#endif
