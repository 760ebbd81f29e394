"""autocast: the inner one wins, nothing leaks, and delayed scaling updates as it should."""

import copy
import gc
import os
import subprocess
import sys
from pathlib import Path
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
from octet import recipe
from octet.state.active import MAIN_THREAD, Region, Step, current, entered
from torch.torch_version import TorchVersion

import torch


def test_autocast__nests_and_restores() -> None:
    outer = current()
    with octet.autocast(recipe=RECIPES["mxfp8"]):
        middle = current()
        assert entered() is middle
        with octet.autocast(enabled=False):
            assert not current().enabled
        assert current() is middle
        with pytest.raises(KeyError), octet.autocast(recipe=RECIPES["nvfp4"]):
            raise KeyError
        assert current() is middle
    assert current() is outer
    assert entered() is None


@pytest.mark.parametrize("compile_it", [False, True])
def test_autocast__one_object_may_be_entered_again_inside_itself(compile_it: bool) -> None:
    linear = layer()
    x, _ = inputs()
    outside, inside = linear(x), within(RECIPES["mxfp8"], linear)(x)

    def nested(x: torch.Tensor) -> torch.Tensor:
        region = octet.autocast(recipe=RECIPES["mxfp8"])
        with region:
            with region:
                linear(x)
            return linear(x)

    call = compiled(nested)[0] if compile_it else nested
    for _ in range(2):
        assert torch.equal(call(x), inside)
        assert torch.equal(linear(x), outside)


def test_autocast__quantized_model_init_may_be_entered_again_inside_itself() -> None:
    made = octet.quantized_model_init(recipe=RECIPES["mxfp8"])
    with made, made:
        inner = layer()
    assert isinstance(inner.weight.data, octet.QuantizedTensor)
    assert not isinstance(layer().weight.data, octet.QuantizedTensor)


@pytest.mark.parametrize("what", [octet.recipe.MXFP8BlockScaling, "mxfp8"])
@pytest.mark.parametrize("within_it", [octet.autocast, octet.quantized_model_init])
def test_autocast__what_is_no_recipe_is_refused_at_once(within_it: type, what: object) -> None:
    with pytest.raises(
        TypeError, match=r"(?i)recipe is .*mxfp8.*; it is an object of a class of"
    ):
        within_it(recipe=what)


def test_autocast__default_recipe_is_said() -> None:
    linear = layer()
    x, _ = inputs()
    with octet.autocast():
        y = linear(x)
    with octet.fp8_autocast(fp8_recipe=octet.default_recipe()):
        assert torch.equal(y, linear(x))
    assert torch.equal(y, within(RECIPES["mxfp8"], linear)(x))


def test_autocast__nested_inside_a_graph() -> None:
    linear = layer()
    x, grad = inputs()

    def call(x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(recipe=recipe.MXFP8BlockScaling()):
            y = linear(x)
            with octet.autocast(recipe=recipe.Float8BlockScaling()):
                y = y + linear(x)
            with octet.autocast(enabled=False):
                y = y + linear(x)
        return y

    fast, counter = compiled(call)
    for _ in range(2):
        assert_same(step(linear, call, x, grad), step(linear, fast, x, grad))
    assert counter.frame_count == 1


def test_autocast__inline_recipes_leave_nothing_behind() -> None:
    linear = layer()
    x, _ = inputs()
    fast, counter = compiled(linear)
    for _ in range(1000):
        with octet.autocast(recipe=recipe.MXFP8BlockScaling()):
            pass
    for _ in range(20):
        with octet.autocast(recipe=recipe.MXFP8BlockScaling()):
            fast(x)
    assert counter.frame_count == 1


def test_autocast__inline_recipes_are_gone_after_use() -> None:
    linear = layer()
    x, _ = inputs(2)

    def once() -> None:
        with octet.autocast(recipe=recipe.DelayedScaling(amax_history_len=4)):
            linear(x)
        with octet.autocast(recipe=recipe.CustomRecipe(lambda role: None)):
            linear(x)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(o), recipe.Recipe | Region) for o in gc.get_objects())

    once()
    before = alive()
    for _ in range(100):
        once()
    assert alive() == before


