/* ops.h - the ops: one row each, with its schema. */
#ifndef OCT_TORCH_OPS_H
#define OCT_TORCH_OPS_H

#include "torch/api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, schema). Texts are those of torch/problem.h. A list that an op returns holds the
 * plan's outputs in order, without those that are arguments, and then the block it saves; a
 * list that it takes holds the plan's arguments and then the blocks that earlier plans saved.
 * Ops that write an argument return a fixed number of tensors, empty where there is none. */
#define OCT_TORCH_OPS(X)                                                                       \
    X(quantize, "quantize(Tensor input, Tensor[] live, str text) -> Tensor[]")                 \
    X(quantize_into,                                                                           \
      "quantize_into(Tensor(a!)[] buffers, Tensor input, Tensor[] live, str text) -> ()")      \
    X(dequantize, "dequantize(Tensor[] buffers, SymInt[] sizes, str text) -> Tensor")          \
    X(linear, "linear(Tensor[] args, SymInt[] sizes, str problem) -> Tensor[]")                \
    X(linear_backward,                                                                         \
      "linear_backward(Tensor[] args, SymInt[] sizes, str problem) -> Tensor[]")               \
    X(linear_backward_into,                                                                    \
      "linear_backward_into(Tensor(a!) main_grad, Tensor[] args, SymInt[] sizes, "             \
      "str problem) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")                              \
    X(linear_wgrad, "linear_wgrad(Tensor[] args, SymInt[] sizes, str problem) -> Tensor[]")    \
    X(linear_wgrad_into,                                                                       \
      "linear_wgrad_into(Tensor(a!) main_grad, Tensor[] args, SymInt[] sizes, "                \
      "str problem) -> ()")                                                                    \
    X(advance, "advance(Tensor(a!) random) -> ()")                                             \
    X(delayed_record, "delayed_record(Tensor(a!) history, Tensor amax) -> ()")                 \
    X(delayed_update,                                                                          \
      "delayed_update(Tensor(a!) scale, Tensor(b!) history, Tensor[] amaxes, str recipe, "     \
      "str role) -> ()")

#define OCT_TORCH_INTO_OUTPUTS 5 /* tensors that linear_backward_into returns */

/* Takes the inputs off the stack, whatever happens, and puts the outputs there. */
#define X(name, schema) octet_status oct_op_##name(oct_torch_value *stack, octet_error *err);
OCT_TORCH_OPS(X)
#undef X

/* The kernels in the order of the list: they call the ops and throw where those fail. */
extern const oct_torch_kernel oct_torch_kernels[];

/* Finds torch's functions in the library at `path` and registers the ops. Once per process. */
octet_status oct_torch_register(const char *path, octet_error *err);

#ifdef __cplusplus
}
#endif

#endif
