"""What a layer refuses: the error names the layer, the value, the rule and the fix."""

from typing import Any

import octet
import pytest
from laws import RECIPES, compiled, inputs, layer, within
from octet import recipe

import torch


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        (lambda f: f(torch.randn(2, 69).bfloat16()), r"'fc1'.*\(2, 69\).*70"),
        (lambda f: f(torch.randn(2, 70).double()), r"'fc1'.*float64.*cast"),
        (lambda f: f(torch.ones(2, 70, dtype=torch.int64)), r"'fc1'.*int64.*cast"),
    ],
)
def test_refused__names_the_layer_the_value_and_the_rule(call: Any, pattern: str) -> None:  # noqa: ANN401
    linear = layer(name="fc1")
    with pytest.raises(ValueError, match=pattern):
        call(linear)
    with pytest.raises(Exception, match=pattern):
        call(compiled(linear)[0])


@pytest.mark.parametrize("what", ["weight", "bias"])
def test_refused__parameters_of_another_dtype(what: str) -> None:
    linear = layer(name="fc1")
    setattr(linear, what, torch.nn.Parameter(getattr(linear, what).double()))
    with pytest.raises(ValueError, match=rf"'fc1'.*{what} is torch.float64; cast it"):
        linear(inputs()[0])


@pytest.mark.parametrize("what", [None, [[0.0] * 70]])
def test_refused__an_input_that_is_no_tensor(what: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match=r"'fc1'.*input is a (NoneType|list)"):
        layer(name="fc1")(what)


def test_refused__torch_autocast_casts_no_integers() -> None:
    """Nor does it for nn.Linear."""
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"int64.*cast"):
        layer()(torch.ones(2, 70, dtype=torch.int64))


@pytest.mark.parametrize(
    ("main_grad", "pattern"),
    [
        (None, "there is none"),
        (torch.zeros(3, 3), r"it is \(3, 3\)"),
        (torch.zeros(44, 70, dtype=torch.int32), r"of torch\.int32"),
        (torch.zeros(70, 44).t(), "not contiguous"),
        (torch.zeros(44, 70, device="meta"), "it is on meta, the weight on cpu"),
    ],
)
def test_refused__main_grads_before_the_step(main_grad: Any, pattern: str) -> None:  # noqa: ANN401
    linear = layer(fuse_wgrad_accumulation=True, name="fc1")
    linear.weight.main_grad = main_grad
    with pytest.raises(ValueError, match=rf"'fc1'.*main_grad.*{pattern}.*\(44, 70\)"):
        within(RECIPES["delayed"], linear)(inputs()[0])
    assert not linear.fp8_amax_history.any()


def test_refused__options_that_contradict() -> None:
    linear = layer(save_original_input=True, name="fc1")
    with pytest.raises(ValueError, match=r"'fc1'.*save_original_input"):
        within(RECIPES["delayed"], linear)(inputs()[0])
    assert not linear.fp8_amax_history.any()


def test_refused__overlap_says_so() -> None:
    with pytest.raises(ValueError, match=r"ub_overlap_ag=5.*1 to 4"):
        layer(ub_overlap_ag=5)
    with pytest.raises(ValueError, match=r"parallel_mode=2.*'column', 'row' or None"):
        layer(parallel_mode=2)


def test_refused__positional_arguments_past_the_sizes() -> None:
    with pytest.raises(TypeError, match="positional"):
        octet.Linear(70, 44, False)


def test_refused__a_quantized_output_with_grad_that_leaves_a_graph() -> None:
    linear = layer()
    x, _ = inputs()
    call, _ = compiled(
        within(recipe.Float8CurrentScaling(), lambda x: linear(x, fp8_output=True))
    )
    with pytest.raises(Exception, match=r"leaves a compiled graph.*dequantize\(\)"):
        call(x)
    with torch.no_grad():
        assert isinstance(call(x), octet.QuantizedTensor)


@pytest.mark.parametrize("what", ["bias", "fp8_state", "fp8_grad_state", "main_grad"])
def test_refused__a_tensor_that_was_left_on_meta(what: str) -> None:
    linear = layer(fuse_wgrad_accumulation=what != "fp8_state")
    x, grad = inputs()
    call = within(RECIPES["delayed"], linear)
    if linear.fuse_wgrad_accumulation:
        with pytest.raises(ValueError, match=r"70 -> 44.*weight\.main_grad"):
            call(x)
    linear.weight.main_grad = torch.zeros(44, 70)
    call(x).backward(grad)
    if what == "main_grad":
        linear.weight.main_grad = torch.zeros(44, 70, device="meta")
    elif what == "bias":
        linear.bias = torch.nn.Parameter(linear.bias.to("meta"))
    else:
        setattr(linear, what, getattr(linear, what).to("meta"))
    with pytest.raises(ValueError, match=r"on (meta|cpu), \w+( \w+)? on (meta|cpu)"):
        call(x).backward(grad)


def test_refused__transforms_of_torch_func_say_so() -> None:
    linear = layer(name="fc1")
    x, _ = inputs()
    with octet.autocast(recipe=RECIPES["current"]):
        for call in (
            lambda: torch.func.grad(lambda x: linear(x).float().sum())(x),
            lambda: torch.func.vmap(linear)(x),
            lambda: torch.func.jvp(linear, (x,), (x,)),
        ):
            with pytest.raises(NotImplementedError, match=r"'fc1'.*torch\.func"):
                call()
        doubled = {key: value.detach() * 2 for key, value in linear.named_parameters()}
        found = torch.func.functional_call(linear, doubled, (x,))
        linear.load_state_dict(doubled)
        assert torch.equal(found, linear(x))
