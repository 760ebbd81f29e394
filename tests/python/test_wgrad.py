"""delay_wgrad_compute: backward_dw computes later what a backward would have, bit for bit."""

import copy
import functools
import gc
import weakref
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, step, twins, within
from octet import recipe

import torch

MX = RECIPES["mxfp8"]
every_recipe = pytest.mark.parametrize("name", RECIPES)


def delayed_twin(other: octet.Linear) -> octet.Linear:
    later = copy.deepcopy(other)
    later.delay_wgrad_compute = True
    return later


@every_recipe
@pytest.mark.parametrize("compile_it", [False, True])
def test_wgrad__microbatches_come_out_in_order(name: str, compile_it: bool) -> None:
    usual = layer()
    later = delayed_twin(usual)
    x, grad = inputs()
    call: Any = within(RECIPES[name], later)
    call, counter = compiled(call, dynamic=True) if compile_it else (call, None)
    batches = [(x, grad), (x[:2] * 4, grad[:2]), (x[1:], grad[1:] / 2)]
    wanted = []
    for a, b in batches:
        want = step(usual, within(RECIPES[name], usual), a, b)
        found = step(later, call, a, b)
        assert found[2] is None
        assert_same(want[:2] + want[3:], found[:2] + found[3:])
        wanted.append(want[2])
    total = None
    for want in wanted:
        later.backward_dw()
        total = want if total is None else total + want
        assert torch.equal(later.weight.grad, total)
    assert counter is None or counter.frame_count == 1
    with pytest.raises(RuntimeError, match="no backward has left one"):
        later.backward_dw()


def test_wgrad__inductor_keeps_what_it_would_reuse() -> None:
    usual = layer()
    later = delayed_twin(usual)
    x, grad = inputs()

    def around(linear: octet.Linear) -> Any:  # noqa: ANN401
        return within(MX, lambda x: torch.relu(linear(torch.sin(x) * 2)) + 1)

    fast, _ = compiled(around(later), "inductor")
    for scale in (1, 4):
        step(later, fast, x * scale, grad)
    for scale in (1, 4):
        want = step(usual, compiled(around(usual), "inductor")[0], x * scale, grad)
        later.zero_grad()
        later.backward_dw()
        assert torch.equal(later.weight.grad, want[2])


