"""How delayed scaling makes a scale of a history: by the C core, or by functions of a user."""

from torch.compiler import is_dynamo_compiling

import torch
from octet import _C, _texts
from octet._constant import constant
from octet._ops import delayed_update
from octet.recipe import DelayedScaling

_update = delayed_update._op  # below its Python object, which only tracing needs

# How scales are updated: a recipe's text, or the recipe itself where it has functions.
Rule = str | DelayedScaling


class ScaleUpdater:
    """Who knows whether a backward is the one that updates the scales of gradients."""

    def take_rule(self) -> "Rule | None":
        """The rule to update by; asked once by each backward."""
        raise NotImplementedError


_TOPS = {
    "e4m3": torch.finfo(torch.float8_e4m3fn).max,
    "e5m2": torch.finfo(torch.float8_e5m2).max,
}


@constant
def _rolling(text: str) -> str:
    """The recipe whose update rolls the same history by a rule of the C core's."""
    return _C.make("recipe", text, {"algo": "max"})


@constant
def _scaling(text: str) -> str:
    """The recipe whose update makes a scale of a single amax."""
    return _C.make("recipe", text, {"algo": "most_recent", "history": 1})


@constant
def _top(text: str, role: str) -> float:
    """The largest number of a role's format."""
    return _TOPS[_texts.element_format(_texts.role_quantizer(text, role))]


def _amax(recipe: DelayedScaling, rows: torch.Tensor) -> torch.Tensor:
    """The amax that a recipe takes from a history, slot by slot."""
    algo = recipe.amax_compute_algo
    if isinstance(algo, str):
        return rows.amax(0) if algo == "max" else rows[0]
    amax = algo(rows)
    if amax.shape != rows.shape[1:]:
        raise ValueError(
            f"amax_compute_algo made {tuple(amax.shape)} of a history {tuple(rows.shape)}; it "
            f"returns one amax a column: {tuple(rows.shape[1:])}"
        )
    return amax.to(rows.dtype)


def _by_functions(
    scale: torch.Tensor, history: torch.Tensor, recipe: DelayedScaling, role: str
) -> torch.Tensor:
    """The new scale; a slot without a new amax keeps its own."""
    rows = history[: _texts.history_rows(recipe.text)].clone()
    is_new, made = rows[0] != 0, scale.clone()
    amax = torch.where(is_new, _amax(recipe, rows), torch.zeros_like(scale))
    if recipe.scaling_factor_compute_algo is None:
        delayed_update([made, amax.reshape(1, -1)], f"{role} {_scaling(recipe.text)}")
        return made
    top = _top(recipe.text, role)
    made = recipe.scaling_factor_compute_algo(amax, made, top, recipe)
    if made.shape != scale.shape:
        raise ValueError(
            f"scaling_factor_compute_algo made {tuple(made.shape)} of amaxes "
            f"{tuple(amax.shape)}; it returns one scale for each"
        )
    return torch.where(is_new, made, scale)


def rule_of(recipe: DelayedScaling) -> Rule:
    """The rule of a recipe; recipes of one text and no functions have the same."""
    return recipe if recipe.has_functions() else recipe.text


def update(states: list[torch.Tensor], rule: Rule, role: str) -> None:
    """Updates scales from the amaxes recorded in their histories, all on one device.

    States are scales and history by turns."""
    if isinstance(rule, str):
        (delayed_update if is_dynamo_compiling() else _update)(states, f"{role} {rule}")
        return
    with torch.no_grad():
        pairs = list(zip(states[::2], states[1::2], strict=True))
        made = [_by_functions(scale, history, rule, role) for scale, history in pairs]
        # All or none: a function that fails has failed by now.
        for (scale, history), new in zip(pairs, made, strict=True):
            delayed_update([scale.clone(), history], f"{role} {_rolling(rule.text)}")
            scale.copy_(new)
