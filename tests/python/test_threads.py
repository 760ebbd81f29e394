"""Threads: each is inside the autocast that it entered, or else inside the main thread's."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import octet
import pytest
from laws import DRAWING, RECIPES, assert_same, compiled, inputs, layer, scales, step, within

import torch


def together(works: dict[str, Callable[[Callable[[], Any]], Any]]) -> dict[str, Any]:
    """What each work returns, in a thread of its own; all of them wait where one meets."""
    barrier = threading.Barrier(len(works), timeout=120)
    found: dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            found[name] = works[name](barrier.wait)
        except BaseException as error:
            found[name] = error
            barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(name,)) for name in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("compile_it", [False, True])
def test_threads__quantize_by_recipes_of_their_own(compile_it: bool) -> None:
    """All are inside before one leaves, in the order in which they came."""
    x, grad = inputs()
    # One alone that draws: threads share torch's generator.
    names = [name for name in RECIPES if name not in ("none", *DRAWING[1:])]
    want, mine = {}, {name: layer() for name in names}
    for name in names:
        usual = layer()
        want[name] = [step(usual, within(RECIPES[name], usual), x, grad) for _ in range(2)]

    def work(name: str) -> Callable[[Callable[[], Any]], Any]:
        linear = mine[name]
        call: Callable[..., Any] = linear
        if compile_it:  # beforehand: threads of torch 2.10 do not compile at the same time
            call = compiled(linear)[0]
            step(linear, within(RECIPES[name], call), x, grad)
            linear.reset_state()

        def two_steps(meet: Callable[[], Any]) -> list[list[Any]]:
            found = []
            for _ in range(2):
                leaf = x.clone().requires_grad_()
                linear.zero_grad()
                if name in DRAWING:
                    torch.manual_seed(3)
                meet()
                with octet.autocast(recipe=RECIPES[name]):
                    meet()
                    y = call(leaf)
                    meet()
                y.backward(grad)
                grads = [leaf.grad, linear.weight.grad, linear.bias.grad]
                state = scales(linear) if name == "delayed" else [None, None]
                found.append(
                    [None if t is None else t.detach().clone() for t in (y, *grads, *state)]
                )
            return found

        return two_steps

    found = together({name: work(name) for name in names})
    for name in names:
        for a, b in zip(want[name], found[name], strict=True):
            assert_same(a, b)
    usual, after = layer(), layer()
    assert_same(step(usual, within(None, usual), x, grad), step(after, after, x, grad))


def test_threads__that_entered_none_are_inside_the_main_threads() -> None:
    linear = layer()
    x, _ = inputs()
    want = {
        name: within(RECIPES[name], linear)(x).detach() for name in ("none", "mxfp8", "block")
    }

    def work(meet: Callable[[], Any]) -> list[torch.Tensor]:
        before = linear(x).detach()
        with octet.autocast(recipe=RECIPES["block"]):
            inside = linear(x).detach()
        return [before, inside, linear(x).detach()]

    with octet.autocast(recipe=RECIPES["mxfp8"]):
        found = together({"": work})[""]
        assert_same([linear(x).detach()], [want["mxfp8"]])
    assert_same(found, [want["mxfp8"], want["block"], want["mxfp8"]])
    found = together({"": work})[""]
    assert_same(found, [want["none"], want["block"], want["none"]])


def test_threads__make_quantized_models_of_their_own() -> None:
    def work(name: str) -> Callable[[Callable[[], Any]], Any]:
        def make(meet: Callable[[], Any]) -> str:
            meet()
            with octet.quantized_model_init(recipe=RECIPES[name]):
                meet()
                made = octet.Linear(64, 32, device="cpu")
                meet()
            return made.weight._text.partition(":")[0]

        return make

    found = together({name: work(name) for name in ("block", "mxfp8")})
    assert found == {"block": "fp8-block", "mxfp8": "mxfp8"}
    assert not isinstance(octet.Linear(64, 32, device="cpu").weight, octet.QuantizedTensor)


@pytest.mark.parametrize("compile_it", [False, True])
def test_threads__leaving_updates_the_scales_of_their_own_step_alone(compile_it: bool) -> None:
    """The first leaves while the second is inside, whose layer waits until it leaves, too."""
    x, _ = inputs()
    delayed = RECIPES["delayed"]
    linears = {"first": layer(), "second": layer()}
    calls = {
        name: compiled(linear)[0] if compile_it else linear for name, linear in linears.items()
    }
    for call in calls.values():  # beforehand: threads of torch 2.10 do not compile together
        with octet.autocast(recipe=delayed):
            call(x)
    fresh = {name: linear.fp8_scale.clone() for name, linear in linears.items()}

    def updated(name: str) -> bool:
        return not torch.equal(linears[name].fp8_scale, fresh[name])

    def first(meet: Callable[[], Any]) -> None:
        with octet.autocast(recipe=delayed):
            calls["first"](2 * x)
            meet()
        meet()

    def second(meet: Callable[[], Any]) -> list[bool]:
        with octet.autocast(recipe=delayed):
            calls["second"](2 * x)
            meet()
            meet()
            early = updated("second")
        return [early, updated("second")]

    assert together({"first": first, "second": second}) == {
        "first": None,
        "second": [False, True],
    }
    assert updated("first")


def test_threads__a_layer_that_two_use_is_updated_when_the_last_one_leaves() -> None:
    x, _ = inputs()
    linear = layer()

    def work(meet: Callable[[], Any]) -> None:
        with octet.autocast(recipe=RECIPES["delayed"]):
            linear(x)
            meet()

    before = linear.fp8_scale.clone()
    together({"first": work, "second": work})
    after = linear.fp8_scale.clone()
    assert not torch.equal(before, after)
    with octet.autocast(recipe=RECIPES["delayed"]):
        linear(4 * x)
    assert not torch.equal(linear.fp8_scale, after)


def test_threads__make_layers_while_another_leaves_an_autocast() -> None:
    """Leaving one that compiled code ran in looks at all the layers that there are."""
    x, _ = inputs()
    linear, is_over = layer(), threading.Event()
    others = [octet.Linear(1, 1, device="cpu") for _ in range(1000)]
    call = within(RECIPES["delayed"], compiled(linear)[0])
    call(x)

    def leave(meet: Callable[[], Any]) -> None:
        meet()
        try:
            for _ in range(40):
                call(x)
        finally:
            is_over.set()

    def make(meet: Callable[[], Any]) -> None:
        meet()
        while not is_over.is_set():
            others.append(octet.Linear(1, 1, device="cpu"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        found = together({"leave": leave, "make": make})
    finally:
        sys.setswitchinterval(interval)
    assert found == {"leave": None, "make": None}
