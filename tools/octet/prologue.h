/* prologue.h - a prologue in double precision: f(x), and what its backward makes. */
#ifndef OCT_CLI_PROLOGUE_H
#define OCT_CLI_PROLOGUE_H

#include "expect.h"

/* f of the chain's x. */
oct_cli_matrix oct_cli_prologue(const oct_cli_chain *chain);
/* How far fp32 may be from it, before it is rounded. */
oct_cli_matrix oct_cli_prologue_deviation(const oct_cli_chain *chain, bool packed);
/* Whether backward reads an activation's input from 8 bits; then f(x) is `packed` there. */
bool oct_cli_packs(const oct_cli_chain *chain);
/* The gradient that a step of the prologue's backward makes of that of f(x). */
oct_cli_result oct_cli_prologue_grad(const oct_cli_chain *chain, const octet_step *step,
                                     const oct_cli_result *grad, octet_dtype dtype);

#endif
