/* product.h - products in double precision, with what they may be off by. */
#ifndef OCT_CLI_PRODUCT_H
#define OCT_CLI_PRODUCT_H

#include "numbers.h"

/* An operand: its numbers, how far a run's may be from them, and whether it is read turned. */
typedef struct oct_cli_factor {
    const oct_cli_matrix *own, *deviation;
    bool turned;
} oct_cli_factor;

/* Sums over the inner index in its order, whatever the blocks and the threads: sum of a b, of
 * |a| |b|, and of what a and b may be off by: |a| lb + la |b| + la lb. */
typedef struct oct_cli_product {
    oct_cli_matrix sum, size, deviation;
    int64_t inner;
} oct_cli_product;

/* On exec's threads. Where stderr is a terminal it shows how far it is. */
oct_cli_product oct_cli_multiply(const oct_cli_factor *a, const oct_cli_factor *b,
                                 const octet_exec *exec);

#endif
