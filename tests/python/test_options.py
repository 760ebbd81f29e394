"""Options of a layer and of a call: main_grad, caches, bias, quantized ends, split weights."""

from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, plain, step, within
from octet import recipe

import torch

MX = RECIPES["mxfp8"]
STATELESS = ["none", "current", "block", "mxfp8"]


# ---- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATELESS[1:])
def test_training__main_grad_takes_the_weights_gradient(name: str) -> None:
    fused, other = layer(fuse_wgrad_accumulation=True), layer()
    x, grad = inputs()
    want = step(other, within(RECIPES[name], other), x, grad)
    fused.weight.main_grad = torch.zeros(44, 70)
    for call in (within(RECIPES[name], fused), compiled(within(RECIPES[name], fused))[0]):
        fused.weight.main_grad.zero_()
        found = step(fused, call, x, grad)
        assert found[2] is None
        assert torch.equal(fused.weight.main_grad.bfloat16(), want[2])
        once = fused.weight.main_grad.clone()
        step(fused, call, x, grad)
        assert torch.equal(fused.weight.main_grad, 2 * once)
        assert_same(found[:2] + found[3:], want[:2] + want[3:])
    step(fused, within(RECIPES[name], lambda x: fused(x, True)), x, grad)
    assert torch.equal(fused.weight.main_grad, once)


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__a_weight_may_ask_to_overwrite_its_main_grad(compile_it: bool) -> None:
    linear = layer(fuse_wgrad_accumulation=True)
    x, grad = inputs()
    call = within(MX, linear)
    call = compiled(call)[0] if compile_it else call
    linear.weight.main_grad = torch.zeros(44, 70)
    call(x).backward(grad)
    once = linear.weight.main_grad.clone()
    call(x).backward(grad)
    assert torch.equal(linear.weight.main_grad, once + once)
    linear.weight.overwrite_main_grad = True
    call(x).backward(grad)
    assert torch.equal(linear.weight.main_grad, once)


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_training__hooks_hear_of_a_gradient_in_main_grad(
    later: bool, quantized: bool, compile_it: bool
) -> None:
    """The weight asks for it, as Megatron's do: it gets a gradient without a meaning."""
    with octet.quantized_model_init(enabled=quantized, recipe=MX):
        linear = layer(fuse_wgrad_accumulation=True, delay_wgrad_compute=later)
    weight, (x, grad) = linear.weight, inputs()
    call, counter = compiled(within(MX, linear)) if compile_it else (within(MX, linear), None)
    seen: list[Any] = []

    def hook(w: torch.Tensor) -> None:
        if w.grad is not None:
            seen.append((tuple(w.grad.shape), w.grad.dtype, w.grad_added_to_main_grad))

    weight.register_post_accumulate_grad_hook(hook)

    def train() -> None:
        weight.main_grad, weight.grad = torch.zeros(44, 70), None
        call(x).backward(grad)
        if later:
            linear.backward_dw()

    train()
    wanted = weight.main_grad
    assert weight.grad is None
    assert not seen
    for zeroed in (False, True):
        weight.grad_added_to_main_grad, weight.zero_out_wgrad = False, zeroed
        train()
        assert torch.equal(weight.main_grad, wanted)
        assert weight.grad_added_to_main_grad is True
    assert not weight.grad.any()
    assert seen == [((44, 70), weight.dtype, True)] * 2
    assert counter is None or counter.frame_count <= 3


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("name", ["mxfp8", "delayed"])
def test_training__later_microbatches_reuse_the_weight(name: str, compile_it: bool) -> None:
    linear, recipe = layer(), RECIPES[name]
    x, grad = inputs()
    for _ in range(3):  # by then delayed scaling's scales stay as they are
        usual = step(linear, within(recipe, linear), x, grad)
    call: Any = within(recipe, lambda x, first: linear(x, first))
    call = compiled(call)[0] if compile_it else call
    assert_same(usual, step(linear, lambda x: call(x, True), x, grad))
    linear.weight.data.zero_()  # which leaves no trace
    assert_same(usual, step(linear, lambda x: call(x, False), x, grad))
    assert not torch.equal(usual[0], call(x, True))


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__a_weight_that_has_changed_is_cast_again(compile_it: bool) -> None:
    """By an optimizer, in place or by another parameter: later microbatches notice it."""
    linear = layer()
    x, grad = inputs()
    call: Any = within(MX, lambda x, first: linear(x, first))
    call = compiled(call)[0] if compile_it else call

    def in_place() -> None:
        with torch.no_grad():
            linear.weight.mul_(-2)

    def optimized() -> None:
        call(x, False).backward(grad)
        torch.optim.SGD(linear.parameters(), lr=1.0).step()

    def another() -> None:
        linear.weight = torch.nn.Parameter(linear.weight.detach() / 4)

    seen = [call(x, True).detach()]
    for change in (in_place, optimized, another):
        change()
        found = call(x, False).detach()
        assert torch.equal(found, within(MX, linear)(x))
        assert not torch.equal(found, seen[-1])
        assert torch.equal(found, call(x, False))  # and is cached then
        seen.append(found)


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("way", ["microbatches", "constant inside", "constant around"])
def test_training__one_graph_may_cast_a_weight_and_read_it(way: str, compile_it: bool) -> None:
    linear = layer()
    x, grad = inputs()
    words = ((True,), (False,)) if way == "microbatches" else ((), ())

    def call(x: torch.Tensor) -> torch.Tensor:
        return linear(x, *words[0]) + linear(x * 2, *words[1])

    def inside(x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(recipe=MX), octet.constant_weights():
            return call(x)

    run: Any = inside if way == "constant inside" else call
    run = compiled(run)[0] if compile_it else run

    def around(x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(recipe=MX), octet.constant_weights():
            return run(x)

    found = {"constant inside": run, "constant around": around}.get(way, within(MX, run))
    for _ in range(3):
        with torch.no_grad():
            linear.weight.mul_(-2)
        got = step(linear, found, x, grad)
        assert_same(step(linear, within(MX, lambda x: linear(x) + linear(x * 2)), x, grad), got)


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__a_cache_that_does_not_serve_is_made_again(compile_it: bool) -> None:
    linear = layer()
    x, grad = inputs()
    call: Any = lambda x: linear(x, False)  # noqa: E731
    call = compiled(call)[0] if compile_it else call
    with torch.no_grad():
        within(MX, lambda x: linear(x, True))(x)
    for name in ("mxfp8", "block"):
        want = step(linear, within(RECIPES[name], linear), x, grad)
        assert_same(want, step(linear, within(RECIPES[name], call), x, grad))


def test_training__original_input_gives_the_same_gradients() -> None:
    saving, other = layer(save_original_input=True), layer()
    x, grad = inputs()
    assert_same(
        step(saving, within(MX, saving), x, grad), step(other, within(MX, other), x, grad)
    )


@pytest.mark.parametrize("split", [None, ("a", "b")])
@pytest.mark.parametrize("compile_it", [False, True])
def test_training__return_bias_is_a_pair_without_a_bias_too(
    compile_it: bool, split: tuple[str, ...] | None
) -> None:
    x, _ = inputs()
    linear = layer(return_bias=True, bias=False, parameters_split=split)
    other = layer(bias=False, parameters_split=split)
    for active in (MX, recipe.CustomRecipe(lambda role: octet.MXFP8Quantizer("e4m3"))):
        call = within(active, linear)
        y, bias = (compiled(call)[0] if compile_it else call)(x)
        assert bias is None
        assert torch.equal(y, within(active, other)(x))


def test_training__return_bias_hands_it_back() -> None:
    linear, other = layer(return_bias=True), layer(bias=False)
    x, _ = inputs()
    y, bias = within(MX, linear)(x)
    assert bias is linear.bias
    assert torch.equal(y, within(MX, other)(x))


def test_training__quantized_output_feeds_the_next_layer() -> None:
    active = recipe.Float8CurrentScaling()
    first, second = layer(), octet.Linear(44, 20, params_dtype=torch.bfloat16, device="cpu")
    x, _ = inputs()
    grad = torch.randn(3, 13, 20, dtype=torch.bfloat16)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = first(x, fp8_output=True)
        assert isinstance(y, octet.QuantizedTensor)
        return second(y, fp8_grad=True)

    eager = step(first, within(active, call), x, grad)
    assert_same(eager, step(first, compiled(within(active, call))[0], x, grad))


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__outside_an_autocast_nothing_is_quantized(compile_it: bool) -> None:
    linear = layer()
    x, grad = inputs()
    call: Any = lambda x: linear(x, None, True, True)  # noqa: E731
    call = compiled(call)[0] if compile_it else call
    found = step(linear, call, x, grad)
    assert not isinstance(call(x), octet.QuantizedTensor)
    assert_same(step(linear, linear, x, grad), found)


def test_training__quantized_output_is_the_output_quantized() -> None:
    active, linear = recipe.Float8CurrentScaling(), layer()
    x, _ = inputs()
    y = within(active, linear)(x).detach()
    z = within(active, lambda x: linear(x, fp8_output=True))(x)
    q = octet.Float8CurrentScalingQuantizer("e4m3", columnwise=False)
    assert isinstance(z, octet.QuantizedTensor)
    assert torch.equal(z.detach().dequantize(), q(y).dequantize())


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__quantized_parameters(compile_it: bool) -> None:
    stored, usual = layer(), layer()
    q = octet.MXFP8Quantizer("e4m3")
    stored.weight = torch.nn.Parameter(q(stored.weight.detach()))
    x, grad = inputs()
    call: Any = within(MX, stored)
    call = compiled(call)[0] if compile_it else call
    assert_same(step(usual, within(MX, usual), x, grad), step(stored, call, x, grad))
    torch.optim.SGD([stored.weight], lr=0.1).step()
    assert isinstance(stored.weight.data, octet.QuantizedTensor)


@pytest.mark.parametrize("compile_it", [False, True])
def test_training__quantized_input(compile_it: bool) -> None:
    linear = layer()
    x, _ = inputs()
    call: Any = within(MX, linear)
    want = call(x)
    call = compiled(call)[0] if compile_it else call
    y = octet.MXFP8Quantizer("e4m3")(x).requires_grad_()
    found = call(y)
    assert torch.equal(found, want)
    found.sum().backward()
    assert plain(y.grad).shape == x.shape


def test_training__torch_autocast_chooses_the_dtype() -> None:
    linear = layer(params_dtype=torch.float32)
    x, _ = inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = within(MX, linear)(x)
        assert torch.equal(y, compiled(within(MX, linear))[0](x))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert linear.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training__inference_computes_the_same(mode: Any) -> None:  # noqa: ANN401
    linear = layer()
    x, _ = inputs()
    want = within(MX, linear)(x)
    with mode():
        assert torch.equal(within(MX, linear)(x), want)
        assert torch.equal(compiled(within(MX, linear))[0](x), want)


def test_training__arguments_of_one_rank_change_nothing() -> None:
    options = {"parallel_mode": "column", "tp_size": 1, "tp_group": None, "ub_name": "fc1"}
    options["sequence_parallel"] = True
    tracker = {"get_rng_state_tracker": lambda: None, "rng_tracker_name": "model"}
    linear, usual = layer(**options, **tracker), layer()
    x, grad = inputs()
    assert_same(
        step(linear, within(MX, linear), x, grad), step(usual, within(MX, usual), x, grad)
    )


# ---- split parameters ------------------------------------------------------------------------

SPLITS = [("query_", "key", "value", "gate"), {"query": 30, "key_value": 14}]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", ["none", "mxfp8", "delayed"])
def test_split__computes_as_one(name: str, split: Any) -> None:  # noqa: ANN401
    parts, other, whole = layer(parameters_split=split), layer(parameters_split=split), layer()
    x, grad = inputs()
    names = [key.rstrip("_") for key in split]
    kinds = ("weight", "bias")
    assert set(parts.state_dict()) == {f"{n}_{kind}" for n in names for kind in kinds}
    want = step_of(whole, within(RECIPES[name], whole), x, grad, ["weight"], ["bias"])
    for linear, call in (
        (parts, within(RECIPES[name], parts)),
        (other, compiled(within(RECIPES[name], other))[0]),
    ):
        weights, biases = [f"{n}_weight" for n in names], [f"{n}_bias" for n in names]
        assert_same(want, step_of(linear, call, x, grad, weights, biases))


def step_of(
    linear: octet.Linear,
    call: Any,  # noqa: ANN401
    x: torch.Tensor,
    grad: torch.Tensor,
    *names: list[str],
) -> list[Any]:
    x = x.clone().requires_grad_()
    y = call(x)
    y.backward(grad)
    grads = [torch.cat([getattr(linear, n).grad for n in group]) for group in names]
    return [y.detach(), x.grad, *grads]


@pytest.mark.parametrize(
    "split",
    [("a", "b", "c"), {"a": 1, "b": 2}, (), ("a", "a_"), {"a": 45, "b": -1}],
    ids=str,
)
def test_split__must_add_up(split: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=r"70 -> 44.*parameters_split"):
        layer(parameters_split=split)
