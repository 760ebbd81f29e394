"""LoRA adapters of PEFT over converted layers."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import octet
import pytest
from laws import RECIPES

import torch

peft = pytest.importorskip("peft")

TARGETS = ["0", "2"]


def model(weights: octet.recipe.Recipe | None = None) -> torch.nn.Module:
    torch.manual_seed(1)
    made = torch.nn.Sequential(
        torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32)
    )
    return octet.convert(made, weights=weights)


def with_lora(base: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(2)
    return peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=TARGETS))


def train(lora: torch.nn.Module, recipe: octet.recipe.Recipe | None, steps: int = 2) -> None:
    optimizer = torch.optim.SGD([p for p in lora.parameters() if p.requires_grad], lr=0.5)
    for _ in range(steps):
        torch.manual_seed(3)
        with octet.autocast(enabled=recipe is not None, recipe=recipe):
            loss = lora(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.dequantize() if isinstance(tensor, octet.QuantizedTensor) else tensor.clone()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("quantized", [False, True])
def test_peft__a_step_changes_only_adapters(name: str, quantized: bool) -> None:
    base = model(octet.recipe.MXFP8BlockScaling() if quantized else None)
    lora = with_lora(base)
    wrapped = [m for m in lora.modules() if isinstance(m, peft.tuners.lora.Linear)]
    assert len(wrapped) == 2
    assert all(isinstance(m.base_layer, octet.Linear) for m in wrapped)
    before = {n: plain(p) for n, p in lora.named_parameters()}
    train(lora, RECIPES[name])
    for key, parameter in lora.named_parameters():
        after = plain(parameter)
        assert after.isfinite().all(), key
        assert torch.equal(after, before[key]) == ("lora_" not in key), key


def test_peft__the_base_layer_quantizes() -> None:
    lora, x = with_lora(model()), torch.randn(8, 64)
    with torch.no_grad():
        outside = lora(x)
        with octet.autocast(recipe=RECIPES["mxfp8"]):
            inside = lora(x)
    assert not torch.equal(inside, outside)
    torch.testing.assert_close(inside, outside, atol=0.2, rtol=0.1)


@pytest.mark.parametrize("name", ["mxfp8", "delayed"])
def test_peft__merged_adapters_leave_octet_layers(name: str) -> None:
    lora, x = with_lora(model()), torch.randn(8, 64)
    train(lora, RECIPES[name])
    with torch.no_grad():
        wanted = lora(x)
        merged = lora.merge_and_unload()
        assert [type(merged[0]), type(merged[2])] == [octet.Linear] * 2
        torch.testing.assert_close(merged(x), wanted)
        with octet.autocast(recipe=RECIPES[name]):
            assert merged(x).isfinite().all()


def test_peft__merging_into_quantized_weights() -> None:
    """The merged weight is quantized again: what it stands for is near the sum."""
    lora, x = with_lora(model(octet.recipe.MXFP8BlockScaling())), torch.randn(8, 64)
    train(lora, RECIPES["mxfp8"])
    layer = lora.base_model.model[0]
    wanted = plain(layer.base_layer.weight) + layer.get_delta_weight("default").detach()
    assert not torch.equal(wanted, plain(layer.base_layer.weight))
    with torch.no_grad():
        y = lora(x)
        merged = lora.merge_and_unload()
    assert isinstance(merged[0].weight, octet.QuantizedTensor)
    again = octet.MXFP8Quantizer("e4m3").quantize(wanted).dequantize()
    torch.testing.assert_close(plain(merged[0].weight), wanted, atol=0.02, rtol=2**-4)
    torch.testing.assert_close(plain(merged[0].weight), again, atol=0.02, rtol=2**-4)
    torch.testing.assert_close(merged(x), y, atol=0.3, rtol=0.1)


def test_peft__adapters_save_and_load(tmp_path: object) -> None:
    lora, x = with_lora(model()), torch.randn(8, 64)
    train(lora, RECIPES["delayed"])
    lora.save_pretrained(tmp_path)
    other = peft.PeftModel.from_pretrained(model(), tmp_path)
    with torch.no_grad():
        assert torch.equal(lora.eval()(x), other.eval()(x))
