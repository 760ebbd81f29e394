/* expect.h - a problem's results in double precision, and how far a run may be from them. */
#ifndef OCT_CLI_EXPECT_H
#define OCT_CLI_EXPECT_H

#include "chain.h"

#define OCT_CLI_RESULTS 8

typedef struct oct_cli_result {
    uint8_t name; /* octet_plan_name */
    int plan;     /* of the chain, which makes it */
    oct_cli_matrix want, bound;
} oct_cli_result;

/* The results of a chain in the order of the steps that make them, by exec's threads. Returns
 * how many. */
int oct_cli_expect(oct_cli_result results[OCT_CLI_RESULTS], const oct_cli_chain *chain,
                   const octet_exec *exec);
void oct_cli_result_drop(oct_cli_result *result);

#endif
