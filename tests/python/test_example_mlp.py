"""examples/c/mlp.c: quantized weights run in C as in Python, and no file harms it."""

import json
import os
import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import octet
import pytest

import torch

safetensors = pytest.importorskip("safetensors.torch")

ROOT = Path(__file__).parents[2]
MLP = ROOT / os.environ.get("OCTET_BUILD", "build") / "examples" / "mlp"
pytestmark = pytest.mark.skipif(not MLP.exists(), reason=f"no {MLP}: make examples")
RECIPES = {
    "current": octet.recipe.Float8CurrentScaling(),
    "block": octet.recipe.Float8BlockScaling(),
    "mxfp8": octet.recipe.MXFP8BlockScaling(),
    "nvfp4": octet.recipe.NVFP4BlockScaling(),
    "mxfp4": octet.recipe.MXFP4BlockScaling(),
}


def network(recipe: octet.recipe.Recipe, bias: bool = True) -> torch.nn.Sequential:
    torch.manual_seed(0)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    model = torch.nn.Sequential(
        linear(64, 96, bias), relu(), linear(96, 40), relu(), linear(40, 10)
    )
    octet.convert(model, weights=recipe)
    return model


def mlp(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([MLP, *map(str, words)], capture_output=True, text=True, timeout=60)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path, Path]:
    model, x = network(RECIPES["mxfp8"]), torch.randn(7, 64)
    model_path, x_path = tmp_path / "model.safetensors", tmp_path / "x.safetensors"
    safetensors.save_file(octet.flatten_state_dict(model.state_dict()), model_path)
    safetensors.save_file({"x": x}, x_path)
    return model_path, x_path, tmp_path / "y.safetensors"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", RECIPES)
def test_mlp__gives_the_bits_of_python(name: str, bias: bool, tmp_path: Path) -> None:
    model, x = network(RECIPES[name], bias), torch.randn(7, 64)
    files = [tmp_path / f"{which}.safetensors" for which in ("model", "x", "y")]
    flat = octet.flatten_state_dict(model.state_dict())
    safetensors.save_file(flat, files[0], metadata={"format": 'pt "\\ é'})
    safetensors.save_file({"x": x}, files[1])
    done = mlp(files[0], name, *files[1:])
    assert (done.returncode, done.stderr) == (0, "")
    with torch.no_grad(), octet.autocast(recipe=RECIPES[name]):
        wanted = model(x)
    y = safetensors.load_file(files[2])["y"]
    assert torch.equal(y, wanted)
    assert y.abs().max() > 0
    assert not (tmp_path / "y.safetensors.part").exists()


