"""Proofs that layers can be fused: from the source of their classes, and from the modules."""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from octet._conv1d import conv1d_class
from octet._prologue import Prologue, normalized
from octet.linear import Linear

_GATED = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"


class UnprovenError(Exception):
    """Why layers are not fused."""


# ---- the source of classes -------------------------------------------------------------------


@functools.lru_cache(256)
def _statements(function: Callable[..., Any]) -> tuple[ast.stmt, ...]:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    (parsed,) = ast.parse(source).body
    return tuple(parsed.body)  # type: ignore[attr-defined]


def _body(cls: type) -> tuple[ast.stmt, ...]:
    """The statements of a class's forward, as it is now: other libraries replace it."""
    try:
        return _statements(cls.forward)
    except (OSError, TypeError, ValueError, SyntaxError):
        raise UnprovenError(f"the source of {cls.__name__}.forward cannot be read") from None


def _names(node: ast.AST, name: str, context: type) -> int:
    """How often a variable is read (ast.Load) or written (ast.Store) in code."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name]
    return sum(isinstance(n.ctx, context) for n in found)


def _calls(node: ast.AST, member: str, variable: str) -> int:
    """How often code calls self.<member> with the variable as an argument."""
    found = 0
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == f"self.{member}":
            given = [*call.args, *(k.value for k in call.keywords)]
            found += sum(isinstance(g, ast.Name) and g.id == variable for g in given)
    return found


def prove_next(cls: type, norm: str, consumer: str) -> None:
    """Proves that in a class's forward only self.<consumer> reads the result of self.<norm>,
    once."""
    body, refusal = (
        _body(cls),
        f"{cls.__name__}.forward does not give {norm}'s result to {consumer}",
    )
    places = [i for i, s in enumerate(body) if f"self.{norm}(" in ast.unparse(s)]
    whole = sum(ast.unparse(s).count(f"self.{norm}") for s in body)
    if len(places) != 1 or whole != 1:
        raise UnprovenError(refusal)
    made = body[places[0]]
    if not (isinstance(made, ast.Assign) and isinstance(made.targets[0], ast.Name)):
        raise UnprovenError(refusal)
    variable, rest = made.targets[0].id, body[places[0] + 1 :]
    if (
        len(made.targets) != 1
        or ast.unparse(made.value) != f"self.{norm}({variable})"
        or not rest
    ):
        raise UnprovenError(refusal)
    if _names(rest[0], variable, ast.Load) != 1 or _calls(rest[0], consumer, variable) != 1:
        raise UnprovenError(refusal)
    for number, statement in enumerate(rest):
        if number and _names(statement, variable, ast.Load):
            raise UnprovenError(f"{refusal} alone")
        if isinstance(statement, ast.Assign) and _names(statement, variable, ast.Store):
            return


def prove_projections(cls: type, layers: Sequence[str]) -> None:
    """Proves that a class's forward uses hidden_states only for these layers, once each, and
    for its leading shape."""
    code = ast.Module(body=list(_body(cls)), type_ignores=[])
    calls = [_calls(code, layer, "hidden_states") for layer in layers]
    shapes = sum(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "hidden_states.shape"
        for node in ast.walk(code)
    )
    # The last axis of the shape must not be read.
    cut = ast.unparse(code).count("hidden_states.shape[:-1]")
    reads = _names(code, "hidden_states", ast.Load)
    if calls != [1] * len(layers) or reads != len(layers) + shapes or shapes != cut:
        raise UnprovenError(
            f"{cls.__name__}.forward reads its input otherwise than by {', '.join(layers)}"
        )
    if _names(code, "hidden_states", ast.Store):
        raise UnprovenError(f"{cls.__name__}.forward changes its input")


_GPT2_MLP = ["c_fc", "act", "c_proj", "dropout"]


def prove_gpt2_mlp(cls: type) -> None:
    """Proves that a class's forward is GPT-2's MLP."""
    lines = [ast.unparse(statement) for statement in _body(cls)]
    wanted = [f"hidden_states = self.{name}(hidden_states)" for name in _GPT2_MLP]
    if lines != [*wanted, "return hidden_states"]:
        raise UnprovenError(f"{cls.__name__}.forward is not {', '.join(_GPT2_MLP)} in turn")


def prove_gated(cls: type) -> None:
    """Proves that a class's forward is the gated MLP."""
    lines = [ast.unparse(statement) for statement in _body(cls)]
    if lines not in (
        [f"down_proj = {_GATED}", "return down_proj"],
        [f"return {_GATED}"],
    ):
        raise UnprovenError(f"{cls.__name__}.forward is not {_GATED}")


