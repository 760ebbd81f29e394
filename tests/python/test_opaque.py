"""Quantizers in traced code: constants of the graph, arguments of a user's own op."""

from collections.abc import Iterator

import octet
import pytest
from laws import compiled
from octet import _opaque

import torch

needs_api = pytest.mark.skipif(
    _opaque.API is None,
    reason="an op takes quantizers only where torch's opaque objects have members: from 2.11",
)


@pytest.fixture(scope="module")
def round_trip() -> Iterator[object]:
    @torch.library.custom_op("octet_tests::round_trip", mutates_args=())
    def op(x: torch.Tensor, q: octet.MXFP8Quantizer) -> torch.Tensor:
        return q(x).dequantize()

    @op.register_fake
    def _(x: torch.Tensor, q: octet.MXFP8Quantizer) -> torch.Tensor:
        return torch.empty_like(x)

    return op


@needs_api
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_opaque__is_an_argument_of_a_users_op(round_trip: object, backend: str) -> None:
    x = torch.randn(4, 64)
    call, counter = compiled(lambda x, q: round_trip(x, q), backend)
    for fmt in ("e4m3", "e5m2", "e4m3"):
        q = octet.MXFP8Quantizer(fmt)
        assert torch.equal(call(x, q), q(x).dequantize())
    assert counter.frame_count == 2  # one for each value, not for each object


def test_opaque__quantize_is_traced() -> None:
    q, x = octet.NVFP4Quantizer(with_rht=True), torch.randn(4, 70)
    call, counter = compiled(lambda x: q.quantize(x).dequantize(), dynamic=True)
    for rows in (4, 9):
        x = torch.randn(rows, 70)
        assert torch.equal(call(x), q(x).dequantize())
    assert counter.frame_count == 1


def test_opaque__is_value_is_traceable() -> None:
    q = octet.MXFP8Quantizer("e4m3")
    call, _ = compiled(lambda x: x + int(octet.is_value_opaque_quantizer(q)))
    assert call(torch.zeros(1)) == 1


def test_opaque__a_subclass_is_a_value_only_if_it_registers() -> None:
    class Mine(octet.MXFP8Quantizer):
        pass

    assert not octet.is_value_opaque_quantizer(Mine("e4m3"))
    octet.register_value_opaque_quantizer(Mine)
    assert octet.is_value_opaque_quantizer(Mine("e4m3"))


def test_opaque__a_class_without_equality_is_refused() -> None:
    class Mine(octet.Quantizer):
        pass

    with pytest.raises(TypeError, match="__eq__"):
        octet.register_value_opaque_quantizer(Mine)


def test_opaque__works_without_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_opaque, "API", None)

    @octet.register_value_opaque_quantizer
    class Mine(octet.MXFP8Quantizer):
        pass

    q = Mine("e4m3")
    assert q == Mine("e4m3")
    assert octet.is_value_opaque_quantizer(q)
    assert eval(*q.__fx_repr__()) == q


def test_opaque__is_made_in_traced_code() -> None:
    x = torch.randn(4, 70)

    def call(x: torch.Tensor, fmt: str) -> torch.Tensor:
        q = octet.MXFP8Quantizer(fmt, columnwise=False)
        q.set_usage(rowwise=True)
        return q.quantize(x).dequantize()

    fast, _ = compiled(call)
    for fmt in ("e4m3", "e5m2"):
        assert torch.equal(fast(x, fmt), call(x, fmt))


def test_opaque__only_quantizers_register() -> None:
    with pytest.raises(TypeError, match=r"octet\.Quantizer"):
        octet.register_value_opaque_quantizer(dict)
