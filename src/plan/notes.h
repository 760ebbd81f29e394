/* notes.h - which cast leaves a note for which product: a pure function of a plan. */
#ifndef OCT_PLAN_NOTES_H
#define OCT_PLAN_NOTES_H

#include "octet.h"

#define OCT_NOTES 2 /* products that a cast leaves notes for, at most */

/* Of each GEMM, by step, the QUANTIZE that leaves it a note; OCTET_ABSENT: none could. A cast's
 * notes lie in its scratch in the order of their GEMMs. */
void oct_note_makers(uint8_t makers[OCTET_PLAN_STEPS], const octet_plan *plan);
/* The amaxes that a product's elements lack, as bits of buffers. */
uint64_t oct_note_factors(const octet_plan *plan, const octet_step *gemm);

#endif