# ---- the modules -----------------------------------------------------------------------------


def check_code(module: torch.nn.Module, name: str) -> None:
    """Raises if a module has its own forward, which its class does not show."""
    held = vars(module)
    if "forward" in held or held.get("_compiled_call_impl") is not None:
        raise UnprovenError(f"{name} has a forward of its own, or is compiled")


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def check_module_but_buffers(module: torch.nn.Module, name: str) -> None:
    """check_code, and raises if the module has hooks."""
    check_code(module, name)
    if any(vars(module).get(kind) for kind in _HOOKS):
        raise UnprovenError(f"{name} has hooks, which would see other tensors, or none")


def check_module(module: torch.nn.Module, name: str) -> None:
    """check_module_but_buffers, and raises if the module has buffers."""
    check_module_but_buffers(module, name)
    if any(value is not None for value in module._buffers.values()):
        raise UnprovenError(f"{name} has buffers")


def check_linear(module: torch.nn.Module, name: str) -> None:
    """Raises unless the module is a plain linear layer, torch's or Octet's."""
    if type(module) not in (torch.nn.Linear, Linear):
        raise UnprovenError(f"{name} is a {type(module).__name__}, not an nn.Linear")
    check_module(module, name)
    if type(module._parameters.get("weight")) is not torch.nn.Parameter:
        raise UnprovenError(f"the weight of {name} is not a plain parameter of it")
    if isinstance(module, Linear) and not (module._is_usual and len(module._parts) == 1):
        raise UnprovenError(f"{name} was made with options that a fused layer does not have")


def check_norm(module: torch.nn.Module, name: str, columns: int) -> float:
    """Raises unless the module is an RMSNorm of transformers over this many columns. Returns
    its eps."""
    check_module(module, name)
    weight, eps = module._parameters.get("weight"), getattr(module, "variance_epsilon", None)
    if list(module._parameters) != ["weight"] or type(weight) is not torch.nn.Parameter:
        raise UnprovenError(f"the parameters of {name} are not those of an RMSNorm")
    if weight.shape != (columns,):
        raise UnprovenError(
            f"{name} is of {tuple(weight.shape)}, the layers behind it of {columns}"
        )
    if not isinstance(eps, float) or eps <= 0:
        raise UnprovenError(f"{name} has no variance_epsilon above 0")
    if not weight.is_meta:
        made = torch.Generator().manual_seed(0)
        x = torch.randn(2, columns, generator=made).to(weight.device, weight.dtype)
        with torch.no_grad():
            mine, theirs = normalized(x, Prologue("rmsnorm", eps), [weight]), module(x)
        bound = 2.0**-6 * mine.abs().max()
        if not bool(((mine.float() - theirs.float()).abs() <= bound).all()):
            raise UnprovenError(f"{name} computes something else than RMSNorm")
    return eps


def check_conv1d(module: torch.nn.Module, name: str, owners: Mapping[int, int]) -> None:
    """Raises unless the module is a plain Conv1D whose weight no other module holds."""
    if conv1d_class(module) is not type(module):
        raise UnprovenError(f"{name} is a {type(module).__name__}, not a Conv1D")
    check_module(module, name)
    weight = module._parameters.get("weight")
    if type(weight) is not torch.nn.Parameter or "bias" not in module._parameters:
        raise UnprovenError(f"the weight of {name} is not a plain parameter of it")
    if owners.get(id(weight), 1) > 1:
        raise UnprovenError(f"the weight of {name}, (in, out), is also another module's")
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        raise UnprovenError(f"the weight of {name} has hooks, and becomes another parameter")


def check_layer_norm(module: torch.nn.Module, name: str, columns: int) -> None:
    """Raises unless the module is torch's LayerNorm over this many columns, with weight and
    bias."""
    if type(module) is not torch.nn.LayerNorm:
        raise UnprovenError(f"{name} is a {type(module).__name__}, not an nn.LayerNorm")
    check_module(module, name)
    held = [module._parameters.get(key) for key in ("weight", "bias")]
    if any(type(each) is not torch.nn.Parameter for each in held):
        raise UnprovenError(f"{name} has no weight or no bias")
    if held[0].shape != (columns,):
        raise UnprovenError(
            f"{name} is of {tuple(held[0].shape)}, the layers behind it of {columns}"
        )