def test_autocast__a_new_region_object_breaks_no_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linear = layer()
    x, _ = inputs()
    fast, counter = compiled(within(RECIPES["mxfp8"], linear))
    around, other = compiled(linear)
    want = [fast(x), within(RECIPES["block"], around)(x)]
    monkeypatch.setattr(MAIN_THREAD, "region", Region(False, None, False, Step(False)))
    for found, expected in zip(
        [fast(x), within(RECIPES["block"], around)(x)], want, strict=True
    ):
        assert torch.equal(found, expected)
    assert (counter.frame_count, other.frame_count) == (1, 1)


@pytest.mark.parametrize("compile_it", [False, True])
def test_autocast__a_copy_made_inside_updates_its_scales_too(compile_it: bool) -> None:
    linear, unused = twins()
    x, _ = inputs()
    call = compiled(linear)[0] if compile_it else linear
    with octet.autocast(recipe=RECIPES["delayed"]):
        with octet.autocast(recipe=RECIPES["delayed"]):
            call(x)
        assert linear.fp8_scale[0] == 1
        other = copy.deepcopy(linear)
    assert_same([linear.fp8_scale], [other.fp8_scale])
    assert linear.fp8_scale[0] != 1
    assert not linear.fp8_amax_history[0].any()  # rolled, once
    assert linear.fp8_amax_history.any(1).sum() == 1
    assert unused.fp8_scale[0] == 1


def test_autocast__another_recipe_is_another_graph_and_back() -> None:
    linear = layer()
    x, _ = inputs()
    fast, counter = compiled(linear)
    for name in ("mxfp8", "block", "mxfp8", "block", "none", "none"):
        assert torch.equal(within(RECIPES[name], fast)(x), within(RECIPES[name], linear)(x))
    assert counter.frame_count == 3


@pytest.mark.parametrize("compile_it", [False, True])
def test_autocast__custom_recipes_follow_their_factory(compile_it: bool) -> None:
    linear = layer()
    x, grad = inputs()

    class Factory:
        def __init__(self, fmt: str) -> None:
            self.fmt = fmt

        def __call__(self, role: recipe.QuantizerRole) -> octet.Quantizer | None:
            forward = role.tensor_type in ("input", "weight")
            return octet.MXFP8Quantizer(self.fmt) if forward else None

    found = []
    for fmt in ("e4m3", "e5m2"):
        active = recipe.CustomRecipe(Factory(fmt))
        call = within(active, linear)
        found.append(step(linear, compiled(call)[0] if compile_it else call, x, grad))
        q = octet.MXFP8Quantizer(fmt)
        want = torch.nn.functional.linear(
            q(x).dequantize(torch.float32),
            q(linear.weight.detach()).dequantize(torch.float32),
            linear.bias.float(),
        )
        assert torch.allclose(found[-1][0].float(), want, rtol=2**-7, atol=1e-5)
    assert not torch.equal(found[0][0], found[1][0])


# ---- delayed scaling -------------------------------------------------------------------------

LENGTH = 4


def reference(amaxes: list[float], top: float, algo: str = "max") -> float:
    """The scale after these amaxes: top over the largest of the last LENGTH of them."""
    seen = amaxes[-LENGTH:] if algo == "max" else amaxes[-1:]
    return float(torch.tensor(top) / torch.tensor(max(seen)))


@pytest.mark.parametrize("algo", ["max", "most_recent"])
def test_delayed__scales_follow_the_history(algo: str) -> None:
    active = recipe.DelayedScaling(amax_history_len=LENGTH, amax_compute_algo=algo)
    linear = layer()
    x, grad = inputs()
    inputs_seen, grads_seen = [], []
    for scale in (1.0, 4.0, 2.0, 0.5, 0.25, 1.0, 8.0):
        step(linear, within(active, linear), x * scale, grad * scale)
        inputs_seen.append(float((x * scale).abs().max()))
        assert linear.fp8_scale[0].item() == reference(inputs_seen, 448.0, algo)
        grads_seen.append(float((grad * scale).abs().max()))
        assert linear.fp8_grad_scale[0].item() == reference(grads_seen, 57344.0, algo)


