/* state.h - delayed scaling's state as the ops take it: one tensor a direction.
 *
 * A state is (1 + rows, slots) in float32. Row 0 holds the scales, row 1 the amaxes of the
 * current step, and the rows after it those of earlier steps. Plans have two arguments there,
 * the scales and the amaxes that they raise. The ops take one tensor for both, because a
 * compiler pays for each tensor that a call writes. A plan that only reads scales takes the
 * state as well, or the scales alone. */
#ifndef OCT_TORCH_STATE_H
#define OCT_TORCH_STATE_H

#include "octet/run.h"
#include "octet/signature.h"

enum {
    OCT_STATE_SCALES,
    OCT_STATE_AMAXES,
    OCT_STATE_ROWS
}; /* rows that a state has at least */

/* Whether an argument takes a state, of which it writes the amaxes. */
bool oct_is_state(const octet_port *port);
/* An output that the caller gives memory for, as a port that is written. Amaxes among the
 * outputs are no state, so they get another name. */
octet_port oct_written_output(const octet_port *port);
/* Whether an argument lies in the state that another one takes, so that it takes no tensor. */
bool oct_is_in_state(const octet_plan *plan, int argument);
/* Gives an argument its address. Of one that takes a state that is the state's, and what lies
 * in the state gets its own, too. */
void oct_put_argument(octet_memory *memory, const octet_plan *plan, int argument,
                      const void *data);

/* What a phase takes: octet_phase_regions, without what lies in a state that it writes. */
void oct_phase_tensors(octet_regions *out, const octet_plan *plan, int phase);
/* Signatures by tensors that the ops take, of those by arguments of the plans. The second one
 * needs the forward's signature as it was before. */
void oct_join_state(octet_signature *s);
void oct_join_state_of_backward(octet_backward_signature *s, const octet_signature *forward);

#endif
