"""A call like the last one is not decided again; one that differs in anything is."""

import copy
from collections.abc import Callable
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, inputs, layer, step, within
from octet import _linear_call as module

import torch


class Double(torch.nn.Module):
    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2


def _to_float(linear: octet.Linear) -> None:
    linear.float()


def _data_to_float(name: str) -> Callable[[octet.Linear], None]:
    def change(linear: octet.Linear) -> None:
        parameter = getattr(linear, name)
        parameter.data = parameter.data.float()

    return change


def _freeze(name: str) -> Callable[[octet.Linear], Any]:
    return lambda linear: getattr(linear, name).requires_grad_(False)


def _option(name: str) -> Callable[[octet.Linear], None]:
    return lambda linear: setattr(linear, name, True)


def _save_memory(linear: octet.Linear) -> None:
    linear.save = "memory"


def _doubled(name: str) -> Callable[[octet.Linear], None]:
    def change(linear: octet.Linear) -> None:
        torch.nn.utils.parametrize.register_parametrization(linear, name, Double())

    return change


CHANGES = {
    "float": _to_float,
    "weight is float": _data_to_float("weight"),
    "bias is float": _data_to_float("bias"),
    "weight is frozen": _freeze("weight"),
    "bias is frozen": _freeze("bias"),
    "save_original_input": _option("save_original_input"),
    "save": _save_memory,
    "delay_wgrad_compute": _option("delay_wgrad_compute"),
    "weight is doubled": _doubled("weight"),
    "bias is doubled": _doubled("bias"),
}


def found(linear: octet.Linear, active: Any, x: Any, grad: Any) -> list[Any]:  # noqa: ANN401
    """Output and gradients of a step, whatever the layer's parameters are called."""
    torch.manual_seed(3)
    x = x.detach().clone().requires_grad_()
    linear.zero_grad()
    y = within(active, linear)(x)
    y.backward(grad)
    state = linear._buffers.get("fp8_state")
    scale = None if state is None else state[0]
    return [y.detach(), x.grad, *(p.grad for p in linear.parameters()), scale]


CASES = [
    (name, change)
    for name in RECIPES
    for change in CHANGES
    if (name, change) != ("delayed", "save_original_input")  # which contradict each other
]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """How often calls by a recipe were decided since the test began: those that quantize by the
    C core, those without a recipe by the layer alone."""
    counts = {"call_of": 0, "_decide": 0}

    def count(owner: Any, name: str) -> None:  # noqa: ANN401
        inner = getattr(owner, name)

        def counted(*args: Any) -> Any:  # noqa: ANN401
            counts[name] += 1
            return inner(*args)

        monkeypatch.setattr(owner, name, counted)

    count(module, "call_of")
    count(octet.Linear, "_decide")
    return lambda name: counts["_decide" if name == "none" else "call_of"]


@pytest.mark.parametrize(("name", "change"), CASES)
def test_memo__a_changed_layer_is_a_new_one(
    name: str, change: str, decided: Callable[[str], int]
) -> None:
    linear, (x, grad) = layer(), inputs()
    for _ in range(2):
        found(linear, RECIPES[name], x, grad)
    assert decided(name) == (name != "none")  # torch's own linear: nothing to decide
    CHANGES[change](linear)
    fresh = copy.deepcopy(linear)
    after = found(linear, RECIPES[name], x, grad)
    assert name == "none" or decided(name) == 2
    assert_same(after, found(fresh, RECIPES[name], x, grad))


def test_memo__every_recipe_and_mode_in_turn() -> None:
    linear, (x, grad) = layer(), inputs()
    for _ in range(2):
        for name, active in RECIPES.items():
            fresh = copy.deepcopy(linear)
            want = step(fresh, within(active, fresh), x, grad)
            assert_same(step(linear, within(active, linear), x, grad), want)
            if name != "delayed":  # which records what it sees
                with torch.no_grad():
                    quiet = within(active, linear)(x)
                assert not quiet.requires_grad
                assert_same([quiet], want[:1])


@pytest.mark.parametrize("name", RECIPES)
def test_memo__decides_once_for_each_kind_of_call(
    name: str, decided: Callable[[str], int]
) -> None:
    linear, (x, grad) = layer(), inputs()
    call = within(RECIPES[name], linear)
    decides = name != "none"  # torch's own linear: nothing to decide
    for _ in range(3):
        step(linear, call, x, grad)
    assert decided(name) == 1 * decides
    call(x)  # which requires no grad
    assert decided(name) == 2 * decides
    with torch.no_grad():
        call(x)
        assert decided(name) == 3 * decides
        with pytest.raises(ValueError, match="move one"):
            call(x.to("meta"))
        count = decided(name)
        call(x)
    assert decided(name) == count  # what is refused is not remembered


def test_memo__follows_torch_autocast() -> None:
    linear, (x, _) = layer(params_dtype=torch.float32), inputs(dtype=torch.float32)
    active = RECIPES["mxfp8"]
    plain = within(active, linear)(x)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            assert within(active, linear)(x).dtype == torch.bfloat16
        assert torch.equal(within(active, linear)(x), plain)


def test_memo__checks_every_input() -> None:
    linear, (x, _) = layer(), inputs()
    linear(x)
    with pytest.raises(ValueError, match="its last axis must be 70"):
        linear(x[..., :69])
    with pytest.raises(ValueError, match=r"octet.Linear \(70 -> 44\).*float64"):
        linear(x.double())
    with pytest.raises(ValueError, match="its last axis must be 70"):
        linear(torch.tensor(1.0, dtype=torch.bfloat16))
    assert linear(x).shape == (3, 13, 44)
