"""Which first run a call inside a backward repeats: that of the section that runs again."""

import asyncio
import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, scales, step, twins, within
from octet.state import sections
from torch.utils.checkpoint import checkpoint

import torch

reentrant_or_not = pytest.mark.parametrize("reentrant", [False, True])
DELAYED = octet.recipe.DelayedScaling(amax_history_len=2)


def checkpointed(call: Callable[..., Any], reentrant: bool = False) -> Callable[..., Any]:
    return functools.partial(checkpoint, call, use_reentrant=reentrant)


def in_thread(call: Callable[[], Any]) -> Any:  # noqa: ANN401
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", ["mxfp8", "none"])
def test_sections__a_hook_repeats_no_checkpoint_of_another_step(name: str) -> None:
    """Its node has a number past that of the checkpoint's calls, but is in none of them."""
    linear = layer()
    x, grad = inputs()
    x = x.requires_grad_()
    within(RECIPES[name], checkpointed(linear))(x).backward(grad)
    found: list[torch.Tensor] = []
    with octet.autocast(recipe=RECIPES["current"]):
        y = linear(x) * 1
        y.register_hook(lambda g: found.append(linear(x.detach()).detach()))
        y.backward(grad)
    assert torch.equal(found[0], within(RECIPES["current"], linear)(x))


class Lazy(torch.autograd.Function):
    """A function whose backward alone calls a layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:  # noqa: ANN401
        ctx.call = call
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        ctx.call()
        return grad, None


def test_sections__a_function_repeats_no_call_that_it_did_not_make() -> None:
    linear = layer()
    x, grad = inputs()
    found: list[torch.Tensor] = []
    with octet.autocast(recipe=RECIPES["current"]):
        y = Lazy.apply(linear(x), lambda: found.append(linear(x).detach()))
    with torch.no_grad():
        linear(x)  # without a recipe, after the function's node was made
    with octet.autocast(recipe=RECIPES["current"]):
        linear(x)
        y.backward(grad)
    assert torch.equal(found[0], within(RECIPES["current"], linear)(x))


@pytest.mark.parametrize("name", ["current", "delayed"])
@pytest.mark.parametrize("around", [False, True])
def test_sections__calls_without_gradients_are_repeated_as_well(
    name: str, around: bool
) -> None:
    """A branch of a checkpoint that gets no gradient, of a layer that other steps train."""
    found = []
    for again in (False, True):
        linear, (x, _) = layer(params_dtype=torch.float32), inputs(dtype=torch.float32)
        wrap = checkpointed if again else lambda call: call

        def target(x: torch.Tensor, linear: octet.Linear = linear) -> torch.Tensor:
            with torch.no_grad():
                made = linear(x)
            return made * x.sum()

        grads = []
        within(RECIPES["mxfp8"], wrap(linear))(x.requires_grad_()).sum().backward()
        for scale in (1, 4, 16):
            each = (x * scale).detach().requires_grad_()
            with octet.autocast(recipe=RECIPES[name]):
                y = (wrap(target)(each) - wrap(linear)(each)).square().sum()
                if around:
                    y.backward()
            if not around:
                y.backward()
            grads.append(each.grad)
        found.append([*grads, *scales(linear)])
    assert_same(*found)


@reentrant_or_not
def test_sections__threads_do_not_mix_up_their_steps(reentrant: bool) -> None:
    """Each thread numbers its nodes from 0."""
    usual, other = twins()
    x, grad = inputs()
    found = []
    for linear, call in ((usual, usual), (other, checkpointed(other, reentrant))):
        steps = []
        for scale, name in ((1, "mxfp8"), (4, "delayed"), (16, "delayed"), (2, "block")):
            run = within(RECIPES[name], call)
            steps += in_thread(functools.partial(step, linear, run, x * scale, grad))
        found.append(steps)
    assert_same(*found)


@reentrant_or_not
def test_sections__evaluation_elsewhere_is_not_a_first_run(reentrant: bool) -> None:
    usual, other = twins()
    x, grad = inputs()
    want = step(usual, within(RECIPES["current"], usual), x, grad)

    def evaluate() -> None:
        with torch.no_grad():
            within(RECIPES["mxfp8"], other)(x)

    evaluate()
    call = within(RECIPES["current"], checkpointed(other, reentrant))
    assert_same(want, in_thread(functools.partial(step, other, call, x, grad)))


@reentrant_or_not
def test_sections__inner_autocasts_are_entered_again(reentrant: bool) -> None:
    """A section calls a layer under the autocast around it, before and after one of its own."""
    usual, other = twins()
    x, grad = inputs()

    def body(linear: octet.Linear, x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        with octet.autocast(recipe=RECIPES["block"]):
            y = y + linear(x)
        return y + linear(2 * x)

    calls = [functools.partial(body, linear) for linear in (usual, other)]
    for name in ("mxfp8", "delayed"):
        want = step(usual, within(RECIPES[name], calls[0]), x, grad)
        again = within(RECIPES[name], checkpointed(calls[1], reentrant))
        assert_same([want[0], want[1]], step(other, again, x, grad)[:2])
        assert_same(scales(usual), scales(other))


@reentrant_or_not
def test_sections__two_steps_of_one_section_are_refused(reentrant: bool) -> None:
    """Each of its calls is a step of its own, with other scales."""
    linear = layer(name="fc1")
    x, grad = inputs()

    def body(x: torch.Tensor) -> torch.Tensor:
        return within(DELAYED, linear)(x) + within(DELAYED, linear)(8 * x)

    y = checkpointed(body, reentrant)(x.requires_grad_())
    with pytest.raises(RuntimeError, match=r"'fc1'.*more than one recipe or scale.*one by one"):
        y.backward(grad)


class Packed:
    """Hooks of anybody's: what is saved is computed again from the input."""

    def __init__(self, call: Callable[..., Any], x: torch.Tensor) -> None:
        self.call, self.x, self.made = call, x, []

    def pack(self, tensor: torch.Tensor) -> int:
        self.made.append(tensor.shape)
        return len(self.made) - 1

    def unpack(self, index: int) -> torch.Tensor:
        saved: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor.detach())
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.enable_grad():
            self.call(self.x.detach().requires_grad_())
        return saved[index]


