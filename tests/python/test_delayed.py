"""Delayed scaling by a user's functions of the history, and histories of any length."""

import pickle
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, step, twins, within
from octet import recipe
from octet.state import scaling
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


@pytest.mark.parametrize("made", [KeyError("went wrong"), torch.ones(7), torch.ones(())])
def test_delayed__a_function_that_fails_updates_nothing(made: Any) -> None:  # noqa: ANN401
    """Neither its layer's history nor what layers before it recorded."""

    def scaling(amax: torch.Tensor, *_: Any) -> torch.Tensor:  # noqa: ANN401
        if amax[0] == 3.0:
            return torch.full_like(amax, 2.0)
        if isinstance(made, KeyError):
            raise made
        return made

    active = recipe.DelayedScaling(scaling_factor_compute_algo=scaling)
    first, second = layer(), layer()

    def run() -> None:
        with octet.autocast(recipe=active):
            first(torch.full((2, 70), 3.0))
            second(torch.full((2, 70), 5.0))

    with pytest.raises((KeyError, ValueError), match=r"went wrong|scaling_factor.*\(3,\)"):
        run()
    for linear, amax in ((first, 3.0), (second, 5.0)):
        assert linear.fp8_amax_history[0, 0] == amax
        assert torch.equal(linear.fp8_scale, torch.ones(3))


def test_delayed__a_layer_keeps_no_function_of_a_users() -> None:
    """So it can be saved whole."""
    linear = layer()
    active = recipe.DelayedScaling(amax_compute_algo=lambda history: history.amax(0))
    x, grad = inputs()
    step(linear, within(active, linear), x, grad)
    other = pickle.loads(pickle.dumps(linear))
    call = within(active, linear), within(active, other)
    assert_same(step(linear, call[0], x, grad), step(other, call[1], x, grad))


@pytest.mark.parametrize(
    ("compile_it", "inside"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_delayed__state_that_a_call_is_given_is_updated_in_place_of_the_layers(
    compile_it: bool, inside: bool
) -> None:
    active = RECIPES["delayed"]
    linear, other = twins()
    octet.prepare(linear, active)
    given = {key: value.detach().clone() for key, value in linear.named_buffers()}
    given |= {key: value.detach() for key, value in linear.named_parameters()}

    def call(given: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(linear, given, (x,))

    def run(given: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return (within(active, call) if inside else call)(given, x)

    run = within(active if not inside else None, compiled(run)[0] if compile_it else run)
    x = inputs()[0]
    for factor in (1, 2, 4):
        assert torch.equal(run(given, x * factor), within(active, other)(x * factor))
    assert torch.equal(given["fp8_state"], other.fp8_state)
    assert torch.equal(linear.fp8_scale, torch.ones(3))


@pytest.mark.parametrize(
    ("compile_it", "inside"), [(False, False), (False, True), (True, True)]
)
def test_delayed__states_of_two_models_in_one_step_are_both_updated(
    compile_it: bool, inside: bool
) -> None:
    active = RECIPES["delayed"]
    linear, models = octet.prepare(layer(), active), twins()
    given = []
    for number, model in enumerate(models):
        octet.prepare(model, active)
        with torch.no_grad():
            model.weight.mul_(1 + number)
        state = {key: value.detach().clone() for key, value in model.state_dict().items()}
        given.append(state | {"weight": state["weight"].requires_grad_()})

    def call(given: list[dict[str, torch.Tensor]], x: torch.Tensor) -> torch.Tensor:
        return sum(torch.func.functional_call(linear, one, (x,)) for one in given)

    run = within(active, call) if inside else call
    run = compiled(run)[0] if compile_it else run
    run = run if inside else within(active, run)
    x, grad = inputs()
    for factor in (1, 2, 4):
        run(given, x * factor).backward(grad * factor)
        for model in models:
            within(active, model)(x * factor).backward(grad * factor)
    for one, model in zip(given, models, strict=True):
        assert_same(list(one.values()), list(model.state_dict().values()))
        assert torch.equal(one["weight"].grad, model.weight.grad)


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


def test_delayed__a_step_that_fails_updates_nothing() -> None:
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


def test_delayed__a_call_that_failed_is_none_of_the_step() -> None:
    """There is no memory for it; a smaller one in its place does all that a first one does."""
    one, other = twins()
    x, grad = inputs()
    many = x.detach()[:1].expand(2**40, -1, -1).detach().requires_grad_()
    with octet.autocast(recipe=RECIPES["delayed"]):
        with pytest.raises(torch.OutOfMemoryError):
            one(many)
        y = one(x)
    y.backward(grad)
    found = [y, one.weight.grad, *one.buffers()]
    with octet.autocast(recipe=RECIPES["delayed"]):
        y = other(x.detach())
    y.backward(grad)
    assert_same(found, [y, other.weight.grad, *other.buffers()])
    assert (one.fp8_grad_scale != 1).any()


def test_delayed__a_captured_call_makes_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replay of a CUDA graph would make it afresh, and the layer would never learn."""
    active = recipe.DelayedScaling(amax_history_len=4)
    linear, longer = layer(name="fc1"), recipe.DelayedScaling(amax_history_len=8)
    x, _ = inputs()
    monkeypatch.setattr(scaling, "is_captured", lambda device: True)
    with pytest.raises(RuntimeError, match=r"'fc1'.*CUDA graph.*octet\.prepare"):
        within(active, linear)(x)
    assert not linear._buffers
    monkeypatch.setattr(scaling, "is_captured", lambda device: False)
    octet.prepare(linear, active)
    monkeypatch.setattr(scaling, "is_captured", lambda device: True)
    within(active, linear)(x)
    assert linear.fp8_amax_history[:, 0].max() == x.abs().max()
    with pytest.raises(RuntimeError, match=r"'fc1'.*octet\.prepare"):
        within(longer, linear)(x)
