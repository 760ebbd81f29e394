"""Quantizers are values: their text is all of them, and the C core decides."""

import copy
import pickle
from typing import Any

import octet
import pytest
from laws import QUANTIZERS, compiled
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


def test_quantizer__columnwise_parts_are_those_that_rowwise_bytes_lack() -> None:
    for q in QUANTIZERS:
        both, row = (
            {part for _, part, _, _ in _C.layout(_C.with_usage(q.text, True, columnwise))}
            for columnwise in (True, False)
        )
        assert both - row == both & set(_C.COLUMNWISE_PARTS)


def test_quantizer__takes_a_scale_where_delayed_scaling_has_it() -> None:
    assert not any(_C.takes_scale(q.text) for q in QUANTIZERS)
    assert not _C.takes_scale("none")
    assert _C.takes_scale("fp8-delayed:e5m2+col")
    with pytest.raises(ValueError, match="is not a scheme"):
        _C.takes_scale("fp8-delay")


@pytest.mark.parametrize("word", ["e9m9", "bf16", "none", ""])
def test_quantizer__a_word_that_is_no_format_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=f"{word} is not an element format"):
        octet.MXFP8Quantizer(word)


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
    (octet.MXFP4Quantizer, {"rowwise": False}, "rowwise"),
    (octet.MXFP4Quantizer, {"with_rht": True}, "hadamard"),
    (octet.MXFP4Quantizer, {"stochastic_rounding": True}, "stochastic"),
    (octet.MXFP4Quantizer, {"with_2d_quantization": True}, "block_rows"),
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
    first = () if cls in (octet.NVFP4Quantizer, octet.MXFP4Quantizer) else ("e4m3",)
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
        lambda: octet.MXFP4Quantizer(with_rht=True, with_2d_quantization=True),
        lambda: octet.MXFP4Quantizer("e4m3"),
        lambda: octet.Float8BlockQuantizer("e4m3", block_scaling_dim=3),
    ],
)
def test_quantizer__nonsense_is_a_value_error(make: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=r"."):
        make()


# ---- options as attributes -------------------------------------------------------------------

