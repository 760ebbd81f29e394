"""Finds the norms and linear layers of a model that can become one layer, and fuses them.

A norm and the layers behind it are fused if their classes are known, and if the source of their
``forward`` shows that only these layers read the norm's result.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from octet import _fuse_gpt2
from octet._fuse_group import ACTS, Group, unmade
from octet._fuse_proof import (
    UnprovenError,
    check_code,
    check_linear,
    check_module,
    check_norm,
    prove_gated,
    prove_next,
    prove_projections,
)
from octet._fused import (
    Absorbed,
    ActivatedConv1D,
    ActivatedProjection,
    Columns,
    FusedNorm,
    Holder,
    NormedConv1D,
    NormedProjections,
    PassingAfter,
    Turns,
)
from octet._layer_swap import replace_parameters, transposed
from octet.linear import AnyLinear

# transformers' families: the folder of their code -> the prefix of their class names.
_FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}
FAMILIES = "Llama, Qwen2, Qwen3, Mistral and GPT-2 of transformers"
_QKV = ("q_proj", "k_proj", "v_proj")


def _alike(layers: Sequence[torch.nn.Module], names: Sequence[str]) -> None:
    """Raises if the weights of these layers cannot be joined into one."""
    first = layers[0]
    for layer, name in zip(layers, names, strict=True):
        weight = layer._parameters["weight"]
        if layer.in_features != first.in_features:
            raise UnprovenError(f"{name} and {names[0]} read inputs of different sizes")
        if (weight.dtype, weight.device) != (first.weight.dtype, first.weight.device):
            raise UnprovenError(f"{name} and {names[0]} are of different dtypes or devices")
        if (layer.bias is None) != (first.bias is None):
            raise UnprovenError(f"only one of {name} and {names[0]} has a bias")


def _is(module: Any, part: str, family: str) -> bool:  # noqa: ANN401
    cls = type(module)
    where = f"transformers.models.{family}.modeling_{family}"
    return cls.__module__ == where and cls.__name__ == _FAMILIES[family] + part


# ---- fusing ----------------------------------------------------------------------------------


def _joined(
    group: Group, owner: torch.nn.Module, eps: float
) -> tuple[NormedProjections, list[torch.nn.Module]]:
    """The fused layer of a norm and its projections, without parameters yet; and the
    projections."""
    layers = [getattr(owner, name) for name in group.projections]
    rows = {n: layer.out_features for n, layer in zip(group.projections, layers, strict=True)}
    made = unmade(
        NormedProjections,
        (layers[0].in_features, sum(rows.values())),
        eps=eps,
        normalization="RMSNorm",
        bias=layers[0].bias is not None,
        params_dtype=layers[0].weight.dtype,
        parameters_split=rows,
        name=group.label(),
        save=group.save,
    )
    return made, layers


def _lend_parts(made: NormedProjections, holders: dict[str, Holder]) -> None:
    for name, holder in holders.items():
        names = {"weight": f"{name}_weight", "bias": f"{name}_bias"}
        holder.lend(made, {own: names[own] for own in holder._parameters})


def _fuse_attention(group: Group) -> Callable[[], None]:
    """Proves that the norm before attention can be fused. Returns a function that does it."""
    decoder, attention = group.decoder, group.decoder.self_attn
    if not _is(attention, "Attention", group.family):
        raise UnprovenError(f"self_attn is a {type(attention).__name__}")
    check_module(attention, "self_attn")
    prove_next(type(decoder), group.norm, "self_attn")
    prove_projections(type(attention), _QKV)
    layers = [getattr(attention, name) for name in _QKV]
    for name, layer in zip(_QKV, layers, strict=True):
        check_linear(layer, f"self_attn.{name}")
    _alike(layers, _QKV)
    eps = check_norm(getattr(decoder, group.norm), group.norm, layers[0].in_features)

    def fuse() -> None:
        made, layers = _joined(group, attention, eps)
        head, start, holders = FusedNorm(getattr(decoder, group.norm), made), 0, {}
        for name, layer in zip(_QKV, layers, strict=True):
            holders[name] = Columns(layer, start, made.out_features)
            attention._modules[name] = holders[name]
            start += layer.out_features
        head.lend(made, {"weight": "layer_norm_weight"})
        _lend_parts(made, holders)
        for part in (head, made, *holders.values()):
            part.settle(group)
        decoder._modules[group.norm] = head.train(decoder.training)

    return fuse


def _fuse_mlp(group: Group) -> Callable[[], None]:
    """Proves that the norm before the MLP can be fused with the whole MLP. Returns a function
    that does it."""
    decoder, mlp = group.decoder, group.decoder.mlp
    if not _is(mlp, "MLP", group.family):
        raise UnprovenError(f"mlp is a {type(mlp).__name__}")
    check_module(mlp, "mlp")
    prove_next(type(decoder), group.norm, "mlp")
    prove_gated(type(mlp))
    activation = ACTS.get(type(mlp.act_fn).__name__)
    if activation is None:
        raise UnprovenError(f"its activation, {type(mlp.act_fn).__name__}, is none of Octet's")
    check_module(mlp.act_fn, "mlp.act_fn")
    for name in ("gate_proj", "up_proj", "down_proj"):
        check_linear(getattr(mlp, name), f"mlp.{name}")
    pair = ("gate_proj", "up_proj")
    _alike([getattr(mlp, name) for name in pair], pair)
    if mlp.gate_proj.out_features != mlp.up_proj.out_features:
        raise UnprovenError("gate_proj and up_proj make different sizes")
    eps = check_norm(getattr(decoder, group.norm), group.norm, mlp.gate_proj.in_features)

    def fuse() -> None:
        made, layers = _joined(group, mlp, eps)
        down = mlp.down_proj
        second = unmade(
            ActivatedProjection,
            (down.in_features, down.out_features),
            activation=activation,
            bias=down.bias is not None,
            params_dtype=down.weight.dtype,
            name=group.label(),
            save=group.save,
        )
        head = FusedNorm(getattr(decoder, group.norm), made, second)
        holders = {n: Absorbed(layer) for n, layer in zip(pair, layers, strict=True)}
        last = Absorbed(down)
        head.lend(made, {"weight": "layer_norm_weight"})
        _lend_parts(made, holders)
        last.lend(second, {name: name for name in last._parameters})
        passing = PassingAfter(mlp, **holders, down_proj=last)
        turns = Turns()
        for part in (head, made, second, *holders.values(), last, passing):
            part.settle(group, turns)
        decoder._modules["mlp"] = passing
        decoder._modules[group.norm] = head.train(decoder.training)

    return fuse


# ---- a model ---------------------------------------------------------------------------------


def _groups(
    model: torch.nn.Module,
) -> Iterator[tuple[Group, Callable[[Group], Any], list[str]]]:
    """The candidates: a group, the function that proves and fuses it, and the names of its
    linear layers."""
    held = [id(p) for m in model.modules() for p in m._parameters.values() if p is not None]
    owners = dict(Counter(held))
    for name, module in model.named_modules():
        for family in _FAMILIES:
            if _is(module, "DecoderLayer", family):
                before = Group(name, module, family, "input_layernorm", _QKV, owners)
                attention = [f"self_attn.{each}" for each in _QKV]
                yield before, _fuse_attention, attention
                pair = ("gate_proj", "up_proj")
                after = Group(name, module, family, "post_attention_layernorm", pair, owners)
                yield after, _fuse_mlp, [f"mlp.{each}" for each in (*pair, "down_proj")]
        if _fuse_gpt2.is_gpt2(module, "GPT2Block"):
            yield (
                Group(name, module, "", "ln_1", (), owners),
                _fuse_gpt2.fuse_attention,
                ["attn.c_attn"],
            )
            both = ["mlp.c_fc", "mlp.c_proj"]
            yield Group(name, module, "", "ln_2", (), owners), _fuse_gpt2.fuse_mlp, both


# Attentions that save their own output for backward.
_KEEPING = ("sdpa", "flash_attention_2", "flash_attention_3")


def read_what_is_kept(model: torch.nn.Module) -> set[torch.nn.Module]:
    """The layers behind a known attention, which holds what they read until backward anyway: a
    second copy of that, quantized, would only add to it."""
    found = set()
    for module in model.modules():
        name = "o_proj" if any(_is(module, "Attention", f) for f in _FAMILIES) else None
        name = "c_proj" if _fuse_gpt2.is_gpt2(module, "GPT2Attention") else name
        config = getattr(module, "config", None)
        keeps = getattr(config, "_attn_implementation", None) in _KEEPING
        if name is not None and keeps and name in module._modules:
            found.add(module._modules[name])
    return found


class Fusing(NamedTuple):
    """What can be fused in a model, and what is left and why."""

    actions: list[Callable[[], Any]]
    left: dict[str, str]
    is_done: bool  # whether the model has fused layers already


def _chosen(group: Group, names: Sequence[str], places: Counter[int]) -> list[Any]:
    """The linear layers of a group. Raises if one of them stands in several places of the
    model."""
    found = []
    for name in (group.norm, *names):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            try:
                module = group.decoder.get_submodule(path)
            except AttributeError:
                raise UnprovenError(f"it has no {path}") from None
            if places[id(module)] > 1:
                raise UnprovenError(f"{path} stands in several places of the model")
        found.append(module)
    return found[1:]


def find(
    model: torch.nn.Module, selects: Callable[[str, torch.nn.Module], bool], save: str
) -> Fusing:
    """Finds what can be fused; changes nothing yet. `save` is for the new layers."""
    found = Fusing([], {}, any(isinstance(module, Holder) for module in model.modules()))
    places = Counter(id(c) for m in model.modules() for c in m._modules.values())
    for group, prepare, names in _groups(model):
        if isinstance(getattr(group.decoder, group.norm, None), Holder):
            continue
        prefix = f"{group.name}." if group.name else ""
        try:
            layers = zip(names, _chosen(group, names, places), strict=True)
            chosen = [selects(prefix + name, layer) for name, layer in layers]
            if any(chosen) and not all(chosen):
                raise UnprovenError("where= chooses only some of the layers behind it")
            if any(chosen):
                check_code(group.decoder, group.name or type(group.decoder).__name__)
                found.actions.append(prepare(group._replace(save=save)))
        except UnprovenError as why:
            found.left[group.label()] = f"it is not fused with the layers behind it: {why}"
    return found


def fuse(model: torch.nn.Module, found: Fusing) -> None:
    """Fuses what was found."""
    turned = [weight for action in found.actions for weight in action() or ()]
    replace_parameters(model, turned, transposed)


def unfuse(model: torch.nn.Module) -> None:
    """Puts the original modules back."""
    turned = []
    for parent in list(model.modules()):
        for key, child in list(parent._modules.items()):
            if isinstance(parent, Holder):
                continue
            if isinstance(child, NormedConv1D | ActivatedConv1D):
                turned.append(child.weight)
            elif not isinstance(child, Holder):
                continue
            parent._modules[key] = child.restored()
    replace_parameters(model, turned, transposed)


def is_fused(layer: AnyLinear) -> bool:
    """Whether a layer was made by convert(fuse=True)."""
    return "was" in vars(layer) or "holders" in vars(layer)
