"""Linear answers in protos: what a call takes, gives and saves is what it then does."""

from typing import Any

import octet
import pytest
from laws import RECIPES, inputs, layer, within

import torch

CASES: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "usual": ({}, ()),
    "no bias": ({"bias": False}, ()),
    "original input": ({"save_original_input": True}, ()),
    "first microbatch": ({}, (True,)),
    "quantized both ways": ({}, (None, True, True)),
    "returns bias": ({"return_bias": True}, ()),
}


def assert_is(proto: octet.TensorProto, tensor: torch.Tensor) -> None:
    assert proto.shape == tuple(tensor.shape)
    assert proto.dtype == tensor.dtype
    text = tensor._text if isinstance(tensor, octet.QuantizedTensor) else None
    assert proto._text == text


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", RECIPES)
def test_protos__are_what_a_call_does(name: str, case: str) -> None:
    settings, words = CASES[case]
    linear, active = layer(**settings), RECIPES[name]
    x, grad = inputs()
    x.requires_grad_()
    if name == "delayed" and case == "original input":
        with pytest.raises(ValueError, match=r"octet\.Linear"):
            linear.protos(x, *words, recipe=active)
        return
    found = linear.protos(octet.to_tensor_proto(x), *words, recipe=active)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = within(active, lambda x: linear(x, *words))(x)
    y = y[0] if linear.return_bias else y
    assert_is(found.forward.outputs["output"], y)
    assert found.forward.outputs["output"].requires_grad
    if case == "first microbatch":
        if name != "none":
            assert_is(found.forward.outputs["weight.cached"], linear._weight_cache.tensor)
    elif name == "none":  # torch's own views of them
        owners = {"input": x, "weight": linear.weight}
        aliased = [owners[saved.alias].data_ptr() for saved in found.forward.saved]
        assert sorted(aliased) == sorted(tensor.data_ptr() for tensor in kept)
    else:
        for saved, tensor in zip(found.forward.saved, kept, strict=True):
            assert_is(saved.proto, tensor)
            owner = {"input": x, "weight": linear.weight}.get(saved.alias)
            assert (owner is None) or owner.data_ptr() == tensor.data_ptr()
    assert found.forward.aliases == ({"bias": "bias"} if linear.return_bias else {})
    seen: list[torch.Tensor] = []
    x.register_hook(seen.append)
    y.backward(grad)
    grads = found.backward.outputs
    assert_is(grads["grad_input"], seen[0])
    assert_is(grads["grad_weight"], linear.weight.grad)
    if linear.bias is not None and not linear.return_bias:
        assert_is(grads["grad_bias"], linear.bias.grad)
    assert found.backward.workspace.dtype == torch.uint8
    assert found.wgrad is None


def test_protos__delayed_wgrad_and_inference() -> None:
    linear = layer(delay_wgrad_compute=True)
    x, grad = inputs()
    with octet.autocast(recipe=RECIPES["mxfp8"]):
        found = linear.protos(x)
        linear(x).backward(grad)
    (kept,) = linear._wgrads.calls
    assert "grad_weight" not in found.backward.outputs
    assert_is(found.backward.saved[-1].proto, kept.tensors[-1])
    assert found.wgrad.outputs["grad_weight"].shape == (44, 70)
    with torch.no_grad():
        assert linear.protos(x).backward is None


def test_protos__name_what_is_wrong() -> None:
    linear = layer(name="fc1")
    with pytest.raises(ValueError, match=r"'fc1'.*\(3, 71\).*70"):
        linear.protos(octet.TensorProto((3, 71), torch.bfloat16, device="cpu"))


def test_protos__follow_torch_autocast() -> None:
    linear = layer(params_dtype=torch.float32)
    x = octet.TensorProto((5, 70), torch.float32, device="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        found = linear.protos(x, recipe=RECIPES["mxfp8"])
    assert found.forward.outputs["output"].dtype == torch.bfloat16
    assert found.backward.outputs["grad_weight"].dtype == torch.float32
