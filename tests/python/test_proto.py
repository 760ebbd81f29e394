"""A proto answers what a tensor would, without its data."""

import octet
import pytest
from laws import QUANTIZERS, compiled
from octet import _C
from torch._subclasses.fake_tensor import FakeTensorMode

import torch

SHAPES = [(0, 64), (1, 1), (3, 70), (2, 5, 33), (128, 256)]


@pytest.mark.parametrize("q", QUANTIZERS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_proto__makes_what_the_quantizer_makes(
    q: octet.Quantizer, shape: tuple[int, ...]
) -> None:
    proto = octet.TensorProto(shape, torch.bfloat16, q)
    made, real = proto.create_tensor(), q(torch.randn(shape, dtype=torch.bfloat16))
    assert made.__tensor_flatten__() == real.__tensor_flatten__()
    assert proto.inner_names() == real.__tensor_flatten__()[0]
    assert proto.create_metadata() == real.__tensor_flatten__()[1]
    for a, b in zip(made.buffers(), real.buffers(), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    rows = _C.buffers(shape, "bf16", q.text)
    assert [tuple(b.shape) for b in real.buffers()] == [shape for _, _, shape in rows]


@pytest.mark.parametrize("dynamic", [False, True])
def test_proto__creates_inside_a_graph(dynamic: bool) -> None:
    q = octet.NVFP4Quantizer(with_rht=True)

    def make(x: torch.Tensor) -> torch.Tensor:
        proto = octet.TensorProto(x.shape, x.dtype, q)
        proto.update_usage(rowwise_usage=False)
        return proto.create_tensor()

    call, counter = compiled(make, dynamic=dynamic)
    for rows in (5, 9):
        made = call(torch.empty(rows, 70))
        assert octet.to_tensor_proto(made).inner_names() == made.__tensor_flatten__()[0]
        assert made.shape == (rows, 70)
    assert counter.frame_count == (1 if dynamic else 2)
    assert q.rowwise_usage


def test_proto__creates_fake_tensors() -> None:
    with FakeTensorMode():
        made = octet.TensorProto((4, 64), torch.bfloat16, QUANTIZERS[0]).create_tensor()
    assert isinstance(made, octet.QuantizedTensor)
    assert made._data.shape == (4, 64)


def test_proto__of_tensors_round_trips() -> None:
    x = torch.randn(3, 70, requires_grad=True)
    proto = octet.to_tensor_proto(x)
    assert proto == octet.TensorProto((3, 70), torch.float32, None, True, "cpu")
    assert not proto.is_quantized
    assert proto.create_tensor().requires_grad
    y = QUANTIZERS[4](x.detach())
    proto = octet.to_tensor_proto(y)
    assert proto.is_quantized
    assert proto.quantizer == QUANTIZERS[4]
    assert proto == octet.to_tensor_proto(proto.create_tensor())
    assert hash(proto) == hash(octet.to_tensor_proto(y))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float64])
def test_proto__stands_for_what_can_be_quantized(dtype: torch.dtype) -> None:
    q = octet.MXFP8Quantizer("e4m3")
    makers = (
        lambda: octet.TensorProto((4, 32), dtype, q),
        lambda: q.make_empty((4, 32), dtype=dtype),
        lambda: q(torch.zeros(4, 32, dtype=dtype)),
        lambda: q(torch.zeros(4, 32)).dequantize(dtype),
    )
    for make in makers:
        with pytest.raises(ValueError, match="use float32, bfloat16 or float16"):
            make()
    assert octet.TensorProto((4,), dtype).create_tensor().dtype == dtype


def test_proto__a_plain_one_has_no_usages() -> None:
    with pytest.raises(ValueError, match="plain"):
        octet.TensorProto((2,), torch.float32).update_usage(rowwise_usage=True)