E4M3, E5M2, E2M1 = octet.DType.kFloat8E4M3, octet.DType.kFloat8E5M2, octet.DType.kFloat4E2M1
USAGES = {"rowwise_usage": True, "columnwise_usage": True}
IGNORED = {"internal": False, "optimize_for_gemm": False}
SCALES = {"force_pow_2_scales": False, "amax_epsilon": 0.0}
NVFP4 = {
    "dtype": E2M1,
    "with_rht": False,
    "with_post_rht_amax": False,
    "with_amax_reduction": False,
    "amax_reduction_group": None,
    "with_2d_quantization": False,
    "stochastic_rounding": False,
    "row_scaled_nvfp4": False,
    "nvfp4_use_4over6": False,
    "nvfp4_e4m3_max": 448,
    "nvfp4_4over6_err_mode": "MAE",
    "with_random_sign_mask": True,
}
ATTRIBUTES: list[tuple[octet.Quantizer, dict[str, Any]]] = [
    (
        octet.Float8CurrentScalingQuantizer("e5m2", with_amax_reduction=False),
        {"dtype": E5M2, **SCALES, "with_amax_reduction": False, "amax_reduction_group": None},
    ),
    (
        octet.Float8CurrentScalingQuantizer("e4m3", force_pow_2_scales=True, amax_epsilon=0.5),
        {"dtype": E4M3, "force_pow_2_scales": True, "amax_epsilon": 0.5},
    ),
    (
        octet.Float8BlockQuantizer("e4m3"),
        {
            "dtype": E4M3,
            "block_len": 128,
            "block_scaling_dim": 2,
            "force_pow_2_scales": True,
            "amax_epsilon": 0.0,
        },
    ),
    (octet.Float8BlockQuantizer("e4m3", block_scaling_dim=1), {"block_scaling_dim": 1}),
    (octet.MXFP8Quantizer("e4m3"), {"dtype": E4M3, "with_2d_quantization": False}),
    (octet.MXFP8Quantizer("e4m3", with_2d_quantization=True), {"with_2d_quantization": True}),
    (octet.NVFP4Quantizer(), NVFP4),
    (
        octet.MXFP4Quantizer(with_rht=True, stochastic_rounding=True),
        {
            "dtype": E2M1,
            "with_rht": True,
            "with_2d_quantization": False,
            "stochastic_rounding": True,
            "with_random_sign_mask": True,
        },
    ),
    (
        octet.NVFP4Quantizer(with_rht=True, stochastic_rounding=True),
        {**NVFP4, "with_rht": True, "with_post_rht_amax": True, "stochastic_rounding": True},
    ),
    (
        octet.NVFP4Quantizer(with_rht=True, with_random_sign_mask=False),
        {"with_rht": True, "with_random_sign_mask": False},
    ),
    (
        octet.NVFP4Quantizer(
            nvfp4_use_4over6=True, nvfp4_e4m3_max=256, nvfp4_4over6_err_mode="MSE"
        ),
        {"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 256, "nvfp4_4over6_err_mode": "MSE"},
    ),
    (octet.NVFP4Quantizer(nvfp4_e4m3_max=256), NVFP4),  # an option of 4over6, which is off
    (octet.Float8Quantizer(torch.ones(1), torch.zeros(1), "e4m3"), {"dtype": E4M3}),
]


@pytest.mark.parametrize(("q", "want"), ATTRIBUTES, ids=str)
def test_quantizer__options_are_attributes(q: octet.Quantizer, want: dict[str, Any]) -> None:
    want = {**USAGES, **IGNORED, **want}
    assert {name: getattr(q, name) for name in want} == want


@pytest.mark.parametrize("q", QUANTIZERS, ids=str)
def test_quantizer__is_its_text(q: octet.Quantizer) -> None:
    assert octet.quantizers.from_text(q.text) == q
    assert vars(q) == {"text": q.text}


ASSIGNED: list[tuple[octet.Quantizer, dict[str, Any], octet.Quantizer]] = [
    (
        octet.MXFP8Quantizer("e4m3"),
        {"rowwise_usage": False, "with_2d_quantization": True, "dtype": torch.float8_e5m2},
        octet.MXFP8Quantizer("e5m2", rowwise=False, with_2d_quantization=True),
    ),
    (
        octet.MXFP8Quantizer("e4m3"),
        {"internal": True, "optimize_for_gemm": True},
        octet.MXFP8Quantizer("e4m3"),
    ),
    (
        octet.Float8CurrentScalingQuantizer("e4m3"),
        {"force_pow_2_scales": True, "amax_epsilon": 0.25, "with_amax_reduction": False},
        octet.Float8CurrentScalingQuantizer("e4m3", force_pow_2_scales=True, amax_epsilon=0.25),
    ),
    (
        octet.Float8BlockQuantizer("e4m3"),
        {"block_scaling_dim": 1, "force_pow_2_scales": False, "block_len": 128},
        octet.Float8BlockQuantizer("e4m3", block_scaling_dim=1, force_pow_2_scales=False),
    ),
    (
        octet.NVFP4Quantizer(),
        {"with_rht": True, "with_random_sign_mask": False, "stochastic_rounding": True},
        octet.NVFP4Quantizer(
            with_rht=True, with_random_sign_mask=False, stochastic_rounding=True
        ),
    ),
    (
        octet.NVFP4Quantizer(),
        {"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 256, "nvfp4_4over6_err_mode": "MSE"},
        octet.NVFP4Quantizer(
            nvfp4_use_4over6=True, nvfp4_e4m3_max=256, nvfp4_4over6_err_mode="MSE"
        ),
    ),
    (
        octet.NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
        {"nvfp4_use_4over6": False, "nvfp4_4over6_err_mode": "MAE"},
        octet.NVFP4Quantizer(),
    ),
    (
        octet.NVFP4Quantizer(with_rht=True, with_random_sign_mask=False),
        {"with_rht": True},
        octet.NVFP4Quantizer(with_rht=True, with_random_sign_mask=False),
    ),
]


@pytest.mark.parametrize(("q", "values", "want"), ASSIGNED, ids=str)
def test_quantizer__assigning_an_option_replaces_its_own_value(
    q: octet.Quantizer, values: dict[str, Any], want: octet.Quantizer
) -> None:
    mine, held = q.copy(), q.copy()
    tensor = mine(torch.randn(4, 64))
    for name, value in values.items():
        setattr(mine, name, value)
    assert mine == want
    assert vars(mine) == {"text": want.text}
    assert held == q
    assert tensor.quantizer == q


REFUSED: list[tuple[octet.Quantizer, str, Any, str]] = [
    (octet.MXFP8Quantizer("e4m3", columnwise=False), "rowwise_usage", False, "set_usage"),
    (octet.MXFP8Quantizer("e4m3"), "dtype", "e2m1", "dtype cannot become e2m1"),
    (octet.MXFP8Quantizer("e4m3"), "dtype", octet.DType.kByte, "kByte is not an element"),
    (octet.Float8BlockQuantizer("e4m3"), "block_len", 64, "block_len is 128"),
    (octet.Float8BlockQuantizer("e4m3"), "block_scaling_dim", 3, "one of 1, 2; .*_dim=3"),
    (octet.Float8CurrentScalingQuantizer("e4m3"), "with_amax_reduction", True, "leave with"),
    (octet.Float8CurrentScalingQuantizer("e4m3"), "amax_epsilon", -1.0, "amax_epsilon=-1.0"),
    (octet.NVFP4Quantizer(), "with_post_rht_amax", True, "say with_rht"),
    (octet.NVFP4Quantizer(), "with_random_sign_mask", False, "without with_rht"),
    (octet.NVFP4Quantizer(), "nvfp4_4over6_err_mode", "MSE", "without nvfp4_use_4over6"),
    (octet.NVFP4Quantizer(), "nvfp4_e4m3_max", 256, "4over6, which is off"),
    (octet.NVFP4Quantizer(with_rht=True), "with_2d_quantization", True, "make another NVFP4"),
]


@pytest.mark.parametrize(("q", "name", "value", "said"), REFUSED, ids=str)
def test_quantizer__an_option_that_cannot_be_assigned_says_why(
    q: octet.Quantizer,
    name: str,
    value: Any,  # noqa: ANN401
    said: str,
) -> None:
    mine = q.copy()
    with pytest.raises(AttributeError, match=said) as caught:
        setattr(mine, name, value)
    assert name in str(caught.value)
    assert mine == q


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: octet.Float8CurrentScalingQuantizer("e4m3", with_amax_reduction=True),
            "Float8CurrentScalingQuantizer.*not reduced",
        ),
        (
            lambda: octet.Float8CurrentScalingQuantizer("e4m3", use_existing_amax=True),
            "use_existing_amax.*Float8Quantizer",
        ),
        # By position, as TransformerEngine's: format, rows, columns, reduction, group.
        (lambda: octet.NVFP4Quantizer(E2M1, True, True, True), "with_amax_reduction"),
    ],
)
def test_quantizer__what_octet_does_not_do_is_refused(make: Any, said: str) -> None:  # noqa: ANN401
    with pytest.raises(NotImplementedError, match=said):
        make()


