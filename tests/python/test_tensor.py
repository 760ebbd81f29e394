"""QuantizedTensor: bytes that stand for a tensor, through everything torch does with one."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import octet
import pytest
from laws import QUANTIZERS, compiled
from octet.tensor import as_dtype

import torch


@pytest.fixture(params=QUANTIZERS, ids=str)
def q(request: pytest.FixtureRequest) -> octet.Quantizer:
    return request.param


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(6, 33, 70)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a._text == b._text and all(map(torch.equal, a.buffers(), b.buffers()))


def test_tensor__flatten_round_trips(q: octet.Quantizer, x: torch.Tensor) -> None:
    y = q(x)
    names, meta = y.__tensor_flatten__()
    inner = {name: getattr(y, name) for name in names}
    again = octet.QuantizedTensor.__tensor_unflatten__(inner, meta, y.shape, y.stride())
    assert same(y, again)
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)


def test_tensor__copies_are_its_own(q: octet.Quantizer, x: torch.Tensor) -> None:
    y = q(x)
    for other in (y.clone(), copy.deepcopy(y), pickle.loads(pickle.dumps(y))):
        assert same(y, other)
        assert other.buffers()[0].data_ptr() != y.buffers()[0].data_ptr()
    assert y.detach().buffers()[0].data_ptr() == y.buffers()[0].data_ptr()


def test_tensor__saves_and_loads(q: octet.Quantizer, x: torch.Tensor) -> None:
    y = q(x)
    file = io.BytesIO()
    torch.save({"tensor": y, "parameter": torch.nn.Parameter(y)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert same(y, loaded["tensor"])
    assert same(y, loaded["parameter"])
    assert isinstance(loaded["parameter"], torch.nn.Parameter)


def test_tensor__another_shape_of_the_rows_is_the_same_bytes(
    q: octet.Quantizer, x: torch.Tensor
) -> None:
    y = q(x)
    for z in (y.view(-1, 70), y.reshape(2, 3, 33, 70), y.flatten(0, 1)):
        assert isinstance(z, octet.QuantizedTensor)
        assert torch.equal(z.dequantize(), y.dequantize().reshape(z.shape))
    assert torch.equal(y.reshape(-1), y.dequantize().reshape(-1))


def test_tensor__other_ops_see_what_it_stands_for(q: octet.Quantizer, x: torch.Tensor) -> None:
    y, d = q(x), q(x).dequantize()
    assert torch.equal(y + 1, d + 1)
    assert torch.equal(torch.cat([y, x]), torch.cat([d, x]))
    assert torch.equal(y.split(2)[1], d.split(2)[1])
    assert torch.equal(y[0], d[0])
    assert torch.equal(y.to(torch.float64), d.double())


def test_tensor__parts_keep_their_bytes(q: octet.Quantizer) -> None:
    x = torch.randn(320, 70)
    y, d = q(x), q(x).dequantize()
    for parts, plain in (
        (y.split(128), d.split(128)),
        (y.split([256, 64]), d.split([256, 64])),
        (torch.chunk(y.view(5, 64, 70), 3), torch.chunk(d.view(5, 64, 70), 3)),
    ):
        kept = all((p.shape[0] * p[0].numel() // 70) % 128 == 0 for p in parts[:-1])
        for part, want in zip(parts, plain, strict=True):
            assert isinstance(part, octet.QuantizedTensor) or not kept
            assert torch.equal(part.dequantize() if kept else part, want)
    for part, rows in zip(y.split(128), x.split(128), strict=True):
        alone = q(rows)
        if q.text.startswith(("mxfp8", "fp8-block")):  # nothing is shared by all rows
            assert same(part, alone)
        assert [b.shape for b in part.buffers()] == [b.shape for b in alone.buffers()]
    part = y.split(128)[0]
    kept = isinstance(part, octet.QuantizedTensor)  # not where the shares of rows differ
    for view in (part, part.detach(), part.view(2, 64, 70)):
        with pytest.raises(RuntimeError, match=r"would be lost.*clone\(\)"):
            view.copy_(torch.zeros(view.shape))
    part.clone().copy_(torch.zeros(128, 70))
    assert torch.equal(part.dequantize() if kept else part, d[:128])
    assert torch.equal(y.dequantize(), d)


def test_tensor__parts_that_cut_a_block_are_decoded() -> None:
    y = octet.MXFP8Quantizer("e4m3")(torch.randn(64, 70))
    assert not isinstance(y.split(20)[0], octet.QuantizedTensor)
    assert not isinstance(y.split(35, dim=1)[0], octet.QuantizedTensor)
    y.update_usage(columnwise_usage=False)
    parts = y.split(20)
    assert all(isinstance(part, octet.QuantizedTensor) for part in parts)
    assert torch.equal(torch.cat([part.dequantize() for part in parts]), y.dequantize())


def test_tensor__parts_compile() -> None:
    q = octet.NVFP4Quantizer(with_rht=True)
    fast, _ = compiled(lambda y: [part.clone() for part in y.split(64)])
    y = q(torch.randn(150, 70))
    for part, want in zip(fast(y), y.split(64), strict=True):
        assert same(part, want)


def test_tensor__copy_quantizes_into_it(q: octet.Quantizer, x: torch.Tensor) -> None:
    y, z = q(x), torch.zeros_like(q(x))
    assert isinstance(z, octet.QuantizedTensor)
    assert not z.dequantize().any()
    assert same(z.copy_(x), y)
    assert same(torch.empty_like(y).copy_(y), y)
    assert same(torch.zeros_like(y).quantize_(x), y)
    plain = torch.empty(x.shape)
    assert torch.equal(plain.copy_(y), y.dequantize())
    with pytest.raises(ValueError, match="does not fit"):
        y.quantize_(x[0])


CASTS = {
    "float": lambda y: y.float(),
    "half": lambda y: y.half(),
    "bfloat16": lambda y: y.bfloat16(),
    "double": lambda y: y.double(),
    "to": lambda y: y.to(torch.float16),
    "to_device_too": lambda y: y.to("cpu", torch.float16),
    "to_other": lambda y: y.to(torch.zeros(1, dtype=torch.float16)),
    "type": lambda y: y.type(torch.float16),
    "type_as": lambda y: y.type_as(torch.zeros(1, dtype=torch.float16)),
}


Cast = Callable[[Any], Any]


def assert_cast(made: torch.Tensor, y: octet.QuantizedTensor) -> None:
    """Decoded straight into the dtype; float64 by way of float32."""
    if made.dtype == y.dtype:
        assert same(made, y)
        return
    wide = made.dtype if made.dtype != torch.float64 else torch.float32
    assert type(made) is torch.Tensor
    assert torch.equal(made, y.dequantize(wide).to(made.dtype))


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_tensor__another_dtype_is_plain(
    q: octet.Quantizer, cast: Cast, own: torch.dtype
) -> None:
    y = q(torch.randn(4, 64, dtype=own))
    assert_cast(cast(y), y)


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_tensor__another_dtype_is_plain_in_compiled_code(cast: Cast) -> None:
    y = QUANTIZERS[4](torch.randn(4, 64, dtype=torch.bfloat16))
    assert_cast(compiled(cast)[0](y), y)


def test_tensor__cast_to_its_own_dtype_is_itself(q: octet.Quantizer) -> None:
    y = q(torch.randn(4, 64))
    assert y.to(torch.float32) is y
    assert y.to("cpu") is y
    copied = y.to(torch.float32, copy=True)
    assert same(copied, y)
    assert copied.buffers()[0].data_ptr() != y.buffers()[0].data_ptr()
    moved = y.to("meta")
    assert isinstance(moved, octet.QuantizedTensor)
    assert moved.device.type == "meta"
    assert moved._text == y._text


def test_tensor__cast_passes_the_gradient() -> None:
    y = torch.nn.Parameter(QUANTIZERS[4](torch.randn(4, 64)))
    (y.half() * 2).sum().backward()
    assert torch.equal(y.grad, torch.full((4, 64), 2.0))
    z = as_dtype(y, torch.bfloat16)
    assert isinstance(z, octet.QuantizedTensor)
    assert z.buffers()[0].data_ptr() == y.buffers()[0].data_ptr()
    z.dequantize().sum().backward()
    assert torch.equal(y.grad, torch.full((4, 64), 3.0))
    with pytest.raises(ValueError, match="float64 is not a dtype"):
        as_dtype(y, torch.float64)


class Tied(torch.nn.Module):
    """A layer and an embedding of one quantized weight."""

    def __init__(self) -> None:
        super().__init__()
        with octet.quantized_model_init(recipe=octet.recipe.MXFP8BlockScaling()):
            self.head = octet.Linear(64, 32, device="cpu")
        self.embed = torch.nn.Embedding(32, 64)
        self.embed.weight = self.head.weight


@pytest.mark.parametrize(
    ("cast", "dtype"),
    [
        (lambda model: model.half(), torch.float16),
        (lambda model: model.bfloat16(), torch.bfloat16),
        (lambda model: model.to(torch.bfloat16), torch.bfloat16),
        (lambda model: model.to("cpu", torch.float16), torch.float16),
    ],
)
def test_tensor__a_model_keeps_its_weights_quantized(cast: Cast, dtype: torch.dtype) -> None:
    model = Tied()
    before = [buffer.clone() for buffer in model.head.weight.buffers()]
    cast(model)
    weight = model.head.weight
    assert isinstance(weight, octet.QuantizedTensor)
    assert weight.dtype == dtype
    assert model.embed.weight is weight
    assert all(map(torch.equal, weight.buffers(), before))
    assert (
        type(weight.float()) is torch.Tensor
    )  # of the tensor itself it is plain, all the same


def test_tensor__a_model_of_quantized_weights_is_no_float64() -> None:
    with pytest.raises(ValueError, match="float64 is not a dtype"):
        Tied().double()


@pytest.mark.parametrize("compile_it", [False, True])
def test_tensor__bytes_that_it_has_not_read_none(compile_it: bool) -> None:
    def names(y: octet.QuantizedTensor) -> tuple[bool, bool, bool]:
        return (
            y._rowwise_data is None,
            y._columnwise_data is None,
            y._columnwise_scale_inv is None,
        )

    call = compiled(names, dynamic=False)[0] if compile_it else names
    y = octet.MXFP8Quantizer("e4m3", columnwise=False)(torch.randn(4, 64))
    for found in (y, y.clone(), y.detach(), y.view(2, 2, 64), torch.nn.Parameter(y)):
        assert call(found) == (False, True, True)
    z = octet.MXFP8Quantizer("e4m3")(torch.randn(4, 64))
    assert call(z) == (False, False, False)
    z.update_usage(rowwise_usage=False)
    assert call(z) == (True, False, False)
    z.data = y
    assert call(z) == (False, True, True)


def test_tensor__names_of_other_schemes_are_unknown(q: octet.Quantizer) -> None:
    y = q(torch.randn(4, 64))
    for copied in (y, copy.deepcopy(y), pickle.loads(pickle.dumps(y))):
        both = copied.quantizer.copy()
        both.set_usage(rowwise=True, columnwise=True)
        for name in octet.TensorProto((4, 64), torch.float32, both).inner_names():
            present = name in y.__tensor_flatten__()[0]
            assert (getattr(copied, name) is None) != present
        other = "_rowwise_data" if q.text.startswith("fp8-tensor") else "_data"
        for unknown in (other, "_no_such_buffer"):
            with pytest.raises(AttributeError, match=unknown):
                getattr(copied, unknown)


def test_tensor__update_usage_drops_bytes(x: torch.Tensor) -> None:
    y = octet.MXFP8Quantizer("e4m3")(x)
    y.update_usage(columnwise_usage=False)
    assert y.get_usages() == {"rowwise": True, "columnwise": False}
    assert y._columnwise_data is None
    with pytest.raises(RuntimeError, match="quantize it again"):
        y.update_usage(columnwise_usage=True)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad"])
@pytest.mark.parametrize("foreach", [False, True])
def test_tensor__optimizers_step_on_it(optimizer: str, foreach: bool) -> None:
    q, x = octet.Float8CurrentScalingQuantizer("e4m3"), torch.randn(8, 64)
    weight, plain = torch.nn.Parameter(q(x)), torch.nn.Parameter(q(x).dequantize())
    for parameter in (weight, plain):
        parameter.grad = torch.ones(8, 64)
        getattr(torch.optim, optimizer)([parameter], lr=0.1, foreach=foreach).step()
    assert isinstance(weight.data, octet.QuantizedTensor)
    assert same(weight.data, q(plain.detach()))


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_tensor__optimizers_keep_plain_moments(options: dict[str, bool]) -> None:
    """A small gradient beside a large one: its square would be 0 in FP8, and its step huge."""
    q = octet.Float8CurrentScalingQuantizer("e4m3")
    weight = torch.nn.Parameter(q(torch.randn(8, 64)))
    plain = torch.nn.Parameter(weight.detach().dequantize())
    adam = [
        torch.optim.AdamW([p], lr=0.1, weight_decay=0.0, **options) for p in (weight, plain)
    ]
    for turn in range(3):
        for parameter, optimizer in zip((weight, plain), adam, strict=True):
            parameter.grad = torch.full((8, 64), 1.0 + turn)
            parameter.grad[0, 0] = 4000.0
            optimizer.step()
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(adam[0].state[weight][key], adam[1].state[plain][key])
        assert same(weight.data, q(plain.detach()))
        with torch.no_grad():
            plain.copy_(weight.dequantize())


def test_tensor__gradient_is_plain_and_passes_through() -> None:
    q = octet.MXFP8Quantizer("e4m3")
    y = q(torch.randn(4, 64)).requires_grad_()
    (y.dequantize() * 2).sum().backward()
    assert torch.equal(y.grad, torch.full((4, 64), 2.0))
    assert type(y.grad) is torch.Tensor
    x = torch.randn(4, 64, requires_grad=True)
    (q(x).dequantize() * 3).sum().backward()
    assert torch.equal(x.grad, torch.full((4, 64), 3.0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensor__crosses_the_compile_boundary(dynamic: bool) -> None:
    q = octet.NVFP4Quantizer()

    def call(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y.clone(), y.dequantize() + 1

    fast, counter = compiled(call, dynamic=dynamic)
    for rows in (5, 7):
        y = q(torch.randn(rows, 70))
        a, b = fast(y)
        assert same(a, y)
        assert torch.equal(b, y.dequantize() + 1)
    assert counter.frame_count == (1 if dynamic else 2)


def test_tensor__asked_for_its_memory_it_answers_for_its_buffers(q: octet.Quantizer) -> None:
    """Without an op: torch would read the memory that a wrapper does not have."""
    x = torch.randn(4, 32)
    y = q(x)
    plain = y.dequantize()
    assert not y.is_shared()
    before = y.clone()
    assert y.share_memory_() is y
    assert y.is_shared()
    assert same(y, before)
    assert y.tolist() == plain.tolist()
    assert (y.numpy() == plain.numpy()).all()
    assert torch.equal(torch.from_dlpack(y), plain)
    assert torch.equal(y.apply_(lambda value: 0.0).dequantize(), torch.zeros(4, 32))


def test_tensor__a_scalar_stays_one(q: octet.Quantizer) -> None:
    y = q(torch.tensor(3.0, requires_grad=True))
    assert y.shape == y.dequantize().shape == (y + 1).shape == torch.Size([])
    y.dequantize().backward()


def test_tensor__quantized_weights_are_shared_with_their_model() -> None:
    with octet.quantized_model_init(recipe=octet.recipe.MXFP8BlockScaling()):
        model = torch.nn.Sequential(octet.Linear(32, 32, device="cpu"))
    before = model[0].weight.dequantize()
    model.share_memory()
    assert model[0].weight.is_shared()
    assert torch.equal(model[0].weight.dequantize(), before)
