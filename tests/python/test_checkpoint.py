"""Activation checkpointing and saved-tensor hooks change nothing, whatever the recipe."""

import copy
import functools
from typing import Any

import octet
import pytest
from laws import (
    RECIPES,
    assert_same,
    compiled,
    histories,
    inputs,
    layer,
    step,
    twins,
    within,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import torch


class Halved(octet.MXFP8Quantizer):
    """MXFP8 of half the values, by a quantize of its own."""

    def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
        return super().quantize(tensor / 2, out=out)


def average(history: torch.Tensor) -> torch.Tensor:
    return history.sum(0) / (history != 0).sum(0).clamp(min=1)


RECOMPUTE = CheckpointPolicy.PREFER_RECOMPUTE
HALVED = dict.fromkeys(("input", "weight", "grad_output"), Halved("e4m3"))
MORE = {
    **RECIPES,
    "long": octet.recipe.DelayedScaling(amax_history_len=1030),
    "functions": octet.recipe.DelayedScaling(amax_history_len=3, amax_compute_algo=average),
    "user's": octet.recipe.CustomRecipe(lambda role: HALVED.get(role.tensor_type)),
}
every_recipe = pytest.mark.parametrize("name", MORE)
reentrant_or_not = pytest.mark.parametrize("reentrant", [False, True])


def steps(linear: octet.Linear, call: Any, around: Any = None) -> list[Any]:  # noqa: ANN401
    """Three steps of different sizes, with the backward outside of any autocast."""
    x, grad = inputs()
    found: list[Any] = []
    for scale in (1, 4, 0.25):
        found += step(linear, call if around is None else around(call), x * scale, grad)
        found += histories(linear)
    return found


@every_recipe
@reentrant_or_not
@pytest.mark.parametrize("inside", [False, True])
def test_checkpoint__changes_nothing(name: str, reentrant: bool, inside: bool) -> None:
    usual, other = twins(name="fc1")
    active = MORE[name]
    want = steps(usual, within(active, usual))

    def call(x: torch.Tensor) -> torch.Tensor:
        function = within(active, other) if inside else other
        return checkpoint(function, x, use_reentrant=reentrant)

    assert_same(want, steps(other, call if inside else within(active, call)))


@reentrant_or_not
def test_checkpoint__a_layer_used_twice_and_steps_that_overlap(reentrant: bool) -> None:
    usual, other = twins()
    x, grad = inputs()
    found = []
    for linear in (usual, other):

        def body(x: torch.Tensor, linear: octet.Linear = linear) -> torch.Tensor:
            return torch.relu(linear(x)) + linear(2 * x)

        def call(x: torch.Tensor, body: Any = body, linear: Any = linear) -> torch.Tensor:  # noqa: ANN401
            return checkpoint(body, x, use_reentrant=reentrant) if linear is other else body(x)

        call = within(RECIPES["delayed"], call)
        inputs_ = [(x * scale).detach().requires_grad_() for scale in (1, 3, 0.5)]
        first, second = call(inputs_[0]), call(inputs_[1])
        first.backward(grad)
        third = call(inputs_[2])
        (second + third).backward(grad)  # the later one runs backward first
        state = [linear.fp8_scale, linear.fp8_grad_scale, linear.fp8_grad_amax_history]
        # Not the weight's: a reentrant checkpoint adds up its parts in another order.
        found.append([*(i.grad for i in inputs_), *state])
    assert_same(*found)


@reentrant_or_not
@pytest.mark.parametrize("compile_it", [False, True])
def test_checkpoint__scales_that_are_updated_meanwhile(
    reentrant: bool, compile_it: bool
) -> None:
    usual, other = twins()
    x, grad = inputs()
    found = []
    for linear in (usual, other):

        def call(x: torch.Tensor, linear: octet.Linear = linear) -> torch.Tensor:
            if linear is usual:
                return linear(x)
            return checkpoint(linear, x, use_reentrant=reentrant)

        inputs_ = [(x * scale).requires_grad_() for scale in (1, 2)]
        with octet.autocast(recipe=RECIPES["delayed"]):
            y = call(inputs_[0])
            with octet.autocast(recipe=RECIPES["delayed"] if reentrant else MORE["long"]):
                y = y + call(inputs_[1])
        updater = within(RECIPES["delayed"], linear)
        (compiled(updater)[0] if compile_it else updater)(x * 8)
        with torch.no_grad():
            within(RECIPES["delayed"], linear)(x * 9)
        y.backward(grad)
        found.append([*(i.grad for i in inputs_), linear.fp8_scale])
    assert_same(*found)


@pytest.mark.parametrize("name", ["mxfp8", "delayed"])
def test_checkpoint__nests(name: str) -> None:
    usual, other = twins()

    def call(x: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(other, x, use_reentrant=True)

        return checkpoint(lambda x: inner(x) * 1, x, use_reentrant=True)

    want = steps(usual, within(MORE[name], usual))
    assert_same(want, steps(other, within(MORE[name], call)))


def test_checkpoint__remembers_the_recipe_of_each_call() -> None:
    usual, other = twins()
    x, grad = inputs()
    names = ("mxfp8", "none", "block")
    want = [step(usual, within(MORE[name], usual), x, grad)[:3] for name in names]
    ys, xs = [], [x.clone().requires_grad_() for _ in names]
    for name, each in zip(names, xs, strict=True):
        ys.append(within(MORE[name], lambda x: checkpoint(other, x, use_reentrant=False))(each))
    with octet.autocast(recipe=RECIPES["nvfp4"]):  # not that of any of them
        for y, each, (_, dx, dw) in zip(ys, xs, want, strict=True):
            other.zero_grad()
            y.backward(grad)
            assert_same([each.grad, other.weight.grad], [dx, dw])


@reentrant_or_not
def test_checkpoint__nothing_is_forgotten(reentrant: bool) -> None:
    """However many steps lie between a forward and its backward."""
    linear = layer()
    x, grad = inputs()
    x = x.requires_grad_()
    call = within(RECIPES["delayed"], lambda x: checkpoint(linear, x, use_reentrant=reentrant))
    y = call(x)
    y.backward(grad, retain_graph=not reentrant)
    want, y = x.grad, call(x)
    linear.reset_state()
    y = call(x)  # by the scales of the first call again
    for scale in range(1, 40):
        call(scale * x)
    x.grad = None
    y.backward(grad)
    assert torch.equal(x.grad, want)


DELAYED = ("delayed", "long", "functions")


def updated_scales() -> Any:  # noqa: ANN401
    said = r"'fc1'.*scales that have been updated"
    return pytest.raises(torch._dynamo.exc.Unsupported, match=said)


@every_recipe
@pytest.mark.parametrize("skips", [False, True])
def test_checkpoint__compiles(name: str, skips: bool) -> None:
    """Delayed scaling's do not, whether torch lets side effects pass or not: a graph's backward
    would compute them again from scales that forward has updated."""
    usual, other = twins(name="fc1")
    active = MORE[name]
    call = within(active, lambda x: checkpoint(other, x, use_reentrant=False))
    fast, counter = compiled(call)
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=skips):
        if name in DELAYED:
            with updated_scales():
                steps(other, fast)
            assert not other.fp8_amax_history.any()
            return
        assert_same(steps(usual, within(active, usual)), steps(other, fast))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["current", "mxfp8", "nvfp4", "delayed"])