def test_quantizer__positional_arguments_are_transformer_engines() -> None:
    q = octet.NVFP4Quantizer(E2M1, True, False, False, None, True)
    assert q == octet.NVFP4Quantizer(columnwise=False, with_rht=True)
    one = octet.Float8CurrentScalingQuantizer(
        E4M3, torch.device("cpu"), scale=torch.ones(1), amax=torch.zeros(1)
    )
    assert one == octet.Float8CurrentScalingQuantizer("e4m3")


@pytest.mark.parametrize("dtype", octet.DType, ids=str)
def test_quantizer__takes_element_formats_alone(dtype: octet.DType) -> None:
    if dtype in (E4M3, E5M2):
        assert octet.MXFP8Quantizer(dtype).dtype is dtype
    elif dtype is E2M1:
        assert octet.NVFP4Quantizer(dtype).dtype is dtype
    else:
        with pytest.raises(ValueError, match=f"{dtype} is not an element format"):
            octet.MXFP8Quantizer(dtype)


def test_dtype__has_transformer_engines_names() -> None:
    names = "Byte Int16 Int32 Int64 Float32 Float16 BFloat16 Float8E4M3 Float8E5M2 Float8E8M0"
    wanted = [f"k{name}" for name in f"{names} Float4E2M1".split()]
    assert [member.name for member in octet.DType] == wanted


# ---- a user's own ----------------------------------------------------------------------------


class Told(octet.Quantizer):
    """One that tells its base what it is, as TransformerEngine's do."""

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = octet.DType.kFloat8E4M3
        self.internal = True
        self.amax_epsilon = 0.5

    def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
        del out
        return tensor * 2


def test_quantizer__a_users_own_keeps_what_it_is_told() -> None:
    q = Told(rowwise=True, columnwise=False)
    assert q.get_usages() == {"rowwise": True, "columnwise": False}
    assert (q.dtype, q.amax_epsilon, q.text) == (octet.DType.kFloat8E4M3, 0.5, "none")
    other = q.copy()
    q.columnwise_usage = True
    q.set_usage(rowwise=False)
    assert q.get_usages() == {"rowwise": False, "columnwise": True}
    assert other.get_usages() == {"rowwise": True, "columnwise": False}
    assert Told(rowwise=True, columnwise=True) != Told(rowwise=True, columnwise=True)


