"""Fuses GPT-2's blocks: each norm with the Conv1D behind it, GELU with the Conv1D behind it."""

from collections.abc import Callable
from typing import Any

import torch
from octet._fuse_group import ACTS, Group, unmade
from octet._fuse_proof import (
    UnprovenError,
    check_conv1d,
    check_layer_norm,
    check_module,
    check_module_but_buffers,
    prove_gpt2_mlp,
    prove_next,
    prove_projections,
)
from octet._fused import ActivatedConv1D, NormedConv1D, Passing, PassingBefore, Turns

# gated function -> the same function without a gate
_PLAIN = {"swiglu": "silu", "geglu": "gelu"}


def is_gpt2(module: Any, part: str) -> bool:  # noqa: ANN401
    cls = type(module)
    return cls.__module__ == "transformers.models.gpt2.modeling_gpt2" and cls.__name__ == part


def _in_place(made: Any, was: torch.nn.Module) -> Any:  # noqa: ANN401
    """Gives a new layer the parameters of the Conv1D that it replaces."""
    made.__dict__["was"] = (was,)
    made._parameters.update(was._parameters)
    was._parameters.update(dict.fromkeys(was._parameters))
    made._forget()
    return made.train(was.training)


def _normed_conv1d(group: Group, norm: torch.nn.Module, layer: Any) -> Any:  # noqa: ANN401
    """The fused layer of a norm and a Conv1D. A holder keeps the norm's parameters."""
    made = unmade(
        NormedConv1D,
        tuple(layer.weight.shape),
        eps=norm.eps,
        bias=layer.bias is not None,
        params_dtype=layer.weight.dtype,
        name=group.label(),
        save=group.save,
    )
    holder = PassingBefore(norm)
    made, turns = _in_place(made, layer), Turns()
    holder.lend(made, {"weight": "layer_norm_weight", "bias": "layer_norm_bias"})
    for part in (holder, made):
        part.settle(group, turns)
    group.decoder._modules[group.norm] = holder
    return made


def fuse_attention(group: Group) -> Callable[[], Any]:
    """Proves that the norm before GPT-2's attention can be fused with its one projection.
    Returns a function that does it."""
    block, attention = group.decoder, group.decoder.attn
    if not is_gpt2(attention, "GPT2Attention") or hasattr(attention, "q_attn"):
        raise UnprovenError(f"attn is a {type(attention).__name__}, or a cross-attention")
    check_module_but_buffers(attention, "attn")
    prove_next(type(block), group.norm, "attn")
    prove_projections(type(attention), ("q_attn", "c_attn"))
    check_conv1d(attention.c_attn, "attn.c_attn", group.owners)
    norm = getattr(block, group.norm)
    check_layer_norm(norm, group.norm, attention.c_attn.weight.shape[0])

    def fuse() -> list[torch.nn.Parameter]:
        weight = attention.c_attn.weight
        attention._modules["c_attn"] = _normed_conv1d(group, norm, attention.c_attn)
        return [weight]

    return fuse


def fuse_mlp(group: Group) -> Callable[[], Any]:
    """Proves that the norm before GPT-2's MLP can be fused with the MLP. Returns a function
    that does it."""
    block, mlp = group.decoder, group.decoder.mlp
    if not is_gpt2(mlp, "GPT2MLP"):
        raise UnprovenError(f"mlp is a {type(mlp).__name__}")
    check_module(mlp, "mlp")
    prove_next(type(block), group.norm, "mlp")
    prove_gpt2_mlp(type(mlp))
    activation = _PLAIN.get(ACTS.get(type(mlp.act).__name__, ""))
    if activation is None:
        raise UnprovenError(f"its activation, {type(mlp.act).__name__}, is none of Octet's")
    check_module(mlp.act, "mlp.act")
    for name in ("c_fc", "c_proj"):
        check_conv1d(getattr(mlp, name), f"mlp.{name}", group.owners)
    norm = getattr(block, group.norm)
    check_layer_norm(norm, group.norm, mlp.c_fc.weight.shape[0])

    def fuse() -> list[torch.nn.Parameter]:
        last, turned = mlp.c_proj, [mlp.c_fc.weight, mlp.c_proj.weight]
        second = unmade(
            ActivatedConv1D,
            tuple(last.weight.shape),
            activation=activation,
            bias=last.bias is not None,
            params_dtype=last.weight.dtype,
            name=group.label(),
            save=group.save,
        )
        mlp._modules["c_fc"] = _normed_conv1d(group, norm, mlp.c_fc)
        act = mlp._modules["act"] = Passing(mlp.act)
        c_proj = mlp._modules["c_proj"] = _in_place(second, last)
        for part in (act, c_proj):
            part.settle(group)
        return turned

    return fuse
