/* call.h - one plan on torch's tensors. */
#ifndef OCT_TORCH_CALL_H
#define OCT_TORCH_CALL_H

#include "torch/tensor.h"

/* A call of an op. It owns its text and its tensors; oct_call_free frees them all.
 *   in     the plan's arguments by port, but for the mutable ones, which are in `mutated`, and
 *          then the arenas that earlier plans saved, the forward's before the backward's
 *   given  where not empty: memory for the outputs, by port
 *   out    the outputs by port, but for those that are arguments, and then the saved arena
 *   updates  where not NULL: delayed scaling's state, updated after the run; borrowed */
typedef struct oct_call {
    oct_request request;
    oct_text text;
    oct_tensors in, mutated, given, out;
    const octet_delayed *updates;
} oct_call;

octet_status oct_call_run(oct_call *call, octet_error *err);
void oct_call_free(oct_call *call);

#endif
