"""Linear as an autograd function: one op forward, one op backward, eager and compiled alike."""

from collections.abc import Sequence
from typing import Any

import torch
from octet import _delayed, _ops, _plans, _problem, _wgrad
from octet._recompute import Way
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
    problem: str, sizes: list[Any], tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """The output; buffers for the layer to keep; and what backward needs, the block last."""
    signature = _problem.forward_signature(problem)
    args = [tensors[i] for i in signature.reads]
    if signature.written:
        written = [tensors[i] for i in signature.written]
        op = _ops.linear_into[signature.made]
        outs = _ops.listed(op(written, args, sizes, problem))
    else:
        outs = _ops.linear(args, sizes, problem)
    saved = [tensors[i] if is_arg else outs[i] for is_arg, i in signature.saves]
    if signature.has_block:
        saved.append(outs[-1])
    others: list[torch.Tensor] = []
    for group in signature.others:
        others.extend(outs[group.start : group.start + group.count])
    output = signature.output
    if output.quantizer == "none":
        return outs[output.start], others, saved
    shape = [*sizes[:-2], sizes[-1]]
    return _gather(output, outs, tensors[0].dtype, shape), others, saved


class LinearFunction(torch.autograd.Function):
    """y = x w^T + b; the plan says what is kept and what backward computes."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        problem: str,
        rolls: _delayed.Rule | Way | None,
        n: int,
        *tensors: torch.Tensor,
    ) -> Any:  # noqa: ANN401
        """Forward's tensors, and then those that the layer lends to backward."""
        sizes = [*tensors[0].shape, n]
        output, others, saved = run_forward(problem, sizes, tensors)
        ctx.save_for_backward(*saved)
        ctx.problem, ctx.rolls, ctx.sizes = problem, rolls, sizes
        ctx.lent = tensors[len(_problem.forward_signature(problem).args) :]
        if not others:
            return output
        ctx.mark_non_differentiable(*others)
        return output, *others

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """Gradients in the order of forward's arguments."""
        return _once(ctx, grad) if torch.is_grad_enabled() else _backward(ctx, grad)


def _into(
    ctx: Any,  # noqa: ANN401
    signature: _problem.Backward,
    pool: Sequence[torch.Tensor],
    args: list[torch.Tensor],
) -> Sequence[torch.Tensor]:
    """A backward that writes into what the layer lent: amaxes, main_grad.

    The last one of a step moves the scales, too, by the rule."""
    written, rule = [pool[i] for i in signature.written], None
    if signature.records:
        rolls = ctx.rolls
        rule = rolls.rule_if_last() if isinstance(rolls, Way) else rolls
    text = rule if isinstance(rule, str) else ""
    if text:
        written.insert(0, ctx.lent[0])
    op = _ops.linear_backward_into[signature.made]
    outs = _ops.listed(op(written, args, ctx.sizes, signature.text, text))
    if rule is not None and not text:
        _delayed.update([ctx.lent[0]], [ctx.lent[1]], rule, "grad_output")
    return outs


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
    # A gradient that arrives quantized says so itself, where the op meets it: traced code
    # cannot know which kind it will be.
    signature = _problem.backward_signature(ctx.problem, grad.dtype)
    sizes, lent = ctx.sizes, ctx.lent
    pool = (grad, *ctx.saved_tensors, *lent)
    args = [pool[i] for i in signature.args]
    if signature.written:
        outs = _into(ctx, signature, pool, args)
    else:
        outs = _ops.linear_backward(args, sizes, signature.text)
    if signature.rounds:
        _ops.advance(lent[0])
    if signature.kept is not None:
        kept = [pool[i] if i >= 0 else outs[-1] for i in signature.kept]
        _wgrad.keep(lent[-1], grad, kept, sizes, signature.text)
    grads: list[torch.Tensor | None] = [None] * signature.count
    for at, group in signature.grads:
        grads[at] = (
            outs[group.start]
            if group.quantizer == "none"
            else _gather(group, outs, grad.dtype, sizes[:-1])
        )
    return tuple(grads)


_once = torch.autograd.function.once_differentiable(_backward)
