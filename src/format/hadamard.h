/* hadamard.h - the random Hadamard transform of 16 numbers, in the one order all devices use.
 *
 * y_c = sum over r of (1/4) sign_r (-1)^popcount(r & c) x_r: an orthonormal matrix, symmetric
 * but for the signs. Every operation is a float's, to nearest, in the default environment. */
#ifndef OCT_FORMAT_HADAMARD_H
#define OCT_FORMAT_HADAMARD_H

#include "octet.h"

#define OCT_HADAMARD_ROWS 16

/* Bit r set: number r changes its sign before the transform. */
static inline uint32_t oct_hadamard_signs(const octet_quantizer *q) {
    return q->hadamard == OCTET_HADAMARD_SIGNED ? 0xd7e8u : 0u;
}

/* What number r is multiplied by before the stages. */
static inline float oct_hadamard_weight(uint32_t signs, int r) {
    return signs >> r & 1u ? -0.25f : 0.25f;
}

/* Four stages at distance 1, 2, 4, 8: (u, v) becomes (u + v, u - v). */
static inline void oct_hadamard_stages(float x[16]) {
    for (int distance = 1; distance < 16; distance *= 2) {
        for (int i = 0; i < 16; i++) {
            if ((i & distance) == 0) {
                float u = x[i], v = x[i + distance];
                x[i] = u + v;
                x[i + distance] = u - v;
            }
        }
    }
}

/* Signs and the quarter first, then the stages. */
static inline void oct_hadamard(float x[16], uint32_t signs) {
    for (int r = 0; r < 16; r++) {
        x[r] *= oct_hadamard_weight(signs, r);
    }
    oct_hadamard_stages(x);
}

/* The inverse: the quarter, the stages, then the signs. */
static inline void oct_hadamard_undo(float x[16], uint32_t signs) {
    for (int c = 0; c < 16; c++) {
        x[c] *= 0.25f;
    }
    oct_hadamard_stages(x);
    for (int r = 0; r < 16; r++) {
        x[r] = signs >> r & 1u ? -x[r] : x[r];
    }
}

#endif