def test_mlp__refuses_what_does_not_fit(paths: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, x, y = paths
    narrow = tmp_path / "narrow.safetensors"
    safetensors.save_file({"x": torch.randn(7, 32)}, narrow)
    plain = tmp_path / "plain.safetensors"
    safetensors.save_file({"0.weight": torch.randn(4, 64)}, plain)
    for words, reason in (
        ((model, "mxfp8", narrow, y), "layer 0 takes 64 features, but gets 32"),
        ((model, "mxfp9", x, y), "mxfp9"),
        ((model, "delayed", x, y), "take another recipe"),
        ((plain, "mxfp8", x, y), "no tensor is called 0.weight._octet"),
        ((model, "mxfp8", model, y), "it has no tensor x"),
        ((tmp_path / "none", "mxfp8", x, y), "it cannot be opened"),
        ((model, "mxfp8", x, tmp_path / "no" / "y"), "is there such a folder?"),
    ):
        done = mlp(*words)
        assert done.returncode == 1
        assert reason in done.stderr
        assert not y.exists()
    assert mlp().returncode == 2


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(header: "dict[str, Any] | bytes", data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


NAME = "0.weight._rowwise_data"
Change = Callable[[dict[str, Any], bytes], bytes]


def entry(**fields: object) -> Change:
    def change(header: dict[str, Any], data: bytes) -> bytes:
        header[NAME] = {**header[NAME], **fields}
        return joined(header, data)

    return change


def text(said: bytes) -> Change:
    """Puts another text of the same length into the file."""

    def change(header: dict[str, Any], data: bytes) -> bytes:
        begin, end = header["0.weight._octet"]["data_offsets"]
        return joined(header, data[:begin] + said.ljust(end - begin) + data[end:])

    return change


ONE = b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
HOSTILE: dict[str, tuple[Change, str]] = {
    "empty": (lambda h, d: b"", "too few"),
    "seven bytes": (lambda h, d: b"\0" * 7, "too few"),
    "long header": (lambda h, d: joined(h, d, 2**63), "too few"),
    "longer header": (lambda h, d: joined(h, b"", len(json.dumps(h)) + 1), "too few"),
    "short header": (lambda h, d: joined(h, d, 40), "the header has no"),
    "no json": (lambda h, d: joined(b"\0" * 64, d), "the header has no '{'"),
    "twice": (lambda h, d: joined(b"{" + ONE + b"," + ONE + b"}", d), "a is there twice"),
    "beyond ascii": (lambda h, d: joined({"é": {}}, d), "an escape, or is not ASCII"),
    "escape": (lambda h, d: joined(b'{"a\\u0000":{}}', d), "an escape, or is not ASCII"),
    "long name": (lambda h, d: joined({"a" * 200: {}}, d), "at most 127"),
    "after": (lambda h, d: joined(json.dumps(h).encode() + b"{}", d), "goes on after"),
    "huge": (entry(shape=[2**62, 2**62]), "larger than the file"),
    "zero times huge": (entry(shape=[2**62, 2**62, 0]), "larger than the file"),
    "large number": (entry(shape=[10**30]), "too large"),
    "negative": (entry(shape=[-1, 4]), "is no number"),
    "fraction": (entry(shape=[1.5]), "the header has no"),
    "many axes": (entry(shape=[1] * 9), "more than 8"),
    "other shape": (entry(shape=[64, 96]), "the file is damaged"),
    "dtype": (entry(dtype="F64"), "dtype F64 is not known"),
    "long dtype": (entry(dtype="F" * 80), "at most 7"),
    "three offsets": (entry(data_offsets=[0, 1, 2]), "more than 2"),
    "one offset": (entry(data_offsets=[0]), "two data_offsets"),
    "outside": (entry(data_offsets=[2**40, 2**40 + 6144]), "data_offsets are"),
    "backwards": (entry(data_offsets=[6144, 0]), "data_offsets are"),
    "unknown key": (entry(more=1), "the key more is not known"),
    "hole": (lambda h, d: joined(h, d + b"\0"), "belong to no tensor"),
    "cut": (lambda h, d: joined(h, d[:-1]), "data_offsets are"),
    "missing": (lambda h, d: joined({k: v for k, v in h.items() if k != NAME}, d), "ends at"),
    "no quantizer": (text(b"f32 96x64 mxfp7:e4m3/1x32+row+col"), "mxfp7"),
    "no shape": (text(b"f32 96 mxfp8:e4m3"), "does not say dtype"),
    "many rows": (text(b"f32 969999x64 mxfp8:e4m3/1x32+row"), "the file is damaged"),
    "not printable": (text(b"\0f32"), "does not say dtype"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_mlp__refuses_hostile_files(name: str, paths: tuple[Path, Path, Path]) -> None:
    model, x, y = paths
    change, reason = HOSTILE[name]
    model.write_bytes(change(*split(model)))
    done = mlp(model, "mxfp8", x, y)
    assert (done.returncode, reason in done.stderr) == (1, True), done.stderr
    assert not y.exists()


def test_mlp__no_damage_crashes_it(paths: tuple[Path, Path, Path]) -> None:
    model, x, y = paths
    whole, draw = model.read_bytes(), random.Random(0)
    (length,) = struct.unpack("<Q", whole[:8])
    for _ in range(150):
        raw = bytearray(whole)
        for _ in range(draw.choice((1, 1, 3))):
            raw[draw.randrange(8 + length)] = draw.choice(b'{}[]",:0919\\ \0\xff')
        model.write_bytes(raw)
        assert mlp(model, "mxfp8", x, y).returncode in (0, 1)
