/* ops.h - the ops: one row each, with its schema. */
#ifndef OCT_TORCH_OPS_H
#define OCT_TORCH_OPS_H

#include "torch/api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, schema). Texts are described in torch/request.h. A list that an op returns holds the
 * plan's outputs in order, without those that are arguments, then the arena that it saves. A
 * list that an op takes holds the plan's arguments, then the arenas that earlier plans saved.
 * linear_phase runs one phase of one of Linear's plans (0 forward, 1 backward, 2 wgrad). It
 * takes what oct_phase_tensors lists, in that order: what is written, and what is only read.
 * `after` is ignored: it makes a compiler compute these tensors first.
 * linear_seeded is linear. Its argument seed, which only backward reads, makes a compiler draw
 * the seed in forward.
 * States are described in torch/state.h; all are on one device. A rule is a role and a delayed
 * recipe: "input delayed:history=16". */
#define OCT_TORCH_OPS(X)                                                                       \
    X(quantize, "quantize(Tensor input, Tensor[] live, str text) -> Tensor[]")                 \
    X(quantize_into,                                                                           \
      "quantize_into(Tensor(a!)[] buffers, Tensor input, Tensor[] live, str text) -> ()")      \
    X(dequantize, "dequantize(Tensor[] buffers, SymInt[] sizes, str text) -> Tensor")          \
    X(linear, "linear(Tensor[] args, SymInt[] sizes, str words) -> Tensor[]")                  \
    X(linear_seeded,                                                                           \
      "linear_seeded(Tensor[] args, Tensor seed, SymInt[] sizes, str words) -> Tensor[]")      \
    X(linear_backward,                                                                         \
      "linear_backward(Tensor[] args, SymInt[] sizes, str words) -> Tensor[]")                 \
    X(linear_wgrad, "linear_wgrad(Tensor[] args, SymInt[] sizes, str words) -> Tensor[]")      \
    X(linear_wgrad_into,                                                                       \
      "linear_wgrad_into(Tensor(a!) main_grad, Tensor[] args, SymInt[] sizes, "                \
      "str words) -> ()")                                                                      \
    X(linear_phase,                                                                            \
      "linear_phase(Tensor(a!)[] written, Tensor[] read, Tensor[] after, SymInt[] sizes, "     \
      "str words, int plan, int phase) -> ()")                                                 \
    X(delayed_record, "delayed_record(Tensor(a!) state, Tensor amax) -> ()")                   \
    X(delayed_update, "delayed_update(Tensor(a!)[] states, str rule) -> ()")

/* X(name, arguments): the ops whose plans write arguments. `written` holds these in the plan's
 * order; for amaxes it holds the state, which has the scales, too. If `rule`, a delayed
 * recipe's text, is not empty, backward also updates the scales by it: the state comes first in
 * `written`. torch does not allow an op that writes arguments to return a list. So each has an
 * overload for every number of outputs: linear_into.none, .one, .two, and so on. */
#define OCT_TORCH_INTO_OPS(X)                                                                  \
    X(linear_into, "Tensor(a!)[] written, Tensor[] args, SymInt[] sizes, str words")           \
    X(linear_backward_into,                                                                    \
      "Tensor(a!)[] written, Tensor[] args, SymInt[] sizes, str words, str rule")

#define OCT_TORCH_INTO_OUTPUTS 8 /* the most outputs of an op that writes arguments */
/* The names of its overloads, by the number of outputs. */
extern const char *const oct_torch_overloads[OCT_TORCH_INTO_OUTPUTS + 1];

/* Takes the inputs off the stack, whatever happens, and puts the outputs there. */
#define X(name, schema) octet_status oct_op_##name(oct_torch_value *stack, octet_error *err);
OCT_TORCH_OPS(X)
#undef X

#define X(name, arguments)                                                                     \
    octet_status oct_op_##name(oct_torch_value *stack, uint64_t outputs, octet_error *err);
OCT_TORCH_INTO_OPS(X)
#undef X

/* The state of grad_output. Its scales are updated by the rule, after its amaxes were recorded.
 */
octet_status oct_take_update(octet_delayed *out, oct_torch_tensor *state, const char *rule,
                             octet_error *err);

/* The kernels in the order of the lists. They call the ops and throw if those fail. */
extern const oct_torch_kernel oct_torch_kernels[];
extern const oct_torch_kernel oct_torch_into_kernels[];

/* Finds torch's functions in the library at `path` and registers the ops. Errors of ops reach
 * Python through `set_error`. Call it once per process. */
octet_status oct_torch_register(const char *path, oct_torch_set_error set_error,
                                octet_error *err);

#ifdef __cplusplus
}
#endif

#endif
