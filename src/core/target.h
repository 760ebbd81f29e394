/* target.h - what a planner may ask about a device. Each device answers in its own file,
 * src/<device>/target.c. All answers are pure functions of values, so planning for a GPU needs
 * neither the GPU nor its driver. The planner asks here, and never looks at a device's kind or
 * architecture. */
#ifndef OCT_CORE_TARGET_H
#define OCT_CORE_TARGET_H

#include "octet.h"

/* Invariant products (octet_step) are not asked about. Every device can multiply any two
 * operands in this way, directly from their bytes, in either direction, without copies. The
 * kernel, the order of each sum and its format depend on the kinds of the operands (on a CPU
 * also on the values of the row and of b), never on the number of dst's rows. */

/* A product with its sizes, as far as its scratch memory depends on them. */
typedef struct oct_target_product {
    const octet_quantizer *a, *b; /* of its operands */
    uint8_t gemm;                 /* octet_gemm */
    uint8_t a_use, b_use;         /* octet_use */
    octet_support support;        /* how they are multiplied */
    bool invariant;               /* a row of dst does not depend on how many there are */
    uint8_t dst, bias;            /* octet_dtype; bias NONE: there is none */
    int64_t rows, cols, depth;    /* of dst; and of the sums */
} oct_target_product;

typedef struct oct_target {
    /* OCTET_UNSUPPORTED if Octet cannot run on this device at all; NULL: it can on all. */
    octet_status (*check)(const octet_device *device, octet_error *err);
    /* How products of a scheme are computed: natively, directly from its bytes; folded, from
     * FP8 bytes in blocks of 128; or emulated, from the exactly decoded values. */
    octet_support (*supports)(const octet_device *device, octet_scheme scheme);
    /* The same for two operands, which may be plain. */
    octet_support (*multiplies)(const octet_device *device, const octet_quantizer *a,
                                const octet_quantizer *b);
    /* Whether products can read one direction's bytes of a transposable quantizer in place of
     * the other direction's. Then the others need not be made. */
    bool (*reads_across)(const octet_device *device, octet_scheme scheme);
    /* Whether products read the scheme's block scales in the order of tensor cores. */
    bool (*reads_swizzled)(const octet_device *device, octet_scheme scheme);
    /* Native products of the scheme need operands and dst in whole rows of row_bytes, and outer
     * sizes (dst's rows and columns) in multiples of this number; otherwise a padded copy is
     * made. 0: any sizes. */
    uint16_t (*outer_multiple)(octet_scheme scheme);
    /* Whether a cast can compute the prologue while it reads x, so that the prologue's result
     * is not stored. If the scheme has one scale for the tensor, the amax before the cast must
     * do the same. x has this dtype. Not asked for schemes with an amax above block scales. */
    bool (*applies)(const octet_device *device, const octet_quantizer *q, uint8_t dtype,
                    uint8_t prologue);
    /* The bytes of scratch memory that a product needs; 0: none. workers: at least 1. False:
     * the number does not fit in 64 bits. */
    bool (*scratch)(int64_t *bytes, const octet_device *device,
                    const oct_target_product *product, int64_t workers);

    uint16_t workers;     /* the most workers of the caller that products use */
    uint16_t row_bytes;   /* products read rows of a multiple of this many bytes best; 1: any */
    uint16_t amaxes;      /* floats of a tensor's amax: the maxima of this many shares */
    uint16_t summed_rows; /* column sums are first taken over this many rows, then added; 0: in
                           * one go */
    uint8_t note_floats;  /* floats that a cast leaves for a product of tensors with amaxes */
} oct_target;

/* The target of a device; the table is in run/devices.c. An unknown kind gives the CPU's. */
const oct_target *oct_target_of(const octet_device *device);

#endif
