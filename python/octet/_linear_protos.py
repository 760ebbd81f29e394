"""A Linear's calls without data: descriptions of what each takes, returns, saves and works
in."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from octet import _C, _plans, _signatures
from octet.proto import TensorProto
from octet.quantizers import from_text


class Saved(NamedTuple):
    """A tensor saved for a later call."""

    proto: TensorProto
    alias: str | None  # the argument or output that it aliases; None if it has its own memory


class CallProtos(NamedTuple):
    """One call: its arguments and outputs by name, what it saves, and its workspace."""

    arguments: dict[str, TensorProto]
    outputs: dict[str, TensorProto]
    aliases: dict[str, str]  # output -> the argument that it aliases
    saved: tuple[Saved, ...]
    workspace: TensorProto


class LinearProtos(NamedTuple):
    """A Linear's forward, its backward if there is one, and its wgrad if that is delayed."""

    forward: CallProtos
    backward: CallProtos | None
    wgrad: CallProtos | None


class Shapes(NamedTuple):
    """What plans leave open: sizes, and the high-precision dtypes of quantized tensors."""

    sizes: Sequence[int]  # the input's sizes, then N
    dtype: torch.dtype
    weight_dtype: torch.dtype
    device: torch.device

    def logical(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """The high-precision shape and dtype of a quantized tensor."""
        *leading, k, n = self.sizes
        if "weight" in name:
            return (n, k), self.weight_dtype
        return (*leading, k if "input" in name else n), self.dtype


def _tensor(group: _plans.Group, ports: Sequence[_plans.Port], at: Shapes) -> TensorProto:
    if group.quantizer != "none":
        shape, dtype = at.logical(group.name)
        return TensorProto(shape, dtype, from_text(group.quantizer), device=at.device)
    port = ports[group.start]
    shape = _plans.shape(port.dims, _plans.axes("linear", at.sizes))
    return TensorProto(shape, port.dtype, device=at.device)


def _tensors(ports: Sequence[_plans.Port], at: Shapes) -> dict[str, TensorProto]:
    return {group.name: _tensor(group, ports, at) for group in _plans.groups(ports)}


def _bytes(count: int, at: Shapes) -> TensorProto:
    return TensorProto((count,), torch.uint8, device=at.device)


def _saved(plan: _plans.Plan, found: dict[str, TensorProto], at: Shapes) -> tuple[Saved, ...]:
    """The saved tensors that alias others, then the arena of the rest."""
    names = []
    for place, port in plan.saved:
        if place in ("arg", "out"):
            names.append((plan.args if place == "arg" else plan.outs)[port].name)
    saved = [Saved(found[name], name) for name in dict.fromkeys(names)]
    if plan.arena:
        size = _plans.arena_bytes(plan, _plans.axes("linear", at.sizes))
        saved.append(Saved(_bytes(size, at), None))
    return tuple(saved)


def _call(kind: str, text: str, at: Shapes) -> CallProtos:
    plan = _plans.describe(kind, text)
    arguments, outputs = _tensors(plan.args, at), _tensors(plan.outs, at)
    return CallProtos(
        arguments,
        outputs,
        {port.name: plan.args[port.alias].name for port in plan.outs if port.alias >= 0},
        _saved(plan, {**arguments, **outputs}, at),
        _bytes(_C.measure(kind, text, tuple(at.sizes))[2], at),
    )


def linear_protos(words: str, at: Shapes) -> LinearProtos:
    """The protos of a call's forward and backward at these sizes."""
    forward = _call("linear", words, at)
    if not _signatures.forward_signature(words).has_backward:
        return LinearProtos(forward, None, None)
    text = _signatures.backward_signature(words, at.dtype).text
    return LinearProtos(
        forward,
        _call("linear_backward", text, at),
        _call("linear_wgrad", text, at)
        if _signatures.forward_signature(words).delays
        else None,
    )