def test_quantizer__a_subclass_of_octets_may_tell_its_base_too() -> None:
    class Rows(octet.MXFP8Quantizer):
        def __init__(self) -> None:
            super().__init__("e4m3", rowwise=True, columnwise=False)
            self.limit = 1.0

    assert Rows().text == octet.MXFP8Quantizer("e4m3", columnwise=False).text
    assert octet.Quantizer("mxfp8:e4m3", columnwise=False).text == Rows().text


# ---- what it does ----------------------------------------------------------------------------


@pytest.mark.parametrize("q", QUANTIZERS, ids=str)
def test_quantizer__may_stand_for_another_dtype(q: octet.Quantizer) -> None:
    x = torch.randn(32, 64, requires_grad=True)
    made = q.quantize(x, dtype=torch.bfloat16)
    assert (made.dtype, made.quantizer) == (torch.bfloat16, q)
    assert all(map(torch.equal, made.buffers(), q(x.detach()).buffers()))
    made.dequantize().sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    with pytest.raises(ValueError, match="float64 is not a dtype"):
        q.quantize(x, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"dtype is torch\.float32, but out is .*bfloat16"):
        q.quantize(x, out=made.detach(), dtype=torch.float32)


NOOP = [*QUANTIZERS, octet.Float8Quantizer(torch.full((1,), 4.0), torch.zeros(1), "e4m3")]


@pytest.mark.parametrize("flag", [0.0, 1.0])
@pytest.mark.parametrize("q", NOOP, ids=str)
def test_quantizer__a_noop_flag_leaves_the_tensor_as_it_is(
    q: octet.Quantizer, flag: float
) -> None:
    x, y, noop = torch.randn(32, 64), 8 * torch.randn(32, 64), torch.full((1,), flag)
    want = [buffer.clone() for buffer in q(x if flag else y).buffers()]
    for update in (
        lambda out: q.update_quantized(y, out, noop_flag=noop),
        lambda out: out.quantize_(y, noop_flag=noop),
    ):
        out = q(x)
        assert update(out) is out
        assert all(map(torch.equal, out.buffers(), want))
    with pytest.raises(ValueError, match=r"noop_flag is \(2,\); it has one element"):
        q.update_quantized(y, q(x), noop_flag=torch.zeros(2))


@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_float8_quantizer__a_noop_flag_leaves_the_amax_as_it_is(flag: float) -> None:
    x = torch.randn(4, 64)
    q = octet.Float8Quantizer(torch.ones(1), torch.zeros(1), "e4m3")
    out = q.make_empty((4, 64))
    q.update_quantized(x, out, noop_flag=torch.tensor(flag))
    assert q.amax == (0 if flag else x.abs().max())


def test_quantizer__a_noop_flag_is_read_in_the_graph() -> None:
    """Compiled code cannot break its graph to look at the flag, so nobody waits for it."""

    def update(x: torch.Tensor, y: torch.Tensor, noop: torch.Tensor) -> torch.Tensor:
        q = octet.MXFP8Quantizer("e4m3")
        return q.update_quantized(y, q.quantize(x), noop_flag=noop).dequantize()

    x, y = torch.randn(4, 64), torch.randn(4, 64)
    fast, counter = compiled(update)
    for flag in (0, 1, 0):
        noop = torch.tensor([flag])
        assert torch.equal(fast(x, y, noop), update(x, y, noop))
    assert counter.frame_count == 1


def test_quantizer__calibrating_updates_what_quantizing_updates() -> None:
    x = torch.randn(4, 64)
    q = octet.Float8Quantizer(torch.ones(1), torch.zeros(1), "e4m3")
    q.calibrate(x)
    assert torch.equal(q.amax, x.abs().max().reshape(1))
    q.calibrate(x / 2)
    assert torch.equal(q.amax, x.abs().max().reshape(1))
    other = octet.MXFP8Quantizer("e4m3")
    other.calibrate(x)
    assert other == octet.MXFP8Quantizer("e4m3")


def test_quantizer__pinned_memory_is_asked_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append(self) or self)
    q = octet.MXFP8Quantizer("e4m3")
    made = q.make_empty((4, 64), dtype=torch.bfloat16, device="cpu", pin_memory=True)
    assert len(asked) == len(made.buffers())
    assert (made.dtype, made.quantizer, made.shape) == (torch.bfloat16, q, (4, 64))
    assert q.make_empty((4, 64), device="cpu").buffers()
    assert len(asked) == len(made.buffers())


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
        with pytest.raises(ValueError, match=f"out is {other.text[:10]}"):
            q.update_quantized(-x, out, noop_flag=torch.zeros(1))
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
