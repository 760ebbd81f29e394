"""Any tensors and texts given to the ops, any state dict given to loaders: a result, or one of
the documented exceptions. Each test makes the same draws in every run;
``OCTET_FUZZ_SECONDS`` makes it go on for that long, ``OCTET_FUZZ_SEED`` begins elsewhere."""

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import octet
import pytest
from laws import QUANTIZERS, RECIPES
from octet import _ops

import torch

SECONDS = float(os.environ.get("OCTET_FUZZ_SECONDS", "0"))
DRAWS = 400  # at least
SEED = int(os.environ.get("OCTET_FUZZ_SEED", "0"))
REFUSALS = (ValueError, TypeError, RuntimeError, NotImplementedError, IndexError)
DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8),
    *(torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn),
)
SIZES = (0, 1, 2, 3, 7, 16, 17, 31, 32, 33, 64, 100, 128, 129)
WORDS = (
    *("in=bf16", "in=f32", "in=f16", "recipe=mxfp8", "recipe=current", "recipe=nvfp4", "bias"),
    *("recipe=delayed:history=4", "recipe=block", "recipe=mxfp4", "grad=none", "grad=x"),
    *("raise_amax", "skip_amax", "main_grad=add", "delay_wgrad", "cache=write", "cache=read"),
    *("quantize_output", "quantize_grad_input", "qw=mxfp8:e4m3", "qin=fp8-tensor:e4m3"),
    *("prologue=rmsnorm eps=1e-05", "prologue=swiglu", "beta", "w=f32", "out=f32", "calibrate"),
    *("parallel=row tp=2", "sequence", "device=cuda:0/90", "threads=3", "m=4", "\x00", "é"),
)
TENSOR_WORDS = ("bf16", "f32", "f16", "u8", "none", "device=cpu", "device=cuda:0/90", "")


