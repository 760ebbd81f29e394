"""Delayed scaling by a user's functions of the history, and histories of any length."""

from typing import Any

import octet
import pytest
from laws import assert_same, compiled, inputs, layer, step, twins, within
from octet import recipe
from torch.torch_version import TorchVersion

import torch

# Before 2.11 Dynamo mixes up what a traced backward captures with the sizes that are dynamic.
DYNAMIC = TorchVersion(torch.__version__) >= (2, 11)


def largest(history: torch.Tensor) -> torch.Tensor:
    return history.amax(0)


def newest(history: torch.Tensor) -> torch.Tensor:
    return history[0]


def average(history: torch.Tensor) -> torch.Tensor:
    return history.sum(0) / (history != 0).sum(0).clamp(min=1)


def halved(amax: Any, scale: Any, fp8_max: float, recipe: Any) -> torch.Tensor:  # noqa: ANN401
    return torch.where(amax > 0, fp8_max / amax / 2**recipe.margin, scale) / 2


def run(linear: octet.Linear, call: Any) -> list[Any]:  # noqa: ANN401
    x, grad = inputs()
    found = []
    for scale in (1.0, 4.0, 0.5, 0.25, 2.0, 1.0):
        found += step(linear, call, x * scale, grad / scale)
        found += [linear.fp8_amax_history.clone(), linear.fp8_grad_amax_history.clone()]
    return found


@pytest.mark.parametrize(("name", "function"), [("max", largest), ("most_recent", newest)])
def test_delayed__a_function_that_does_the_same_changes_no_bit(
    name: str,
    function: Any,  # noqa: ANN401
) -> None:
    one, other = twins()
    known = recipe.DelayedScaling(amax_history_len=4, amax_compute_algo=name, margin=1)
    mine = recipe.DelayedScaling(amax_history_len=4, amax_compute_algo=function, margin=1)
    assert_same(run(one, within(known, one)), run(other, within(mine, other)))


@pytest.mark.parametrize("inside", [True, False])
def test_delayed__functions_compile(inside: bool) -> None:
    active = recipe.DelayedScaling(
        amax_history_len=4, amax_compute_algo=average, scaling_factor_compute_algo=halved
    )
    one, other = twins()
    dynamic = inside and DYNAMIC
    fast, counter = compiled(within(active, other) if inside else other, dynamic=dynamic)
    fast = fast if inside else within(active, fast)
    assert_same(run(one, within(active, one)), run(other, fast))
    assert counter.frame_count == 1
    top = torch.tensor(448.0) / average(one.fp8_amax_history[:4, :1])
    assert one.fp8_scale[0] != top / 2  # row 0 was empty when it was last rolled


def test_delayed__scaling_function_makes_the_scale() -> None:
    active = recipe.DelayedScaling(amax_history_len=1, scaling_factor_compute_algo=halved)
    linear = layer()
    x, grad = inputs()
    step(linear, within(active, linear), x, grad)
    assert linear.fp8_scale[0] == 448 / x.abs().max().float() / 2
    assert linear.fp8_scale[2] == 1  # a slot without an amax keeps its scale
    assert linear.fp8_grad_scale[0] == 57344 / grad.abs().max().float() / 2


def test_delayed__a_function_of_the_wrong_shape_is_refused() -> None:
    active = recipe.DelayedScaling(amax_compute_algo=lambda history: history.amax())
    linear = layer()
    with pytest.raises(ValueError, match=r"amax_compute_algo made \(\).*\(3,\)"):
        within(active, linear)(inputs()[0])


def test_delayed__recipes_with_functions_are_values() -> None:
    mine = recipe.DelayedScaling(amax_compute_algo=newest)
    assert mine == recipe.DelayedScaling(amax_compute_algo=newest)
    assert hash(mine) == hash(recipe.DelayedScaling(amax_compute_algo=newest))
    assert mine != recipe.DelayedScaling(amax_compute_algo=largest)
    assert repr(mine) == "DelayedScaling('delayed:algo=callback')"


@pytest.mark.parametrize("compile_it", [False, True])
def test_delayed__history_is_as_long_as_the_recipe_says(compile_it: bool) -> None:
    active, linear = recipe.DelayedScaling(amax_history_len=1500), layer()
    x, grad = inputs()
    call = within(active, linear)
    call = compiled(call)[0] if compile_it else call
    for _ in range(3):
        step(linear, call, x, grad)
    assert linear.fp8_amax_history.shape == (1500, 3)
    assert linear.fp8_amax_history[:, 0].count_nonzero() == 3
    other = layer()
    other.load_state_dict(linear.state_dict())
    assert_same(
        step(linear, call, x * 2, grad), step(other, within(active, other), x * 2, grad)
    )
    linear.load_state_dict(layer().state_dict())


def test_delayed__a_step_that_fails_moves_nothing() -> None:
    """Its amaxes count in the next one, and what is raised is what went wrong."""
    linear = octet.Linear(32, 16, device="cpu")
    scale, history = linear.fp8_scale.clone(), linear.fp8_amax_history

    def fail() -> None:
        with octet.autocast(recipe=octet.recipe.DelayedScaling()):
            linear(torch.full((4, 32), 7.0))
            raise KeyError("went wrong")

    with pytest.raises(KeyError, match="went wrong"):
        fail()
    assert torch.equal(linear.fp8_scale, scale)
    assert history[0, 0] == 7.0
    with octet.autocast(recipe=octet.recipe.DelayedScaling()):
        linear(torch.full((4, 32), 2.0))
    assert history[0, 0] == 0.0
    assert linear.fp8_scale[0] == 448.0 / 7.0