@reentrant_or_not
def test_checkpoint__of_compiled_code(name: str, reentrant: bool) -> None:
    usual, other = twins(name="fc1")
    fast = compiled(within(MORE[name], other))[0]
    want = steps(usual, within(MORE[name], usual))

    def call(x: torch.Tensor) -> Any:  # noqa: ANN401
        return checkpoint(fast, x, use_reentrant=reentrant)

    if name in DELAYED and not reentrant:
        with updated_scales():
            steps(other, call)
        return
    assert_same(want, steps(other, call))


@every_recipe
@pytest.mark.parametrize("compile_it", [False, True])
def test_hooks__saved_tensors_may_be_offloaded(name: str, compile_it: bool) -> None:
    usual = layer()
    other = copy.deepcopy(usual)
    active = MORE[name]
    call: Any = within(active, other)
    call = compiled(call)[0] if compile_it else call
    want = steps(usual, within(active, usual))
    with torch.autograd.graph.save_on_cpu():
        assert_same(want, steps(other, call))


@every_recipe
@pytest.mark.parametrize("saves", [False, True])
def test_checkpoint__may_be_selective(name: str, saves: bool) -> None:
    """What the policy saves is not run again; all else is, and torch counts the ops of both."""
    usual, other = twins(name="fc1")
    active = MORE[name]

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:  # noqa: ANN401
        is_linear = op.name().startswith(("octet::linear", "octet::quantize"))
        return CheckpointPolicy.MUST_SAVE if saves and is_linear else RECOMPUTE

    def call(x: torch.Tensor) -> torch.Tensor:
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(other, x, use_reentrant=False, context_fn=contexts)

    assert_same(steps(usual, within(active, usual)), steps(other, within(active, call)))