class Draw:
    """Random tensors, texts and sizes of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def shape(self) -> list[int]:
        shape = [
            self.random.choice(SIZES) for _ in range(self.random.choice((0, 1, 2, 2, 2, 3)))
        ]
        return shape if torch.Size(shape).numel() <= 1 << 16 else shape[:1]

    def tensor(self, shape: list[int] | None = None) -> torch.Tensor:
        shape = self.shape() if shape is None else shape
        dtype = self.random.choice(DTYPES if self.random.random() < 0.3 else DTYPES[:3])
        tensor = torch.randn(shape, generator=self.generator)
        if self.random.random() < 0.2:
            tensor = tensor * float(self.random.choice(("inf", "nan", "1e-40", "3e38", "0")))
        tensor = tensor.to(dtype)
        if tensor.dim() >= 2 and self.random.random() < 0.2:
            tensor = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
        if self.random.random() < 0.05:
            tensor = tensor.to("meta")
        return tensor

    def tensors(self, most: int = 5) -> list[torch.Tensor]:
        return [self.tensor() for _ in range(self.random.randrange(most))]

    def words(self) -> str:
        first = [self.random.choice(WORDS[:3])] if self.random.random() < 0.9 else []
        return " ".join([*first, *self.random.sample(WORDS, self.random.randrange(5))])

    def tensor_text(self) -> str:
        quantizer = str(self.random.choice(QUANTIZERS))
        if self.random.random() < 0.2:
            at = self.random.randrange(len(quantizer) + 1)
            quantizer = quantizer[:at] + self.random.choice("+:/x0\x7f ") + quantizer[at:]
        return f"{self.random.choice(TENSOR_WORDS)} {quantizer}"

    def sizes(self) -> list[int]:
        edge = (-1, 2**31, 2**62, 2**63 - 1)
        many = [self.random.choice(SIZES) for _ in range(self.random.randrange(5))]
        return [self.random.choice(edge) if self.random.random() < 0.1 else s for s in many]


def draws() -> Iterator[Draw]:
    """At least DRAWS, and more until the time is up."""
    end = time.monotonic() + SECONDS
    count = 0
    while count < DRAWS or time.monotonic() < end:
        yield Draw(SEED * 1_000_003 + count)
        count += 1


def matching(draw: Draw) -> tuple[list[torch.Tensor], list[int], str]:
    """A call that is mostly right, so that more than its checks runs."""
    m, k, n = (draw.random.choice(SIZES[:11]) for _ in range(3))
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}
    name = draw.random.choice(list(dtype))
    recipe = draw.random.choice(("mxfp8", "current", "block", "none", "nvfp4", "delayed"))
    words = f"in={name} recipe={recipe} {draw.random.choice(('', 'bias', 'grad=none'))}".strip()
    shapes = [[m, k], [n, k], *([[n]] if "bias" in words else [])]
    made = [torch.randn(s, generator=draw.generator).to(dtype[name]) for s in shapes]
    if draw.random.random() < 0.3:
        made[draw.random.randrange(len(made))] = draw.tensor()
    if recipe == "delayed":
        made.append(torch.ones(3))
    return made, [m, k, n], words


def outcome(call: Callable[[], Any], refusals: Any = REFUSALS) -> tuple[Any, str]:  # noqa: ANN401
    """What a call gives, or the words of its refusal."""
    try:
        return call(), ""
    except refusals as error:
        return None, str(error) or "nothing"


def attempts(draw: Draw) -> list[Callable[[], Any]]:
    x, extra = draw.tensor(), draw.tensors(3)
    args, sizes, words = matching(draw)
    into = draw.random.choice(_ops.linear_into)
    rule = draw.random.choice(("input delayed:history=4", "x", "input", "input mxfp8", ""))
    return [
        lambda: _ops.quantize(x, extra, draw.tensor_text()),
        lambda: _ops.quantize_into(draw.tensors(), x, extra, draw.tensor_text()),
        lambda: _ops.dequantize(draw.tensors(), draw.sizes(), draw.tensor_text()),
        lambda: _ops.linear(args, sizes, words),
        lambda: _ops.linear(draw.tensors(), draw.sizes(), draw.words()),
        lambda: _ops.linear_backward(draw.tensors(), draw.sizes(), draw.words()),
        lambda: into(draw.tensors(2), args, sizes, words),
        lambda: torch.ops.octet.delayed_update(draw.tensors(), rule),
    ]


def test_fuzz__ops_answer_or_refuse() -> None:
    answered = refused = 0
    for draw in draws():
        for attempt in attempts(draw):
            _, words = outcome(attempt)
            assert words != "nothing"
            refused += bool(words)
            answered += not words
    assert answered > 20
    assert refused > 100


def test_fuzz__layers_answer_or_refuse_and_work_on() -> None:
    for draw in draws():
        recipe = draw.random.choice(list(RECIPES.values()))
        k, n = draw.random.choice(SIZES[1:]), draw.random.choice(SIZES[1:])
        linear = octet.Linear(k, n, params_dtype=torch.bfloat16, device="cpu")
        for x in (draw.tensor(), draw.tensor([3, k]), torch.randn(3, k).bfloat16()):
            last = x.shape == (3, k) and x.dtype == torch.bfloat16
            try:
                with octet.autocast(enabled=True, recipe=recipe):
                    y = linear(x)
                y.float().sum().backward()
            except REFUSALS:
                assert not (last and x.device.type == "cpu" and x.isfinite().all())


# ---- loaders -------------------------------------------------------------------------------


def text_of(tensor: torch.Tensor) -> bytearray:
    """The bytes of a flattened text; "?" where an earlier change left something else."""
    readable = tensor.dtype == torch.uint8 and tensor.dim() == 1 and not tensor.is_meta
    return bytearray(tensor.tolist() if readable else b"?")


def spoiled(draw: Draw, state: dict[str, Any]) -> dict[str, Any]:
    """The state dict with some of it lost, renamed, or of another kind, shape or value."""
    state = dict(state)
    for _ in range(draw.random.randrange(1, 4)):
        key = draw.random.choice(list(state)) if state else "weight"
        kind = draw.random.randrange(7)
        if kind == 0:
            state.pop(key, None)
        elif kind == 1:
            state[key + draw.random.choice(("._octet", "._rowwise_data", "x"))] = draw.tensor()
        elif kind == 2:
            state[key] = draw.tensor()
        elif kind == 3:
            state[key] = draw.random.choice((None, "text", 3, [1], b"bytes"))
        elif isinstance(state.get(key), torch.Tensor) and key.endswith("._octet"):
            text = text_of(state[key])
            at = draw.random.randrange(len(text) + 1)
            text[at : at + 1] = draw.random.choice(
                (b"", b"0", b"9223372036854775807", b"x", b"\xff")
            )
            state[key] = torch.tensor(list(text), dtype=torch.uint8)
        elif isinstance(state.get(key), torch.Tensor) and state[key].dim():
            state[key] = state[key][: draw.random.randrange(len(state[key]) + 1)]
    return state


def model(name: str) -> torch.nn.Module:
    with octet.quantized_model_init(recipe=RECIPES[name]):
        return octet.Linear(70, 44, params_dtype=torch.bfloat16, device="cpu")


def use(tensor: torch.Tensor) -> None:
    """What was loaded can be used: its bytes are all there."""
    if isinstance(tensor, octet.QuantizedTensor):
        tensor.dequantize()


def test_fuzz__unflatten_answers_or_refuses() -> None:
    flats = [octet.flatten_state_dict(model(name).state_dict()) for name in RECIPES]
    answered = refused = 0
    for draw in draws():
        hostile = spoiled(draw, draw.random.choice(flats))
        made, words = outcome(lambda d=hostile: octet.unflatten_state_dict(d), ValueError)
        assert not words or "flatten_state_dict" in words
        refused += bool(words)
        answered += not words
        for value in (made or {}).values():
            use(value)
    assert min(answered, refused) > 10


def test_fuzz__load_state_dict_answers_or_refuses_and_the_layer_works() -> None:
    names = ["none", "mxfp8", "delayed", "nvfp4"]
    models = {name: model(name) for name in names}
    states = {name: m.state_dict() for name, m in models.items()}
    for name in names:
        states[f"{name} flat"] = octet.flatten_state_dict(states[name])
    x = torch.randn(5, 70).bfloat16()
    for draw in draws():
        linear, source = models[draw.random.choice(names)], draw.random.choice(list(states))
        hostile = spoiled(draw, states[source])
        strict = draw.random.random() < 0.5
        _, words = outcome(lambda m=linear, d=hostile, s=strict: m.load_state_dict(d, strict=s))
        assert words != "nothing"
        with octet.autocast(recipe=RECIPES["mxfp8"]):
            assert linear(x).shape == (5, 44)


def test_fuzz__safetensors_of_any_bytes() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    whole = safetensors.save(octet.flatten_state_dict(model("mxfp8").state_dict()))
    header = int.from_bytes(whole[:8], "little") + 8
    opened = 0
    for draw in draws():
        data = bytearray(whole)
        for _ in range(draw.random.randrange(1, 5)):
            limit = header if draw.random.random() < 0.8 else len(data)
            data[draw.random.randrange(limit)] = draw.random.randrange(256)
        tensors, words = outcome(lambda d=bytes(data): safetensors.load(d), Exception)
        if words:  # the library's own refusal
            continue
        made, words = outcome(lambda d=tensors: octet.unflatten_state_dict(d), ValueError)
        assert not words or "flatten_state_dict" in words
        opened += not words
        for value in (made or {}).values():
            use(value)
    assert opened > 0
