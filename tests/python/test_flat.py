"""flatten_state_dict: plain tensors for safetensors, from which every bit comes back."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import octet
import pytest
from laws import QUANTIZERS, RECIPES

import torch

safetensors = pytest.importorskip("safetensors.torch")

Flat = dict[str, torch.Tensor]
QUANTIZED = [name for name in RECIPES if name != "none"]


def model(name: str = "mxfp8", dtype: torch.dtype = torch.bfloat16) -> torch.nn.Sequential:
    def layer(k: int, n: int) -> octet.Linear:
        return octet.Linear(k, n, params_dtype=dtype, device="cpu")

    with octet.quantized_model_init(recipe=RECIPES[name]):
        return torch.nn.Sequential(layer(70, 44), torch.nn.LayerNorm(44), layer(44, 20))


def assert_same_state(a: torch.nn.Module, b: torch.nn.Module) -> None:
    left, right = a.state_dict(), b.state_dict()
    assert list(left) == list(right)
    for key, value in left.items():
        assert type(value) is type(right[key])
        if isinstance(value, octet.QuantizedTensor):
            assert value._text == right[key]._text
            assert value.dtype == right[key].dtype
            assert all(map(torch.equal, value.buffers(), right[key].buffers()))
        else:
            assert torch.equal(value, right[key])


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("flat", [False, True])
def test_flat__saves_and_loads_a_model(name: str, flat: bool, tmp_path: Path) -> None:
    first, second = model(name), model(name)
    safetensors.save_file(octet.flatten_state_dict(first.state_dict()), tmp_path / "file")
    loaded = safetensors.load_file(tmp_path / "file")
    second.load_state_dict(loaded if flat else octet.unflatten_state_dict(loaded))
    assert_same_state(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (5,), (0, 32), (6, 33, 70)], ids=str)
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
def test_flat__restores_every_bit(
    quantizer: octet.Quantizer, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    y = quantizer(torch.randn(shape, dtype=dtype))
    flat = octet.flatten_state_dict({"a.b": y, "plain": torch.ones(2)})
    assert all(type(t) is torch.Tensor and t.is_contiguous() for t in flat.values())
    back = octet.unflatten_state_dict(flat)
    assert list(back) == ["a.b", "plain"]
    z = back["a.b"]
    assert (z._text, z.shape, z.dtype) == (y._text, y.shape, y.dtype)
    assert all(map(torch.equal, y.buffers(), z.buffers()))


def test_flat__layers_take_it_by_assignment() -> None:
    first = model()
    flat = octet.flatten_state_dict(first.state_dict())
    with torch.device("meta"):
        second = torch.nn.Sequential(
            octet.Linear(70, 44), torch.nn.LayerNorm(44), octet.Linear(44, 20)
        )
    second.load_state_dict(flat, assign=True)
    assert_same_state(first, second)


def test_flat__brings_delayed_scalings_state_along() -> None:
    first, second = model("delayed", torch.float32), model("delayed", torch.float32)
    with octet.autocast(recipe=RECIPES["delayed"]):
        first(torch.randn(8, 70)).sum().backward()
    second.load_state_dict(octet.flatten_state_dict(first.state_dict()))
    assert_same_state(first, second)
    assert bool((second[0].fp8_scale != 1).any())


def test_flat__plain_weights_load_what_it_stands_for() -> None:
    first = model()
    second = torch.nn.Sequential(octet.Linear(70, 44, device="cpu"))
    flat = octet.flatten_state_dict(first[:1].state_dict())
    second.load_state_dict(flat)
    assert torch.equal(second[0].weight, first[0].weight.dequantize().float())


def test_flat__tied_weights_keep_both_names(tmp_path: Path) -> None:
    tied = torch.nn.Sequential(*[model()[0] for _ in range(3)])
    tied[1].weight = tied[0].weight
    tied[2].bias = tied[0].bias
    flat = octet.flatten_state_dict(tied.state_dict())
    safetensors.save_file(flat, tmp_path / "file")
    again = copy.deepcopy(tied)
    for layer in again:
        layer.reset_parameters()
    again.load_state_dict(safetensors.load_file(tmp_path / "file"))
    assert again[0].weight is again[1].weight
    assert_same_state(tied, again)


def test_flat__refuses_what_is_no_plain_tensor() -> None:
    with pytest.raises(ValueError, match="'extra' is a dict, not a tensor"):
        octet.flatten_state_dict({"extra": {}})
    y = QUANTIZERS[4](torch.randn(4, 32))
    with pytest.raises(ValueError, match=r"two tensors for 'w\._rowwise_data'"):
        octet.flatten_state_dict({"w._rowwise_data": torch.ones(1), "w": y})


@pytest.mark.parametrize("save", ["save_file", "save", "save_model"])
def test_flat__unflattened_it_is_not_saved(save: str, tmp_path: Path) -> None:
    first = model()
    args = {
        "save_file": (first.state_dict(), tmp_path / "file"),
        "save": (first.state_dict(),),
        "save_model": (first, str(tmp_path / "file")),
    }[save]
    with pytest.raises(RuntimeError, match=r"octet\.flatten_state_dict"):
        getattr(safetensors, save)(*args)
    assert not list(tmp_path.iterdir())


def text(words: str) -> Callable[[Flat], Any]:
    return lambda flat: flat.update({"w._octet": torch.tensor(list(words.encode())).byte()})


TEXT = "f32 40x64 mxfp8:e4m3/1x32+row"
DAMAGED: dict[str, tuple[Callable[[Flat], Any], str]] = {
    "missing": (lambda f: f.pop("w._rowwise_scale_inv"), r"no 'w\._rowwise_scale_inv'"),
    "text_missing": (lambda f: f.pop("w._octet"), r"no 'w\._octet'"),
    "size": (
        lambda f: f.update({"w._rowwise_data": f["w._rowwise_data"][:39]}),
        r"'w\._rowwise_data' is torch.uint8 \(39, 64\).*\(40, 64\)",
    ),
    "axes": (
        lambda f: f.update({"w._rowwise_data": f["w._rowwise_data"].reshape(-1)}),
        r"'w\._rowwise_data' is torch.uint8 \(2560,\)",
    ),
    "dtype": (
        lambda f: f.update({"w._rowwise_data": f["w._rowwise_data"].view(torch.int8)}),
        r"'w\._rowwise_data' is torch.int8",
    ),
    "device": (
        lambda f: f.update({"w._rowwise_data": f["w._rowwise_data"].to("meta")}),
        r"'w\._rowwise_scale_inv' is on cpu, 'w\._rowwise_data' on meta",
    ),
    "more": (
        lambda f: f.update({"w._columnwise_data": f["w._rowwise_data"]}),
        r"'w\._columnwise_data' is there, but mxfp8:e4m3/1x32\+row has no such",
    ),
    "plain_too": (lambda f: f.update(w=torch.ones(2)), "'w' is there plain and quantized"),
    "text_dtype": (
        lambda f: f.update({"w._octet": torch.ones(5)}),
        r"'w\._octet' is not a uint8 tensor",
    ),
    "text_axes": (
        lambda f: f.update({"w._octet": f["w._octet"][None]}),
        r"'w\._octet' is not a uint8 tensor of one axis",
    ),
    "long": (text(TEXT + " " * 5000), r"'w\._octet' has 50\d\d bytes"),
    "empty": (text(""), r"'w\._octet' reads ''"),
    "words": (text("hello"), r"'w\._octet' reads 'hello'"),
    "bytes": (
        lambda f: f.update({"w._octet": torch.full((9,), 255, dtype=torch.uint8)}),
        r"'w\._octet' reads",
    ),
    "unknown_dtype": (text(TEXT.replace("f32", "f64")), r"'w\._octet' says dtype 'f64'"),
    "no_float": (text(TEXT.replace("f32", "u8")), r"'w\._octet' says dtype 'u8'"),
    "scheme": (text("f32 40x64 mxfp9:e4m3+row"), r"'w\._octet' says .*mxfp9"),
    "no_scheme": (text("f32 40x64 none"), r"'w\._octet' says .*none"),
    "not_canonical": (text("f32 40x64 mxfp8:e4m3+row"), r"'w\._octet' says"),
    "shape": (text(TEXT.replace("40x64", "64x40")), r"'w\._rowwise_data' is .*\(64, 40\)"),
    "rank": (text(TEXT.replace("40x64", "40x64x1")), r"'w\._rowwise_data' is"),
    "huge": (text(TEXT.replace("40", "9" * 30)), r"'w\._rowwise_data' is"),
    "digits": (text(TEXT.replace("40", "9" * 4090)), r"'w\._octet' has|'w\._octet' says"),
    "negative": (text(TEXT.replace("40", "-40")), r"'w\._octet' reads"),
}


@pytest.mark.parametrize(("damage", "pattern"), DAMAGED.values(), ids=DAMAGED)
def test_flat__damage_is_refused_by_name(damage: Callable[[Flat], Any], pattern: str) -> None:
    quantizer = octet.MXFP8Quantizer("e4m3", columnwise=False)
    flat = octet.flatten_state_dict({"w": quantizer(torch.randn(40, 64))})
    assert bytes(flat["w._octet"].tolist()).decode() == TEXT
    damage(flat)
    with pytest.raises(ValueError, match=pattern):
        octet.unflatten_state_dict(flat)


@pytest.mark.parametrize("shape", ["0x9223372036854775808", "0x4611686018427387904x4x64"])
def test_flat__sizes_that_no_tensor_has_are_refused(shape: str) -> None:
    flat = octet.flatten_state_dict({"w": octet.MXFP8Quantizer("e4m3")(torch.ones(0, 64))})
    text(f"f32 {shape} mxfp8:e4m3/1x32+row+col")(flat)
    with pytest.raises(ValueError, match=r"'w\._"):
        octet.unflatten_state_dict(flat)


def test_flat__damage_is_refused_by_layers() -> None:
    first = model()
    flat = octet.flatten_state_dict(first.state_dict())
    flat["2.weight._octet"] = flat["2.weight._octet"][:-3]
    with pytest.raises(ValueError, match=r"'2\.weight\."):
        first.load_state_dict(flat)
    del flat["2.weight._octet"]
    with pytest.raises(RuntimeError, match=r"2\.weight\._"):
        first.load_state_dict(flat)


def test_flat__other_keys_pass() -> None:
    flat = {"a._data": torch.ones(1), "b": torch.ones(2), "_octet": torch.ones(3)}
    assert octet.unflatten_state_dict(flat) == flat