OPTIONS: dict[str, dict[str, Any]] = {
    "no bias": {"bias": False},
    "save_original_input": {"save_original_input": True},
    "float32": {"params_dtype": torch.float32},
    "split": {"parameters_split": ("a", "b")},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_wgrad__options(option: str) -> None:
    usual = layer(**OPTIONS[option])
    later = delayed_twin(usual)
    x, grad = inputs(dtype=OPTIONS[option].get("params_dtype", torch.bfloat16))
    for linear in (usual, later):
        within(MX, linear)(x).backward(grad)
    later.backward_dw()
    for a, b in zip(usual.parameters(), later.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("name", ["none", "mxfp8", "nvfp4"])
def test_wgrad__goes_to_main_grad(name: str, compile_it: bool) -> None:
    usual, later = twins(fuse_wgrad_accumulation=True)
    later.delay_wgrad_compute = True
    x, grad = inputs()
    for linear in (usual, later):
        linear.weight.main_grad = torch.zeros(44, 70)
    call: Any = within(RECIPES[name], later)
    call = compiled(call)[0] if compile_it else call
    for scale in (1, 2):
        want = step(usual, within(RECIPES[name], usual), x * scale, grad)
        assert_same(want, step(later, call, x * scale, grad))
    assert not later.weight.main_grad.any()
    for _ in range(2):
        later.backward_dw()
    assert later.weight.grad is None
    assert torch.equal(usual.weight.main_grad, later.weight.main_grad)


@every_recipe
@pytest.mark.parametrize("delays", [False, True])
@pytest.mark.parametrize("compile_it", [False, True])
def test_wgrad__the_bias_gradient_goes_to_its_main_grad(
    name: str, delays: bool, compile_it: bool
) -> None:
    usual, other = twins(fuse_wgrad_accumulation=True, delay_wgrad_compute=delays)
    x, grad = inputs()
    for linear in (usual, other):
        linear.weight.main_grad = torch.zeros(44, 70)
    other.bias.main_grad = torch.full((44,), float("nan"))
    for scale, first in ((1, True), (2, False)):
        for linear in (usual, other):
            call = functools.partial(linear, is_first_microbatch=first)
            run: Any = within(RECIPES[name], call)
            run = compiled(run)[0] if compile_it and linear is other else run
            torch.manual_seed(scale)
            run(x * scale).backward(grad)
            if delays:
                linear.backward_dw()
    assert other.bias.grad is None
    torch.testing.assert_close(other.bias.main_grad, 2 * grad.float().sum((0, 1)))
    assert torch.equal(other.weight.main_grad, usual.weight.main_grad)


def test_wgrad__a_main_grad_of_the_bias_is_checked() -> None:
    linear = layer(fuse_wgrad_accumulation=True)
    linear.weight.main_grad = torch.zeros(44, 70)
    linear.bias.main_grad = torch.zeros(45)
    with pytest.raises(ValueError, match=r"adds to bias\.main_grad, but it is \(45,\)"):
        linear(inputs()[0])


@pytest.mark.parametrize("quantized_output", [False, True])
@pytest.mark.parametrize("compile_it", [False, True])
def test_wgrad__a_quantized_gradient_is_queued_as_it_arrived(
    compile_it: bool, quantized_output: bool
) -> None:
    active = recipe.Float8CurrentScaling()
    first = layer()
    later = delayed_twin(first)
    second = octet.Linear(44, 20, params_dtype=torch.bfloat16, device="cpu")
    x, _ = inputs()
    grad = torch.randn(3, 13, 20, dtype=torch.bfloat16)

    def run(linear: octet.Linear) -> Any:  # noqa: ANN401
        call = within(
            active, lambda x: second(linear(x, fp8_output=quantized_output), fp8_grad=True)
        )
        return compiled(call)[0] if compile_it else call

    want = step(first, run(first), x, grad)
    found = step(later, run(later), x, grad)
    later.backward_dw()
    assert_same(want[:3], [*found[:2], later.weight.grad])


def test_wgrad__delayed_scaling_has_nothing_to_measure_in_a_quantized_gradient() -> None:
    active, first = RECIPES["delayed"], layer()
    second = octet.Linear(44, 20, params_dtype=torch.bfloat16, device="cpu")
    x, _ = inputs()
    call = within(active, lambda x: second(first(x), fp8_grad=True))
    step(first, call, x, torch.randn(3, 13, 20, dtype=torch.bfloat16))
    assert not first.fp8_grad_amax_history.any()
    assert second.fp8_grad_amax_history.any()


@pytest.mark.parametrize("compile_it", [False, True])
def test_wgrad__quantized_input_and_weight(compile_it: bool) -> None:
    usual = layer()
    q = octet.MXFP8Quantizer("e4m3")
    usual.weight = torch.nn.Parameter(q(usual.weight.detach()))
    later = delayed_twin(usual)
    x, grad = inputs()
    call: Any = within(MX, later)
    call = compiled(call)[0] if compile_it else call
    within(MX, usual)(q(x)).backward(grad)
    call(q(x)).backward(grad)
    assert later.weight.grad is None
    later.backward_dw()
    assert torch.equal(usual.weight.grad, later.weight.grad)


def test_wgrad__queueing_is_an_op_that_torch_accepts() -> None:
    later = layer(delay_wgrad_compute=True)
    x, grad = inputs()
    within(MX, later)(x).backward(grad)
    queued = later._wgrads.calls[0]
    args = (later._wgrads.handle, grad, queued.tensors, queued.sizes, queued.words)
    torch.library.opcheck(torch.ops.octet.queue_wgrad.default, args)


def test_wgrad__runs_the_weights_hooks() -> None:
    later = layer(delay_wgrad_compute=True)
    x, grad = inputs()
    seen: list[str] = []
    later.weight.register_hook(lambda grad: seen.append("grad"))
    later.weight.register_post_accumulate_grad_hook(lambda weight: seen.append("accumulated"))
    later(x).backward(grad)
    assert seen == []
    later.backward_dw()
    assert seen == ["grad", "accumulated"]


def test_wgrad__only_what_needs_a_gradient_is_saved() -> None:
    later = layer(delay_wgrad_compute=True, name="fc1")
    x, grad = inputs()
    later.weight.requires_grad_(False)
    within(MX, later)(x.requires_grad_()).backward(grad)
    with torch.no_grad():
        within(MX, later)(x)
    with pytest.raises(RuntimeError, match=r"'fc1'.*no backward has left one"):
        later.backward_dw()
    with pytest.raises(RuntimeError, match="delay_wgrad_compute=True"):
        layer().backward_dw()


def test_wgrad__a_copy_has_nothing_to_compute_and_a_layer_can_die() -> None:
    later = layer(delay_wgrad_compute=True)
    x, grad = inputs()
    later(x).backward(grad)
    with pytest.raises(RuntimeError, match="no weight gradient"):
        copy.deepcopy(later).backward_dw()
    later.backward_dw()
    y, gone = later(x), weakref.ref(later)
    del later
    gc.collect()
    assert gone() is None
    with pytest.raises(RuntimeError, match="no more"):
        y.backward(grad)


def test_wgrad__a_failed_call_keeps_what_it_was_to_compute() -> None:
    later = layer(delay_wgrad_compute=True, fuse_wgrad_accumulation=True)
    later.weight.main_grad = torch.zeros(44, 70)
    x, grad = inputs()
    later(x).backward(grad)
    later.weight.main_grad = torch.zeros(44, 71)
    with pytest.raises((ValueError, RuntimeError)):
        later.backward_dw()
    later.weight.main_grad = torch.zeros(44, 70)
    later.backward_dw()
    assert later.weight.main_grad.any()
