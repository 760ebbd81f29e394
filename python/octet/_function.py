"""Linear as an autograd function: one op forward, one op backward, eager and compiled alike."""

from typing import Any, NamedTuple

import torch
from octet import _delayed, _ops, _plans, _problem
from octet._dtypes import dtype_name
from octet.recipe import DelayedScaling
from octet.tensor import QuantizedTensor


class Live(NamedTuple):
    """Tensors that a call reads or moves besides its operands; None where it has none."""

    random: torch.Tensor | None = None  # (base, step) of stochastic rounding
    scale: torch.Tensor | None = None  # delayed scaling, forward
    back_scale: torch.Tensor | None = None  # and backward
    back_history: torch.Tensor | None = None
    cache: QuantizedTensor | None = None  # the quantized weight of the first microbatch
    main_grad: torch.Tensor | None = None


def _gather(
    group: _plans.Group, outs: list[torch.Tensor], dtype: torch.dtype, shape: list[Any]
) -> torch.Tensor:
    """A tensor from the outputs that hold it."""
    if group.quantizer == "none":
        return outs[group.start]
    buffers = outs[group.start : group.start + group.count]
    return QuantizedTensor(buffers, group.quantizer, dtype, shape)


def operands_by_name(
    inp: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, live: Live
) -> dict[str, torch.Tensor | None]:
    """What the plan's names for its arguments stand for."""
    return {
        "input": inp,
        "weight": weight,
        "bias": bias,
        "scale": live.scale,
        "random": live.random,
        "weight.cached": live.cache,
    }


def run_forward(
    problem: str, n: int, tensors: dict[str, torch.Tensor | None]
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """The output; the plan's other outputs; and what backward needs, the block last."""
    signature = _problem.forward_signature(problem)
    args = [tensors[name] for name in signature.args]
    inp = tensors["input"]
    outs = _ops.linear(args, [*inp.shape, n], problem)
    saved = [args[i] if place == "arg" else outs[i] for place, i in signature.saves]
    if signature.has_block:
        saved.append(outs[-1])
    output, others = inp, []
    for group in signature.outs:
        if group.name == "output":
            output = _gather(group, outs, inp.dtype, [*inp.shape[:-1], n])
        else:
            others.extend(outs[group.start : group.start + group.count])
    return output, others, saved


def sort_others(
    problem: str, others: list[torch.Tensor], weight: torch.Tensor
) -> tuple[torch.Tensor | None, QuantizedTensor | None]:
    """The amaxes and the quantized weight among a forward's other outputs."""
    amax = cache = None
    at = 0
    for group in _problem.forward_signature(problem).outs:
        if group.name == "output":
            continue
        found = others[at : at + group.count]
        at += group.count
        if group.name == "amax":
            amax = found[0]
        else:
            cache = QuantizedTensor(found, group.quantizer, weight.dtype, weight.shape)
    return amax, cache


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
    """Gradients in the order of forward's arguments."""
    # A gradient that arrives quantized says so itself, where the op meets it: traced code
    # cannot know which kind it will be.
    words = f" dy={dtype_name(grad.dtype)}"
    signature = _problem.backward_signature(ctx.problem, words)
    saved = ctx.saved_tensors
    sources = {"grad_output": grad, "random": ctx.random, "scale": ctx.back_scale}
    args: list[torch.Tensor] = []
    for source in signature.args:  # by attribute: older Dynamos do not unpack these
        kept = source.name == "saved"
        args.append(saved[source.index] if kept else sources[source.name])
    if signature.has_block:
        args.append(saved[-1])
    if signature.writes_main_grad:
        outs = list(
            _ops.linear_backward_into(ctx.main_grad, args, ctx.sizes, ctx.problem + words)
        )
    else:
        outs = _ops.linear_backward(args, ctx.sizes, ctx.problem + words)
    grads: dict[str, Any] = {}
    for group in signature.outs:
        grads[group.name] = _gather(group, outs, ctx.dtype, ctx.sizes[:-1])
    if ctx.random is not None:
        _ops.advance(ctx.random)
    if ctx.back_scale is not None and "amax" in grads:
        _delayed.update(
            ctx.back_scale, ctx.back_history, [grads["amax"]], ctx.recipe, "grad_output"
        )
    wanted = (grads.get("grad_input"), grads.get("grad_weight"), grads.get("grad_bias"))
    return None, None, None, *wanted, *([None] * len(Live._fields))


class LinearFunction(torch.autograd.Function):
    """y = x w^T + b; the plan says what is kept and what backward computes."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        problem: str,
        recipe: DelayedScaling | None,
        n: int,
        inp: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *live: torch.Tensor | None,
    ) -> tuple[Any, ...]:
        given = Live(*live)
        tensors = operands_by_name(inp, weight, bias, given)
        output, others, saved = run_forward(problem, n, tensors)
        ctx.save_for_backward(*saved)
        ctx.problem, ctx.recipe, ctx.sizes = problem, recipe, [*inp.shape, n]
        ctx.dtype = inp.dtype
        ctx.random, ctx.main_grad = given.random, given.main_grad
        ctx.back_scale, ctx.back_history = given.back_scale, given.back_history
        ctx.mark_non_differentiable(*others)
        return output, *others

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """Gradients in the order of forward's arguments."""
        return _backward(ctx, grad)
