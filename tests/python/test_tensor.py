"""QuantizedTensor: bytes that stand for a tensor, through everything torch does with one."""

import copy
import io
import pickle

import octet
import pytest
from laws import QUANTIZERS, compiled

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
    part.copy_(torch.zeros(128, 70))
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


def test_tensor__to_dtype_keeps_the_bytes(x: torch.Tensor) -> None:
    y = QUANTIZERS[4](x).to(torch.bfloat16)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y.dequantize(torch.float32), QUANTIZERS[4](x).dequantize())


def test_tensor__update_usage_drops_bytes(x: torch.Tensor) -> None:
    y = octet.MXFP8Quantizer("e4m3")(x)
    y.update_usage(columnwise_usage=False)
    assert y.get_usages() == {"rowwise": True, "columnwise": False}
    assert not hasattr(y, "_columnwise_data")
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