@pytest.mark.parametrize("name", ["current", "mxfp8", "delayed"])
def test_sections__hooks_that_are_methods(name: str) -> None:
    usual, other = twins()
    x, grad = inputs()

    def call(x: torch.Tensor) -> torch.Tensor:
        own = Packed(other, x)
        with torch.autograd.graph.saved_tensors_hooks(own.pack, own.unpack):
            return other(x)

    for scale in (1, 8):
        want = step(usual, within(RECIPES[name], usual), x * scale, grad)
        assert_same(want, step(other, within(RECIPES[name], call), x * scale, grad))
        within(RECIPES["block"], other)(x)


def test_sections__end_with_their_graphs() -> None:
    linear = layer()
    x, grad = inputs()
    gc.collect()
    before = len(sections._SECTIONS), dict(sections._UNPACKS)
    for reentrant in (False, True):
        for backward in (False, True):
            call = within(DELAYED, checkpointed(linear, reentrant))
            y = call(x.clone().requires_grad_())
            assert len(sections._SECTIONS) > before[0]
            if backward:
                y.backward(grad)
            del y
            gc.collect()
            assert (len(sections._SECTIONS), sections._UNPACKS) == before


def test_sections__other_hooks_stay_as_they_are() -> None:
    """Looking at the hooks takes them off for a moment."""
    linear = layer()
    x, _ = inputs()
    seen: list[str] = []

    def noting(name: str) -> Any:  # noqa: ANN401
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen.append(name)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    with noting("outer"):
        with noting("inner"):
            y = within(RECIPES["mxfp8"], linear)(x.requires_grad_())
        assert set(seen) == {"inner"}
        (y * y).sum().backward()
    assert set(seen) == {"inner", "outer"}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("around", [False, True])
def test_sections__octets_own_checkpoint_learns(reentrant: bool, around: bool) -> None:
    """With the backward inside of the autocast, one for each step or one around all."""
    usual, other = twins()
    x, grad = inputs()
    found = []
    for linear in (usual, other):
        optimizer = torch.optim.SGD(linear.parameters(), 0.01)

        def call(x: torch.Tensor, linear: octet.Linear = linear) -> torch.Tensor:
            if linear is usual:
                return linear(x)
            return octet.checkpoint(linear, x, use_reentrant=reentrant)

        def one_step(scale: float, call: Any = call, optimizer: Any = optimizer) -> None:  # noqa: ANN401
            call((x * scale).requires_grad_()).backward(grad)
            optimizer.step()
            optimizer.zero_grad()

        def loop(one_step: Any = one_step) -> None:  # noqa: ANN401
            for scale in (1, 4, 0.5):
                (one_step if around else within(DELAYED, one_step))(scale)

        (within(DELAYED, loop) if around else loop)()
        found.append([*scales(linear), linear.weight.detach().clone()])
    assert_same(*found)
    assert scales(other)[1][0] != 1


@reentrant_or_not
def test_sections__a_checkpoint_beside_a_plain_call_updates_gradients_once(
    reentrant: bool,
) -> None:
    usual, other = twins()
    x, grad = inputs()

    def call(linear: octet.Linear, run: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        return linear(x) + run(2 * x)

    run = checkpointed(other, reentrant)
    for scale in (1, 4, 0.5):
        step(usual, within(DELAYED, functools.partial(call, usual, usual)), x * scale, grad)
        step(other, within(DELAYED, functools.partial(call, other, run)), x * scale, grad)
        assert torch.equal(usual.fp8_grad_state, other.fp8_grad_state)


# ---- asyncio ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compile_it", [False, True])
def test_autocast__a_task_outside_of_all_takes_none_of_another_task(compile_it: bool) -> None:
    linear = layer()
    x, _ = inputs()
    call: Any = compiled(linear)[0] if compile_it else linear
    outside, inside = (within(RECIPES[name], linear)(x) for name in ("none", "current"))
    found: dict[int, torch.Tensor] = {}

    async def request(number: int) -> None:
        if number % 2:
            with octet.autocast(recipe=RECIPES["current"]):
                await asyncio.sleep(0)
                found[number] = call(x)
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(0)
            found[number] = call(x)

    async def serve() -> None:
        await asyncio.gather(*(request(number) for number in range(4)))

    asyncio.run(serve())
    assert all(torch.equal(y, inside if n % 2 else outside) for n, y in found.items())


def test_autocast__is_left_where_it_was_entered() -> None:
    region = octet.autocast(recipe=RECIPES["current"])
    in_thread(region.__enter__)
    with pytest.raises(RuntimeError, match="left in another thread or task"):
        region.__exit__(None, None, None)
