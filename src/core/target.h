/* target.h - what a planner may ask of a device.
 *
 * Each device answers in a file of its own, src/<device>/target.c. All answers are functions of
 * values: to plan for a GPU takes neither the GPU nor its driver. A planner asks here, and
 * never looks at a device's kind or architecture. */
#ifndef OCT_CORE_TARGET_H
#define OCT_CORE_TARGET_H

#include "octet.h"

/* Products that are invariant (octet_step) are not asked about: every device multiplies any two
 * operands so from their bytes as they are, in either direction, and needs no copies. By which
 * kernel, in which order each sum takes its terms, and in which format follows from the kinds
 * of the operands, and on a CPU from the values of the row and of b; never from dst's rows. */

/* A product at its sizes, as far as the memory that it works in depends on it. */
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
    /* OCTET_UNSUPPORTED where the device is known and runs nothing; NULL: every one does. */
    octet_status (*check)(const octet_device *device, octet_error *err);
    /* How products of a scheme are made: natively, from its bytes as they are; from folded
     * bytes, which are FP8 in blocks of 128 then; or emulated, from what the bytes decode to,
     * exactly. */
    octet_support (*supports)(const octet_device *device, octet_scheme scheme);
    /* The same of two operands, plain ones among them. */
    octet_support (*multiplies)(const octet_device *device, const octet_quantizer *a,
                                const octet_quantizer *b);
    /* Whether products read a transposable quantizer's bytes of one direction where those of
     * the other one are called for. Then nobody has to make the others. */
    bool (*reads_across)(const octet_device *device, octet_scheme scheme);
    /* Whether products read the scheme's block scales in the order of tensor cores. */
    bool (*reads_swizzled)(const octet_device *device, octet_scheme scheme);
    /* Native products of the scheme take operands and dst in whole rows of row_bytes, and outer
     * indices in multiples of this many; a copy is padded where they are not. 0: any sizes. */
    uint16_t (*lines)(octet_scheme scheme);
    /* Whether a cast of a prologue's result computes it while it reads x, and so does the amax
     * before it where the scheme has one scale a tensor: then the result is written nowhere.
     * x has that dtype. Not asked where an amax lies above block scales. */
    bool (*applies)(const octet_device *device, const octet_quantizer *q, uint8_t dtype,
                    uint8_t prologue);
    /* Bytes of memory that a product works in, where its device lays out what it wants; 0: it
     * needs none. workers: at least 1. False: more than 64 bits count. */
    bool (*scratch)(int64_t *bytes, const octet_device *device,
                    const oct_target_product *product, int64_t workers);

    uint16_t workers;     /* of the caller's that products have memory for, at most */
    uint16_t row_bytes;   /* rows of whole so many bytes are what products read best; 1: any */
    uint16_t amaxes;      /* floats that a tensor's amax has: the maxima of so many parts */
    uint16_t summed_rows; /* columns are summed over so many rows, then joined; 0: at once */
    uint8_t note_floats;  /* that a cast leaves for a product of tensors that have amaxes */
} oct_target;

/* The target of a device; its rows are in run/devices.c. A kind that is none is the CPU. */
const oct_target *oct_target_of(const octet_device *device);

#endif
