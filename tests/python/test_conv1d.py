"""transformers' Conv1D: converted without importing it, in its own layout on disk."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import octet
import pytest
from laws import RECIPES, within

import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
from transformers.pytorch_utils import Conv1D  # noqa: E402

QUANTIZED = [name for name in RECIPES if name != "none"]


def gpt2() -> Any:  # noqa: ANN401
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2
    )
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(64, (2, 8))


def conv1ds(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: m for name, m in model.named_modules() if isinstance(m, Conv1D)}


def same_state(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


def test_conv1d__becomes_a_linear_that_computes_the_same(tokens: torch.Tensor) -> None:
    model = gpt2()
    plain, names = copy.deepcopy(model), set(conv1ds(model))
    octet.convert(model)
    assert not conv1ds(model)
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, octet.Linear)
        assert layer.weight.shape == (layer.nf, layer.nx)
        assert layer.weight.is_contiguous()
    assert model.lm_head.weight is model.transformer.wte.weight
    assert torch.allclose(model(tokens).logits, plain(tokens).logits, atol=1e-5)


def test_conv1d__keeps_its_layout_in_state_dicts(tokens: torch.Tensor) -> None:
    first, second, third = gpt2(), gpt2(), octet.convert(gpt2())
    want = first(tokens).logits
    state = first.state_dict()
    octet.convert(first)
    assert same_state(first, copy.deepcopy(first))
    assert list(first.state_dict()) == list(state)
    assert all(torch.equal(found, state[key]) for key, found in first.state_dict().items())
    second.load_state_dict(first.state_dict())
    third.load_state_dict(second.state_dict())
    assert torch.equal(second(tokens).logits, want)
    assert torch.allclose(third(tokens).logits, want, atol=1e-5)
    with torch.device("meta"):
        fourth = octet.convert(gpt2())
    fourth.load_state_dict(second.state_dict(), assign=True)
    assert fourth.transformer.h[0].attn.c_proj.weight.is_contiguous()
    octet.unconvert(fourth)
    assert same_state(fourth, second)


def test_conv1d__comes_back(tokens: torch.Tensor) -> None:
    model = gpt2()
    plain = copy.deepcopy(model)
    octet.unconvert(octet.convert(model))
    assert list(conv1ds(model)) == list(conv1ds(plain))
    assert same_state(model, plain)
    assert torch.equal(model(tokens).logits, plain(tokens).logits)
    assert {n: p.shape for n, p in model.named_parameters()} == {
        n: p.shape for n, p in plain.named_parameters()
    }
    for name, layer in conv1ds(plain).items():
        assert vars(model.get_submodule(name)).keys() == vars(layer).keys()


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("quantized", [False, True])
def test_conv1d__trains(name: str, quantized: bool, tokens: torch.Tensor) -> None:
    model = gpt2().train()
    octet.convert(model, weights=RECIPES[name] if quantized else None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss() -> torch.Tensor:
        torch.manual_seed(0)
        return within(RECIPES[name], lambda: model(tokens, labels=tokens).loss)()

    before = loss()
    before.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    optimizer.step()
    assert loss() < before


@pytest.mark.parametrize("flat", [False, True])
def test_conv1d__quantized_is_saved_under_a_name_of_its_own(flat: bool) -> None:
    """A square weight could be loaded the wrong way round otherwise."""
    model, other = gpt2(), octet.convert(gpt2(), weights=RECIPES["mxfp8"])
    plain = copy.deepcopy(model)
    octet.convert(model, weights=RECIPES["mxfp8"])
    state = model.state_dict()
    key = "transformer.h.0.attn.c_proj.weight"
    assert key not in state
    assert isinstance(state[f"{key}_t"], octet.QuantizedTensor)
    if flat:
        state = octet.flatten_state_dict(state)  # the embedding is tied to a layer: it, too
    other.load_state_dict(state)
    for name, found in other.named_parameters():
        want = model.get_parameter(name)
        if isinstance(want, octet.QuantizedTensor):
            assert all(map(torch.equal, found.buffers(), want.buffers()))
        else:
            assert torch.equal(found, want)
    with pytest.raises(RuntimeError, match=r"c_proj\.weight_t"):
        plain.load_state_dict(state)
    swapped = {**model.state_dict(), key: model.state_dict()[f"{key}_t"]}
    with pytest.raises(RuntimeError, match=r"c_proj\.weight is quantized, but"):
        model.load_state_dict(swapped)


def test_conv1d__quantized_loads_a_plain_checkpoint_and_comes_back() -> None:
    plain, model = gpt2(), octet.convert(gpt2(), weights=RECIPES["mxfp8"])
    model.load_state_dict(plain.state_dict())
    other = octet.convert(copy.deepcopy(plain), weights=RECIPES["mxfp8"])
    layer = model.transformer.h[0].mlp.c_fc
    want = other.transformer.h[0].mlp.c_fc.weight
    assert all(map(torch.equal, layer.weight.buffers(), want.buffers()))
    decoded = want.dequantize().t()
    octet.unconvert(model)
    assert torch.equal(model.transformer.h[0].mlp.c_fc.weight, decoded)


def test_conv1d__tied_weights_stay_tied() -> None:
    model = torch.nn.Sequential(Conv1D(8, 8), Conv1D(8, 8))
    model[1].weight = model[0].weight
    x = torch.randn(2, 8)
    want = model(x)
    octet.convert(model)
    assert model[0].weight is model[1].weight
    assert torch.allclose(model(x), want, atol=1e-6)
    octet.unconvert(model)
    assert model[0].weight is model[1].weight
    assert torch.equal(model(x), want)


class Scaled(Conv1D):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def hooked() -> Conv1D:
    layer = Conv1D(8, 8)
    layer.weight.register_hook(lambda grad: None)
    return layer


def test_conv1d__what_cannot_be_is_left() -> None:
    model = torch.nn.Sequential(
        Scaled(8, 8), hooked(), Conv1D(8, 8), torch.nn.Embedding(8, 8), Conv1D(8, 8)
    )
    model[3].weight = model[2].weight
    with pytest.raises(ValueError, match=r"2 cannot.*also that of a Embedding"):
        octet.convert(model, "2")
    with pytest.warns(
        UserWarning, match=r"(?s)0: it is a Scaled.*1: it has hooks.*2: its weight, \(in, out\)"
    ):
        octet.convert(model)
    assert [isinstance(m, octet.Linear) for m in model] == [False, False, False, False, True]


def test_conv1d__save_pretrained_works_on_a_converted_model(
    tmp_path: Path, tokens: torch.Tensor
) -> None:
    model = gpt2()
    want = model(tokens).logits
    octet.convert(model).save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(tokens).logits, want)


class SquareConverted(transformers.GPT2LMHeadModel):
    """Converts only the layers whose shape does not tell (in, out) from (out, in)."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401
        super().__init__(config)
        octet.convert(self, "*.attn.c_proj")


def test_conv1d__from_pretrained_of_a_model_that_converts_itself(
    tmp_path: Path, tokens: torch.Tensor
) -> None:
    model = gpt2()
    model.save_pretrained(tmp_path)
    loaded = SquareConverted.from_pretrained(tmp_path).eval()
    assert isinstance(loaded.transformer.h[0].attn.c_proj, octet.Linear)
    assert torch.allclose(loaded(tokens).logits, model(tokens).logits, atol=1e-5)
    assert same_state(loaded, model)


def test_conv1d__is_known_without_importing_transformers() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(octet.__file__).parents[1])!r})\n"
        "import octet, torch\n"
        "octet.convert(torch.nn.Sequential(torch.nn.Linear(4, 4)))\n"
        "print('transformers' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert run.stdout.split() == ["False"]
