"""Linear as an autograd function: one op forward, one op backward, eager and compiled alike."""

from collections.abc import Sequence
from typing import Any

import torch
from octet import _ops, _plans, _problem, _wgrad
from octet.tensor import QuantizedTensor


def _gather(
    group: _plans.Group, outs: Sequence[torch.Tensor], dtype: torch.dtype, shape: Sequence[Any]
) -> torch.Tensor:
    """A tensor from the outputs that hold it."""
    if group.quantizer == "none":
        return outs[group.start]
    buffers = outs[group.start : group.start + group.count]
    return QuantizedTensor(buffers, group.quantizer, dtype, shape)


def run_forward(
    problem: str, n: int, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """The output; buffers for the layer to keep; and what backward needs, the block last.

    `tensors` are the plan's arguments and, where it measures amaxes, the history for them."""
    signature = _problem.forward_signature(problem)
    inp, count = tensors[0], len(signature.args)
    args = list(tensors[:count])
    sizes = [*inp.shape, n]
    outs = _ops.linear(args, sizes, problem)
    if signature.amax >= 0:
        _ops.delayed_record(tensors[count], outs[signature.amax])
    saved = [args[i] if is_arg else outs[i] for is_arg, i in signature.saves]
    if signature.has_block:
        saved.append(outs[-1])
    others: list[torch.Tensor] = []
    for group in signature.others:
        others.extend(outs[group.start : group.start + group.count])
    output = signature.output
    if output.quantizer == "none":
        return outs[output.start], others, saved
    sizes[-2:] = [n]
    return _gather(output, outs, inp.dtype, sizes), others, saved


class LinearFunction(torch.autograd.Function):
    """y = x w^T + b; the plan says what is kept and what backward computes."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        problem: str,
        rolls: bool,
        n: int,
        *tensors: torch.Tensor,
    ) -> Any:  # noqa: ANN401
        """Forward's tensors, and then those that the layer lends to backward."""
        output, others, saved = run_forward(problem, n, tensors)
        ctx.save_for_backward(*saved)
        inp = tensors[0]
        ctx.problem, ctx.rolls = problem, rolls
        ctx.sizes, ctx.dtype = [*inp.shape, n], inp.dtype
        ctx.count, ctx.lent = len(tensors), tensors[_problem.forward_signature(problem).count :]
        if not others:
            return output
        ctx.mark_non_differentiable(*others)
        return output, *others

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """Gradients in the order of forward's arguments."""
        return _once(ctx, grad) if torch.is_grad_enabled() else _backward(ctx, grad)


def _record(
    rolls: bool, scale: torch.Tensor, history: torch.Tensor, amax: torch.Tensor, recipe: str
) -> None:
    """Records the amaxes of a backward; the last one of a step moves the scales."""
    if rolls:
        _ops.delayed_update(scale, history, [amax], recipe, "grad_output")
    else:
        _ops.delayed_record(history, amax)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
    # A gradient that arrives quantized says so itself, where the op meets it: traced code
    # cannot know which kind it will be.
    signature = _problem.backward_signature(ctx.problem, grad.dtype)
    lent = ctx.lent
    pool = (grad, *ctx.saved_tensors, *lent)
    args = [pool[i] for i in signature.args]
    if signature.main_grad:
        outs = _ops.linear_backward_into(lent[-1], args, ctx.sizes, signature.text)
    else:
        outs = _ops.linear_backward(args, ctx.sizes, signature.text)
    if signature.rounds:
        _ops.advance(lent[0])
    if signature.amax >= 0:
        _record(ctx.rolls, lent[0], lent[1], outs[signature.amax], signature.recipe)
    if signature.kept is not None:
        kept = [pool[i] if i >= 0 else outs[-1] for i in signature.kept]
        _wgrad.keep(lent[-1], grad, kept, ctx.sizes, signature.text)
    grads: list[torch.Tensor | None] = [None] * (3 + ctx.count)
    for at, group in signature.grads:
        grads[at] = _gather(group, outs, ctx.dtype, ctx.sizes[:-1])
    return tuple(grads)


_once = torch.autograd.function.once_differentiable(_backward)