@pytest.mark.parametrize("compile_it", [False, True])
def test_delayed__a_step_rolls_the_gradients_scale_once(compile_it: bool) -> None:
    linear = layer()
    x, grad = inputs()
    call = within(RECIPES["delayed"], lambda a, b: (linear(a), linear(b)))
    call = compiled(call)[0] if compile_it else call
    seen = []
    for scales in ((1.0, 4.0), (2.0, 0.5)):
        y, z = call(x.clone().requires_grad_(), x.clone().requires_grad_())
        torch.autograd.backward([y, z], [grad * scales[0], grad * scales[1]])
        seen.append(float((grad * max(scales)).abs().max()))
        assert torch.count_nonzero(linear.fp8_grad_amax_history[:, 0]) == len(seen)
        assert linear.fp8_grad_scale[0].item() == reference(seen, 57344.0)


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 11),
    reason="a compiled backward refuses state that another one has updated since its forward",
)
@pytest.mark.parametrize("inside", [True, False])
def test_delayed__steps_may_overlap(inside: bool) -> None:
    active = RECIPES["delayed"]
    eager, other = twins()
    x, grad = inputs()
    fast = compiled(within(active, other) if inside else other)[0]
    found = []
    for linear, call in ((eager, eager), (other, fast)):
        call = call if call is fast and inside else within(active, call)
        for scale in (1.0, 8.0, 0.5):
            first, second = call(x * scale), call(x)
            first.backward(grad * scale)
            third = call(x)
            second.backward(grad)
            third.backward(grad / scale)
        state = [linear.fp8_scale, linear.fp8_grad_scale, linear.fp8_grad_amax_history]
        found.append([linear.weight.grad, *state])
    assert_same(*found)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("inside", [True, False])
def test_delayed__twenty_compiled_steps_are_eager(backend: str, inside: bool) -> None:
    active = RECIPES["delayed"]
    eager, other = twins()
    x, grad = inputs()
    fast, counter = compiled(within(active, other) if inside else other, backend)
    fast = fast if inside else within(active, fast)
    for i in range(20):
        scale = 2.0 ** ((i * 7) % 5)
        a = step(eager, within(active, eager), x * scale, grad / scale)
        assert_same(a, step(other, fast, x * scale, grad / scale))
        assert torch.equal(eager.fp8_amax_history, other.fp8_amax_history)
        assert torch.equal(eager.fp8_grad_amax_history, other.fp8_grad_amax_history)
    assert counter.frame_count == 1


def test_delayed__only_the_outermost_exit_updates_the_scale() -> None:
    linear = layer()
    x, _ = inputs()
    with octet.autocast(recipe=RECIPES["delayed"]):
        with octet.autocast(recipe=RECIPES["delayed"]):
            linear(x)
        linear(2 * x)
        assert linear.fp8_scale[0] == 1
    assert linear.fp8_scale[0].item() == reference([float(2 * x.abs().max())], 448.0)


def test_delayed__evaluation_updates_nothing() -> None:
    linear = layer()
    with torch.no_grad():
        within(RECIPES["delayed"], linear)(inputs()[0])
    assert linear.fp8_scale[0] == 1


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("how", ["eval", "inference_mode"])
def test_delayed__evaluation_records_nothing(how: str, compile_it: bool) -> None:
    """It computes by the scales that training left, and changes none of them."""
    linear, other = twins()
    x, grad = inputs()
    for each in (linear, other):
        step(each, within(RECIPES["delayed"], each), x, grad)
    before = histories(linear)
    call = within(RECIPES["delayed"], linear)
    call = compiled(call)[0] if compile_it else call
    mode = torch.inference_mode if how == "inference_mode" else torch.enable_grad
    linear.train(how != "eval")
    with mode():
        y = call(x * 8)
    linear.train()
    assert_same(before, histories(linear))
    scale = linear.fp8_scale.clone()
    want = within(RECIPES["delayed"], other)(x * 8)
    assert torch.equal(y, want)
    assert not torch.equal(scale, other.fp8_scale)  # which did record
    assert torch.equal(scale, linear.fp8_scale)


