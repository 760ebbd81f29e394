"""How delayed scaling computes a scale from a history: in the C core, or by the user's
functions."""

from torch.compiler import is_dynamo_compiling

import torch
from octet import _C, _texts
from octet._constant import constant
from octet._ops import delayed_update
from octet.recipe import DelayedScaling

_update = delayed_update._op  # the op without its Python wrapper, which only tracing needs

# How scales are updated: a recipe's text, or the recipe itself where it has functions.
Rule = str | DelayedScaling


class ScaleUpdater:
    """Decides for each backward whether it updates the gradients' scales."""

    def take_rule(self) -> "Rule | None":
        """The rule to update by, or None; asked once by each backward."""
        raise NotImplementedError


_TOPS = {
    "e4m3": torch.finfo(torch.float8_e4m3fn).max,
    "e5m2": torch.finfo(torch.float8_e5m2).max,
}


@constant
def _rolling(text: str) -> str:
    """The recipe that rolls the same history by a rule of the C core."""
    return _C.make("recipe", text, {"algo": "max"})


@constant
def _scaling(text: str) -> str:
    """The recipe that computes a scale from a single amax."""
    return _C.make("recipe", text, {"algo": "most_recent", "history": 1})


@constant
def _top(text: str, role: str) -> float:
    """The largest value of a role's format."""
    return _TOPS[_texts.element_format(_texts.role_quantizer(text, role))]


def _amax(recipe: DelayedScaling, rows: torch.Tensor) -> torch.Tensor:
    """The amax of each slot, as the recipe computes it from the history."""
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


def _by_functions(state: torch.Tensor, recipe: DelayedScaling, role: str) -> torch.Tensor:
    """The new scales, by the user's functions. A slot without a new amax keeps its scale."""
    scale = state[0]
    rows = state[1 : 1 + _texts.history_rows(recipe.text)].clone()
    is_new = rows[0] != 0
    amax = torch.where(is_new, _amax(recipe, rows), torch.zeros_like(scale))
    if recipe.scaling_factor_compute_algo is None:
        alone = torch.stack([scale, amax])
        delayed_update([alone], f"{role} {_scaling(recipe.text)}")
        return alone[0]
    top = _top(recipe.text, role)
    made = recipe.scaling_factor_compute_algo(amax, scale.clone(), top, recipe)
    if made.shape != scale.shape:
        raise ValueError(
            f"scaling_factor_compute_algo made {tuple(made.shape)} of amaxes "
            f"{tuple(amax.shape)}; it returns one scale for each"
        )
    return torch.where(is_new, made, scale)


def rule_of(recipe: DelayedScaling) -> Rule:
    """The update rule of a recipe. Recipes with the same text and no functions have the same
    rule."""
    return recipe if recipe.has_functions() else recipe.text


def update(states: list[torch.Tensor], rule: Rule, role: str) -> None:
    """Updates the scales of states from the amaxes recorded in them. All states are on one
    device."""
    if isinstance(rule, str):
        (delayed_update if is_dynamo_compiling() else _update)(states, f"{role} {rule}")
        return
    with torch.no_grad():
        made = [_by_functions(state, rule, role) for state in states]
        # Written only now: if a user's function fails, no scale has changed.
        for state, new in zip(states, made, strict=True):
            delayed_update([state], f"{role} {_rolling(rule.text)}")
            state[0].copy_(new)
