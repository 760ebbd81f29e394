"""A Linear call as the C core's problem text, and what its plans ask of the front end."""

from typing import NamedTuple

import torch
from octet import _plans
from octet._constant import constant
from octet._dtypes import dtype_name


@constant
def problem_text(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None],
    quantized: tuple[str | None, str | None],
    recipe: str,
    grads: tuple[bool, bool, bool],
    options: tuple[str, ...],
) -> str:
    """The words of a call but for its sizes: input, weight and bias, and what is asked."""
    input_dtype, weight_dtype, bias_dtype = dtypes
    words = [f"in={dtype_name(input_dtype)}"]
    if weight_dtype != input_dtype:
        words.append(f"w={dtype_name(weight_dtype)}")
    if bias_dtype is not None:
        same = bias_dtype == weight_dtype
        words.append("bias" if same else f"bias={dtype_name(bias_dtype)}")
    words += [f"recipe={recipe}"] if recipe != "none" else []
    words += [
        f"{word}={text}" for word, text in zip(("qin", "qw"), quantized, strict=True) if text
    ]
    wanted = "".join(letter for letter, wants in zip("xwb", grads, strict=True) if wants)
    words.append(f"grad={wanted or 'none'}")
    return " ".join((*words, *options))


class Forward(NamedTuple):
    """What a forward call takes, gives and saves, tensor by tensor."""

    args: tuple[str, ...]
    outs: tuple[_plans.Group, ...]
    saves: tuple[tuple[str, int], ...]  # besides the block: whole arguments, single outputs
    has_block: bool
    returns_bias: bool


class Source(NamedTuple):
    """Where an argument of backward comes from: a saved tensor, or by name."""

    name: str
    index: int


class Backward(NamedTuple):
    """What a backward call takes and gives, tensor by tensor."""

    args: tuple[Source, ...]
    outs: tuple[_plans.Group, ...]
    has_block: bool
    writes_main_grad: bool


def _made(plan: _plans.Plan) -> list[_plans.Port]:
    """The outputs that an op returns: those that are not arguments."""
    return [port for port in plan.outs if port.alias < 0]


@constant
def forward_signature(problem: str) -> Forward:
    """What the forward call of a problem takes, gives and saves."""
    plan = _plans.describe("linear", problem)
    saves: list[tuple[str, int]] = []
    for place, port in plan.saved:
        if place == "arg":
            group = (place, _plans.group_of(plan.args, port))
            saves += [] if group in saves else [group]
        elif place == "out":
            saves.append((place, port))
    return Forward(
        args=tuple(group.name for group in _plans.groups(plan.args)),
        outs=_plans.groups(_made(plan)),
        saves=tuple(saves),
        has_block=bool(plan.block),
        returns_bias=any(port.alias >= 0 for port in plan.outs),
    )


@constant
def backward_signature(problem: str, grad: str) -> Backward:
    """What the backward call takes and gives; `grad` are the words of the arriving gradient."""
    forward = _plans.describe("linear", problem)
    plan = _plans.describe("linear_backward", problem + grad)
    slots = zip(forward.saved, plan.kept, strict=True)
    aliases = {kept[1]: saved for saved, kept in slots if kept[0] == "arg"}
    saves = forward_signature(problem).saves
    args: list[Source] = []
    for group in _plans.groups(plan.args):
        ports = range(group.start, group.start + group.count)
        for port in ports:
            place, index = aliases.get(port, ("", 0))
            if place == "arg":
                whole = ("arg", _plans.group_of(forward.args, index))
                args.append(Source("saved", saves.index(whole)))
                break
            if place == "out":
                args.append(Source("saved", saves.index(("out", index))))
            else:
                args.append(Source(group.name, 0))
                break
    return Backward(
        args=tuple(source for source in args if source.name != "main_grad"),
        outs=_plans.groups(_made(plan)),
        has_block=bool(plan.blocks[0]),
        writes_main_grad=any(port.is_mutable for port in plan.args),
    )


@constant
def _asks_for(problem: str, name: str) -> bool:
    """Whether the forward or backward plan takes a tensor of that name."""
    names = set(forward_signature(problem).args)
    if " grad=none" not in problem:
        names |= {source.name for source in backward_signature(problem, "").args}
    return name in names


def _cache_of(problem: str) -> str:
    ports = _plans.describe("linear", problem).args
    return next((port.quantizer for port in ports if port.name == "weight.cached"), "none")


class Call(NamedTuple):
    """A call of a layer, as far as it does not depend on a size."""

    problem: str
    error: str  # what the C core has against it; empty where nothing
    rounds: bool  # reads the random state
    cache: str  # the quantizer of the cached weight that it reads; "none" where it reads none
    has_others: bool  # outputs besides the output itself


@constant
def call_of(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None],
    quantized: tuple[str | None, str | None],
    recipe: str,
    grads: tuple[bool, bool, bool],
    options: tuple[str, ...],
) -> Call:
    """The call with these operands and options."""
    problem = problem_text(dtypes, quantized, recipe, grads, options)
    try:
        signature = forward_signature(problem)
    except ValueError as error:
        return Call(problem, str(error), False, "none", False)
    return Call(
        problem,
        "",
        rounds=_asks_for(problem, "random"),
        cache=_cache_of(problem),
        has_others=len(signature.outs) > 1,
    )
