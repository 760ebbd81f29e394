"""Quantizers are values: their text is all of them, and the C core decides."""

import copy
import pickle
from typing import Any

import octet
import pytest
from laws import QUANTIZERS
from octet import _C

import torch


@pytest.mark.parametrize("q", QUANTIZERS, ids=str)
class TestQuantizer:
    def test_text_is_canonical(self, q: octet.Quantizer) -> None:
        assert _C.canonical("quantizer", q.text) == q.text

    def test_fx_repr_rebuilds_it(self, q: octet.Quantizer) -> None:
        text, names = q.__fx_repr__()
        again = eval(text, dict(names))
        assert again == q
        assert type(again) is type(q)
        x = torch.randn(5, 70)
        assert all(map(torch.equal, q(x).buffers(), again(x).buffers()))

    def test_copies_are_equal(self, q: octet.Quantizer) -> None:
        for other in (q.copy(), copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
            assert other == q
            assert hash(other) == hash(q)
            assert other is not q

    def test_set_usage_reaches_no_copy(self, q: octet.Quantizer) -> None:
        mine, held = q.copy(), q.copy()
        proto = octet.TensorProto((4, 64), torch.float32, mine)
        tensor = mine(torch.randn(4, 64))
        mine.set_usage(rowwise=True, columnwise=not q.columnwise_usage)
        assert mine != held
        assert held == q
        assert proto.quantizer == q
        assert tensor.quantizer == q


def test_quantizer__equality_is_that_of_the_core() -> None:
    texts = [q.text for q in QUANTIZERS]
    for a in texts:
        for b in texts:
            assert _C.equal("quantizer", a, b) == (a == b)
            assert (_C.hash("quantizer", a) == _C.hash("quantizer", b)) == (a == b)


def test_quantizer__classes_of_one_text_differ() -> None:
    current, delayed = octet.Float8CurrentScalingQuantizer("e4m3"), octet.MXFP8Quantizer("e4m3")
    assert current != delayed
    assert current != "fp8-tensor:e4m3+row+col"


@pytest.mark.parametrize(
    ("spelling", "word"),
    [
        (octet.DType.kFloat8E4M3, "e4m3"),
        (torch.float8_e5m2, "e5m2"),
        ("e4m3", "e4m3"),
    ],
)
def test_quantizer__format_has_three_spellings(spelling: object, word: str) -> None:
    assert octet.MXFP8Quantizer(spelling) == octet.MXFP8Quantizer(word)
    assert octet.MXFP8Quantizer(spelling).dtype is octet.DType(word)


ARGUMENTS: list[tuple[type[octet.Quantizer], dict[str, Any], str]] = [
    (octet.Float8CurrentScalingQuantizer, {"force_pow_2_scales": True}, "pow2"),
    (octet.Float8CurrentScalingQuantizer, {"amax_epsilon": 0.5}, "epsilon"),
    (octet.Float8BlockQuantizer, {"force_pow_2_scales": False}, "pow2"),
    (octet.Float8BlockQuantizer, {"amax_epsilon": 0.5}, "epsilon"),
    (octet.Float8BlockQuantizer, {"block_scaling_dim": 1}, "block_rows"),
    (octet.MXFP8Quantizer, {"with_2d_quantization": True}, "block_rows"),
    (octet.MXFP8Quantizer, {"rowwise": False}, "rowwise"),
    (octet.NVFP4Quantizer, {"columnwise": False}, "columnwise"),
    (octet.NVFP4Quantizer, {"with_rht": True}, "hadamard"),
    (octet.NVFP4Quantizer, {"stochastic_rounding": True}, "stochastic"),
    (octet.NVFP4Quantizer, {"row_scaled_nvfp4": True}, "row_scaled"),
    (octet.NVFP4Quantizer, {"nvfp4_use_4over6": True}, "four_over_six"),
]


@pytest.mark.parametrize(("cls", "options", "field"), ARGUMENTS, ids=str)
def test_quantizer__argument_reaches_the_core(
    cls: type[octet.Quantizer], options: dict[str, Any], field: str
) -> None:
    first = () if cls is octet.NVFP4Quantizer else ("e4m3",)
    usual = _C.fields("quantizer", cls(*first).text)
    changed = _C.fields("quantizer", cls(*first, **options).text)
    assert [name for name in usual if usual[name] != changed[name]] == [field]


@pytest.mark.parametrize(
    "make",
    [
        lambda: octet.MXFP8Quantizer("e3m4"),
        lambda: octet.MXFP8Quantizer(torch.int8),
        lambda: octet.MXFP8Quantizer("e4m3", rowwise=False, columnwise=False),
        lambda: octet.NVFP4Quantizer(with_rht=True, with_2d_quantization=True),
        lambda: octet.NVFP4Quantizer(nvfp4_e4m3_max=300),
        lambda: octet.Float8BlockQuantizer("e4m3", block_scaling_dim=3),
    ],
)
def test_quantizer__nonsense_is_a_value_error(make: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=r"."):
        make()


@pytest.fixture
def group() -> Any:  # noqa: ANN401
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("where", ["argument", "attribute", "list"])
def test_quantizer__with_a_process_group_is_no_value(group: Any, where: str) -> None:  # noqa: ANN401
    if where == "argument":
        q = octet.Float8CurrentScalingQuantizer("e4m3", amax_reduction_group=group)
    else:
        q = octet.Float8CurrentScalingQuantizer("e4m3")
        q.extra = group if where == "attribute" else [{"deep": (group,)}]
    for use in (lambda: q == q.copy(), lambda: hash(q), q.__fx_repr__):
        with pytest.raises(TypeError, match="process group"):
            use()


def test_float8_quantizer__holds_state_and_is_no_value() -> None:
    scale, amax = torch.full((1,), 2.0), torch.zeros(1)
    q = octet.Float8Quantizer(scale, amax, "e4m3")
    x = torch.randn(4, 64)
    assert q != octet.Float8Quantizer(scale, amax, "e4m3")
    assert not octet.is_value_opaque_quantizer(q)
    y = q(x)
    assert torch.equal(amax, x.abs().max().reshape(1))
    assert torch.equal(y._scale_inv, torch.full((1,), 0.5))
    q(x / 2)
    assert torch.equal(amax, x.abs().max().reshape(1))


def test_float8_quantizer__its_tensors_know_no_scale_for_others() -> None:
    made = octet.Float8Quantizer(torch.ones(1), torch.zeros(1), "e4m3")(torch.randn(4, 8))
    with pytest.raises(ValueError, match=r"no scale to quantize by: an octet\.Float8Quantizer"):
        made.quantizer(torch.randn(4, 8))


DELAYED = octet.Float8Quantizer(torch.ones(1), torch.zeros(1), "e4m3")


@pytest.mark.parametrize("q", [octet.MXFP8Quantizer("e4m3"), DELAYED], ids=str)
def test_quantizer__writes_into_tensors_of_its_own_kind_alone(q: octet.Quantizer) -> None:
    x = torch.randn(32, 64)
    for other in (octet.MXFP8Quantizer("e5m2"), octet.Float8CurrentScalingQuantizer("e4m3")):
        out = other(x)
        before = [buffer.clone() for buffer in out.buffers()]
        with pytest.raises(ValueError, match=f"out is {other.text[:10]}"):
            q.quantize(-x, out=out)
        with pytest.raises(ValueError, match=f"out is {other.text[:10]}"):
            q.update_quantized(-x, out)
        assert all(map(torch.equal, before, out.buffers()))
    with pytest.raises(TypeError, match="out is a Tensor; it is a QuantizedTensor"):
        q.quantize(x, out=torch.empty(32, 64))
    rows = q.make_empty((32, 64))
    rows.update_usage(columnwise_usage=False)
    assert torch.equal(q.quantize(x, out=rows).dequantize(), q(x).dequantize())


def test_quantizer__draws_where_the_tensor_is() -> None:
    x = torch.randn(16, 32)
    q = octet.NVFP4Quantizer(stochastic_rounding=True, columnwise=False)
    torch.manual_seed(3)
    want = q(x)
    torch.manual_seed(3)
    with torch.device("meta"):
        found = q(x)
        torch.manual_seed(3)
        kept = q.quantize(x, out=q.make_empty(x.shape, dtype=x.dtype, device=x.device))
    assert all(map(torch.equal, want.buffers(), found.buffers()))
    assert all(map(torch.equal, want.buffers(), kept.buffers()))
