/* chain.h - the plans of a problem on one rank, with data and memory to run them. */
#ifndef OCT_CLI_CHAIN_H
#define OCT_CLI_CHAIN_H

#include "numbers.h"

#define OCT_CLI_PLANS 3

typedef struct oct_cli_chain {
    octet_linear_backward_args args;
    octet_plan plans[OCT_CLI_PLANS]; /* forward, and backward and wgrad where there are any */
    octet_memory memory[OCT_CLI_PLANS];
    int count;
    oct_cli_matrix x, w, b, dy;          /* b is 1 x N; a gated x has 2K columns */
    oct_cli_matrix gamma, beta;          /* a norm's, 1 x K */
    oct_cli_matrix f;                    /* what the products take for an input: f(x), or x */
    oct_cli_matrix main_grad;            /* as it was before, */
    oct_cli_matrix bias_main_grad;       /* as was this, 1 x N */
    float scale[2][OCTET_FORWARD_SLOTS]; /* delayed scaling's, forward and backward */
    float amax[2][OCTET_FORWARD_SLOTS];  /* likewise, where the plans raise them */
    int64_t seed;                        /* stochastic rounding */
    void **blocks;                       /* everything allocated */
    int block_count;
} oct_cli_chain;

/* Reads the problem, plans it and makes what it needs. Drop it in any case. */
octet_status oct_cli_chain_make(oct_cli_chain *chain, const char *problem, uint32_t threads,
                                octet_error *err);
void oct_cli_chain_drop(oct_cli_chain *chain);

/* The steps that a rank does by itself: every phase of one plan, without the collectives. */
octet_status oct_cli_chain_run(const oct_cli_chain *chain, int plan, const octet_exec *exec,
                               octet_error *err);
bool oct_cli_chain_has_collectives(const oct_cli_chain *chain);

/* The scale of delayed scaling for a role whose tensor has this amax, with headroom. */
float oct_cli_chain_scale(const oct_cli_chain *chain, octet_role role, double amax);

/* Makes the pool that --threads asks for and puts it into exec. Returns OCT_CLI_OK, or another
 * status after saying why. */
int oct_cli_threads(octet_exec *exec, octet_pool **pool, const oct_cli_command *self,
                    const char *text);

/* Memory of the chain, aligned as blocks are. */
void *oct_cli_chain_memory(oct_cli_chain *chain, int64_t bytes);

#endif
