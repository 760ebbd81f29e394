/* product.h - of a product of a plan: what it copies into rows of whole 16 bytes, and chunks.
 */
#ifndef OCT_PLAN_PRODUCT_H
#define OCT_PLAN_PRODUCT_H

#include "octet.h"

/* Its operands, at the sizes that the plan is bound to. */
bool oct_step_pads_operands(const octet_plan *plan, const octet_step *gemm);
/* Whether it has more rows or columns than dst, and dst comes of sums. */
bool oct_step_pads_sums(const octet_plan *plan, const octet_step *gemm);

/* Whether a step is the second or a later chunk of a product: all chunks read one note. */
static inline bool oct_is_later_chunk(const octet_step *step) {
    return step->chunk != OCTET_ABSENT && step->chunk;
}

#endif
