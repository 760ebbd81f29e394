/* check.h - a plan that somebody else made: what its two halves share. */
#ifndef OCT_PLAN_CHECK_H
#define OCT_PLAN_CHECK_H

#include "plan/build.h"

/* Ranks of a tensor-parallel group: dimensions hold tp * 128 in 16 bits. */
#define OCT_MOST_RANKS 256

/* A plan whose counts and indices are sound, so that all of them may be followed. */
typedef struct oct_checking {
    const octet_plan *plan;
    octet_error *err;
    int step; /* that is looked at */
} oct_checking;

/* Whether the step's operands fit together: kernels read and write by their rows and columns.
 */
octet_status oct_check_operands(const oct_checking *at);

/* Says what is wrong with the step. */
octet_status oct_check_failed(const oct_checking *at, const char *why);

#endif