@pytest.mark.parametrize("ends", ["optimizer", "forward"])
def test_delayed__one_autocast_around_a_loop_learns(ends: str) -> None:
    """As one around each step does: a step of torch.optim ends a step of scaling, and so does a
    forward after a backward if the weight was written in between."""
    one, other = twins()
    x, grad = inputs()
    rate = 0.0 if ends == "optimizer" else None

    def train(linear: octet.Linear, scale: float) -> None:
        linear(x * scale).backward(grad * scale)
        if rate is not None:
            torch.optim.SGD(linear.parameters(), lr=rate).step()
        else:
            with torch.no_grad():
                linear.weight.mul_(1.0)

    scales = (1.0, 4.0, 0.5, 2.0)
    for scale in scales:
        with octet.autocast(recipe=RECIPES["delayed"]):
            train(other, scale)
    with octet.autocast(recipe=RECIPES["delayed"]):
        for count, scale in enumerate(scales, 1):
            train(one, scale)
            updates = count if ends == "optimizer" else count - 1
            assert one.fp8_amax_history[1:, 0].count_nonzero() == min(updates, 3)
    assert_same(
        [one.fp8_scale, one.fp8_grad_scale, *histories(one)],
        [other.fp8_scale, other.fp8_grad_scale, *histories(other)],
    )


def of_ones_own(linear: octet.Linear, how: str) -> Any:  # noqa: ANN401
    """Steps that leave the weights as they are."""
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.0)
    if how == "compiled":
        return torch.compile(optimizer.step, backend="aot_eager")

    def through_data() -> None:
        for parameter in linear.parameters():
            parameter.data.add_(0.0)
        optimizer.zero_grad()

    def in_place() -> None:
        with torch.no_grad():
            for parameter in linear.parameters():
                parameter.add_(0.0)

    return through_data if how == "data" else in_place


@pytest.mark.parametrize("how", ["compiled", "in place", "data"])
@pytest.mark.parametrize("compile_it", [False, True])
def test_delayed__any_optimizer_inside_one_autocast(how: str, compile_it: bool) -> None:
    """The scales learn; where compiled code cannot end a step it is refused."""
    one, other = twins(name="fc1")
    x, grad = inputs()
    call = compiled(one)[0] if compile_it else one
    optimizer, scales = of_ones_own(one, how), (1.0, 4.0, 0.5)
    for scale in scales:
        with octet.autocast(recipe=RECIPES["delayed"]):
            other(x * scale).backward(grad * scale)

    def train() -> None:
        with octet.autocast(recipe=RECIPES["delayed"]):
            for scale in scales:
                call(x * scale).backward(grad * scale)
                optimizer()

    if compile_it and how != "compiled":
        if how == "in place":
            said = r"'fc1'.*parameters have changed.*once for each"
            with pytest.raises(Exception, match=said):
                train()
        return
    train()
    assert_same([one.fp8_scale, *histories(one)], [other.fp8_scale, *histories(other)])


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_delayed__backwards_in_any_order(backend: str | None) -> None:
    """Of several calls in a step, the backward of the first one may be the first to run. What
    the others record counts at the end of the next step."""
    linear = layer()
    x, grad = inputs()
    call = linear if backend is None else compiled(linear, backend)[0]
    for numbers in ((1, 2), (3,), (4,)):
        with octet.autocast(recipe=RECIPES["delayed"]):
            ys = [call(x.clone().requires_grad_()) for _ in numbers]
        for number, y in zip(numbers, ys, strict=True):
            y.backward(grad * number)
    amax = float(grad.abs().max())
    found = sorted(linear.fp8_grad_amax_history[1:, 0].tolist())
    assert found == pytest.approx([amax * 2, amax * 3, amax * 4], rel=1e-2)


@pytest.mark.parametrize("compile_it", [False, True])
def test_delayed__calibrating_records_in_high_precision(compile_it: bool) -> None:
    linear = layer()
    x, _ = inputs()
    call = compiled(linear)[0] if compile_it else linear
    with octet.autocast(enabled=False, calibrating=True, recipe=RECIPES["delayed"]):
        y = call(x)
    assert torch.equal(y, linear(x))
    assert linear.fp8_scale[0].item() == reference([float(x.abs().max())], 448.0)
    assert linear.fp8_scale[1] > 1


def test_autocast__first_of_a_process_is_no_recompilation() -> None:
    program = (
        "import octet, torch._dynamo.testing\n"
        "layer = octet.Linear(8, 8, device='cpu')\n"
        "counter = torch._dynamo.testing.CompileCounter()\n"
        "@torch.compile(fullgraph=True, backend=counter)\n"
        "def call(x):\n"
        "    with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):\n"
        "        return layer(x)\n"
        "call(torch.ones(2, 8)), call(torch.ones(2, 8))\n"
        "print(counter.frame_count)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(octet.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.split() == ["1"]
