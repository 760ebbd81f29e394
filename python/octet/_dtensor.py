"""Layers whose weight is a DTensor, as ``parallelize_module`` makes them.

Each rank runs the layer on what it holds, as ``parallel_mode`` does. By the placements its
result is:

| weight | input | output | gradient of the input |
|---|---|---|---|
| Shard(0), ColwiseParallel | Replicate | Shard(-1) | Partial |
| Shard(1), RowwiseParallel | Shard(-1) | Partial | Shard(-1) |
| Replicate | Replicate, or Shard of another axis | as the input | as the input |
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from torch.compiler import is_compiling
from torch.torch_version import TorchVersion

import torch
from octet._sharded import is_dtensor
from octet.state.active import current, in_backward

if TYPE_CHECKING:
    from octet.linear import Linear


_COMPILES_UNEVEN = TorchVersion(torch.__version__) >= (2, 13)


class Local(NamedTuple):
    """This rank's parts of weight and bias."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class _Rule(NamedTuple):
    """How outputs and gradients are placed, given a call's placements."""

    output: Any
    grad_input: Any
    grad_weight: Any
    bias: Any  # the placement that the bias must have
    is_partial: bool  # outputs are summed over ranks, so only one rank adds the bias


class _AddOnce(torch.autograd.Function):
    """Adds the bias on one rank only; its gradient is the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, bias: torch.Tensor, adds: bool) -> torch.Tensor:  # noqa: ANN401
        ctx.dtype = bias.dtype
        return y + bias.to(y.dtype) if adds else y.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        rows = grad.reshape(-1, grad.shape[-1])
        return grad, rows.sum(0, dtype=torch.float32).to(ctx.dtype), None


class _ToLocal(torch.autograd.Function):
    """The local part of an unevenly sharded DTensor. torch's own to_local computes the
    gradient's strides as if all ranks held as much as this one."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, placement: Any) -> torch.Tensor:  # noqa: ANN401
        ctx.like = tensor.device_mesh, placement, tensor.shape, tensor.stride()
        return tensor._local_tensor.view_as(tensor._local_tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        from torch.distributed.tensor import DTensor

        mesh, placement, shape, stride = ctx.like
        sizes = {"run_check": False, "shape": shape, "stride": stride}
        return DTensor.from_local(grad.contiguous(), mesh, (placement,), **sizes), None


def _is_uneven(tensor: Any) -> bool:  # noqa: ANN401
    (held,), ranks = tensor.placements, tensor.device_mesh.size()
    return held.is_shard() and tensor.shape[held.dim] % ranks != 0


def _local(tensor: Any, placement: Any) -> torch.Tensor:  # noqa: ANN401
    """This rank's part of a tensor; its gradient gets the given placement."""
    if _is_uneven(tensor) and not is_compiling():
        return _ToLocal.apply(tensor, placement)
    return tensor.to_local(grad_placements=(placement,))


def _check_uneven(layer: "Linear", weight: Any) -> None:  # noqa: ANN401
    """Raises before torch 2.13, whose compiled code gives the gradients of uneven shards a
    wrong shape."""
    if is_compiling() and not _COMPILES_UNEVEN and _is_uneven(weight):
        raise ValueError(
            f"{layer._label()}: weight is {tuple(weight.shape)} by {weight.placements}, which "
            f"{weight.device_mesh.size()} ranks share unevenly, in compiled code of a torch "
            "before 2.13; pad it, or leave the layer out of compiled code"
        )


def _rule(weight: Any, inp: Any) -> _Rule | None:  # noqa: ANN401
    """The rule for these placements; None if there is none."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if weight.device_mesh != inp.device_mesh or weight.device_mesh.ndim != 1:
        return None
    (held,), (given,), last = weight.placements, inp.placements, inp.dim() - 1
    if isinstance(given, Shard) and given.dim < 0:
        given = Shard(given.dim + inp.dim())
    if held == Shard(0) and given == Replicate():
        return _Rule(Shard(last), Partial(), held, held, False)
    if held == Shard(1) and given == Shard(last):
        return _Rule(Partial(), given, held, Replicate(), True)
    if held == Replicate() and given == Replicate():
        return _Rule(given, given, held, held, False)
    if held == Replicate() and type(given) is Shard and given != Shard(last):
        return _Rule(given, given, Partial(), held, False)
    return None


def _refuse(layer: "Linear", weight: Any, inp: Any, bias: Any, asked: Any) -> None:  # noqa: ANN401
    """Raises for placements that have no rule; names the fix."""
    label = layer._label()
    for name, found in (("weight", weight), ("input", inp), ("bias", bias)):
        if found is not None and not is_dtensor(found):
            raise ValueError(
                f"{label}: {name} is a {type(found).__name__} beside DTensors; make it one "
                "(parallelize_module with ColwiseParallel or RowwiseParallel does)"
            )
    for option in ("fuse_wgrad_accumulation", "delay_wgrad_compute"):
        if getattr(layer, option):
            raise ValueError(
                f"{label}: {option} is not available where the weight is a DTensor; leave it "
                "out, or use parallel_mode"
            )
    if asked[1] or asked[2]:
        raise ValueError(
            f"{label}: fp8_output and fp8_grad make quantized tensors, which DTensors do not "
            "hold; leave them out, or use parallel_mode"
        )
    if len(layer._parts) > 1:
        raise ValueError(
            f"{label}: parameters_split joins weights, which DTensors of ranks' parts do not "
            "allow; leave it out"
        )


def _bias_once(y: torch.Tensor, bias: Any) -> torch.Tensor:  # noqa: ANN401
    return _AddOnce.apply(y, bias.to_local(), bias.device_mesh.get_local_rank() == 0)


def run(layer: "Linear", inp: Any, *asked: Any) -> Any:  # noqa: ANN401
    """Runs a layer whose weight is a DTensor."""
    from torch.distributed.tensor import DTensor

    weight, bias = layer._whole("weight"), layer._whole("bias")
    region = current()
    if not in_backward() and not region.enabled and not region.calibrating:
        return layer._run_plain(inp, weight, bias)  # torch's own rules apply
    _refuse(layer, weight, inp, bias, asked)
    rule = _rule(weight, inp)
    if rule is None or (bias is not None and bias.placements != (rule.bias,)):
        given = "" if bias is None else f", bias {bias.placements}"
        raise ValueError(
            f"{layer._label()}: weight is {weight.placements}, input {inp.placements}{given}"
            f" on a mesh of {weight.device_mesh.ndim} dimensions; there are rules for those of "
            "ColwiseParallel, of RowwiseParallel and for a replicated weight, on a mesh of one "
            "dimension: redistribute them"
        )
    _check_uneven(layer, weight)
    layer._unwrap_state()
    late = bias is not None and rule.is_partial and not layer.return_bias
    own = None
    if bias is not None and not late:
        of_bias = rule.bias if rule.is_partial else rule.grad_weight
        own = _local(bias, of_bias)
    layer._local = Local(_local(weight, rule.grad_weight), own)
    try:
        made = layer._run(_local(inp, rule.grad_input), *asked)
    finally:
        layer._local = None
    y = made[0] if layer.return_bias else made
    if late:
        y = _bias_once(y, bias)
    shape = torch.Size((*inp.shape[:-1], weight.shape[0]))
    stride = torch.empty(shape, device="meta").stride()
    y = DTensor.from_local(
        y, weight.device_mesh, (rule.output,), run_check=False, shape=shape, stride=stride
    )
    return (y, bias) if layer.return_bias else y
