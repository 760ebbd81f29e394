"""Quantized weights as parameters: what torch does to those without asking them by an op."""

import copy
import io
import pickle
from functools import partial
from typing import Any

import octet
import pytest
from laws import RECIPES, compiled, inputs, within
from torch.utils.checkpoint import checkpoint

import torch

QUANTIZED = [name for name in RECIPES if name != "none"]


def layer(name: str, **options: Any) -> octet.Linear:  # noqa: ANN401
    with octet.quantized_model_init(recipe=RECIPES[name], **options):
        return octet.Linear(70, 44, params_dtype=torch.bfloat16, device="cpu")


@pytest.fixture(params=QUANTIZED)
def linear(request: pytest.FixtureRequest) -> octet.Linear:
    return layer(request.param)


# ---- another weight --------------------------------------------------------------------------

WEIGHTS = [
    lambda w: w,
    octet.MXFP8Quantizer("e4m3"),
    octet.MXFP8Quantizer("e5m2"),
    octet.MXFP8Quantizer("e4m3", with_2d_quantization=True),
    octet.MXFP8Quantizer("e4m3", columnwise=False),
    octet.Float8CurrentScalingQuantizer("e4m3"),
    octet.Float8CurrentScalingQuantizer("e5m2"),
    octet.Float8BlockQuantizer("e4m3"),
    octet.NVFP4Quantizer(),
]


def _called(linear: octet.Linear, grads: bool) -> list[torch.Tensor]:
    """What a call and its backward make."""
    x, grad = inputs()
    linear.zero_grad()
    x.requires_grad_(grads)
    with octet.autocast(recipe=RECIPES["mxfp8"]), torch.set_grad_enabled(grads):
        made = [linear(x)]
    if grads:
        made[0].backward(grad)
        made += [x.grad, linear.bias.grad]
    return made


@pytest.mark.parametrize("grads", [False, True])
def test_weight__of_any_kind_may_follow_any_other(grads: bool) -> None:
    torch.manual_seed(3)
    linear, plain = octet.Linear(70, 44, params_dtype=torch.bfloat16, device="cpu"), []
    weights = [torch.nn.Parameter(make(linear.weight.detach())) for make in WEIGHTS]
    for weight in weights:
        weight.requires_grad_(False)
        fresh = copy.deepcopy(linear)
        fresh.weight = weight
        plain.append(_called(fresh, grads))
    for first in weights:
        for weight, wanted in zip(weights, plain, strict=True):
            linear.weight = first
            _called(linear, grads)
            linear.weight = weight
            for found, expected in zip(_called(linear, grads), wanted, strict=True):
                assert torch.equal(found, expected)


def test_weight__that_loses_its_columns_serves_forward(linear: octet.Linear) -> None:
    (wanted,) = _called(linear, False)
    linear.weight.update_usage(columnwise_usage=False)
    assert torch.equal(_called(linear, False)[0], wanted)


def test_weight__that_is_quantized_keeps_the_short_way_of_calls(
    linear: octet.Linear, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = inputs()
    with octet.autocast(recipe=RECIPES["mxfp8"]), torch.no_grad():
        wanted = linear(x)
        monkeypatch.setattr(octet.Linear, "_run", None)  # the long way
        with octet.constant_weights():
            assert torch.equal(linear(x), wanted)
        assert torch.equal(linear(x, is_first_microbatch=False), wanted)


# ---- .data -----------------------------------------------------------------------------------


def test_data__takes_the_buffers_of_a_quantized_tensor(linear: octet.Linear) -> None:
    other = copy.deepcopy(linear).weight
    with torch.no_grad():
        other.mul_(-2)
    linear.weight.data = other.data
    found, given = linear.weight.buffers(), other.buffers()
    assert [a.data_ptr() for a in found] == [b.data_ptr() for b in given]
    assert linear.weight.is_leaf
    assert linear.weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_data__quantizes_what_is_plain(linear: octet.Linear, dtype: torch.dtype) -> None:
    plain, aliased = torch.randn(44, 70, dtype=dtype), linear.weight.detach()
    before = aliased.dequantize()
    expected = linear.weight.detach().clone().quantize_(plain)
    linear.weight.data = plain
    assert linear.weight.dtype == dtype
    assert torch.equal(linear.weight.dequantize(), expected.dequantize(dtype))
    assert torch.equal(aliased.dequantize(), before)


def test_data__is_what_vectors_of_parameters_write(linear: octet.Linear) -> None:
    vector = torch.nn.utils.parameters_to_vector(linear.parameters()).detach() * 2
    before = linear.weight.dequantize()
    torch.nn.utils.vector_to_parameters(vector, linear.parameters())
    assert torch.equal(linear.weight.dequantize(), before * 2)


def test_data__refuses_what_cannot_be_quantized_as_it_is() -> None:
    weight = layer("mxfp8").weight
    for plain in (torch.zeros(44, 70).double(), torch.zeros(44, 70).int()):
        with pytest.raises(ValueError, match=f"{plain.dtype} is not a dtype"):
            weight.data = plain
    with pytest.raises(ValueError, match=r"\(3, 70\) does not fit into \(44, 70\)"):
        weight.data = torch.zeros(3, 70)


def test_data__is_traced() -> None:
    weight = layer("mxfp8").weight
    call, counter = compiled(lambda w: w.data.dequantize())
    assert torch.equal(call(weight), weight.dequantize())
    assert counter.frame_count == 1


# ---- some elements ---------------------------------------------------------------------------


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("index", [0, slice(2, 5), (slice(None), 3), (1, 2)], ids=str)
def test_setitem__writes_the_tensor(linear: octet.Linear, index: Any, compile_it: bool) -> None:  # noqa: ANN401
    expected = linear.weight.dequantize().detach()
    expected[index] = 0.0

    def write(weight: torch.Tensor) -> None:
        weight[index] = 0.0

    with torch.no_grad():
        (compiled(write)[0] if compile_it else write)(linear.weight)
    found = linear.weight.detach().clone().quantize_(expected)
    assert torch.equal(linear.weight.dequantize(), found.dequantize())
    assert not linear.weight.dequantize()[index].any()


def test_setitem__of_a_leaf_that_requires_grad_is_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable"):
        layer("mxfp8").weight[0] = 0.0


# ---- moving and copying ----------------------------------------------------------------------


def test_moving__keeps_attributes_and_hooks(linear: octet.Linear) -> None:
    ran: list[str] = []
    weight = linear.weight
    weight.main_grad = torch.zeros(44, 70)
    handles = [
        weight.register_hook(lambda grad: ran.append("grad")),
        weight.register_post_accumulate_grad_hook(lambda parameter: ran.append("accumulated")),
    ]
    linear.to(torch.float16).to(torch.float32)
    assert linear.weight is weight
    assert weight.main_grad.shape == (44, 70)
    linear(torch.randn(3, 70)).sum().backward()
    assert ran == ["grad", "accumulated"]
    for handle in handles:
        handle.remove()
    linear(torch.randn(3, 70)).sum().backward()
    assert ran == ["grad", "accumulated"]


def saved_and_loaded(linear: octet.Linear) -> octet.Linear:
    file = io.BytesIO()
    torch.save(linear.weight, file)
    file.seek(0)
    linear = copy.deepcopy(linear)
    linear.weight = torch.load(file, weights_only=True)
    return linear


@pytest.mark.parametrize(
    "change",
    [
        lambda linear: linear.float(),
        copy.deepcopy,
        lambda linear: pickle.loads(pickle.dumps(linear)),
        saved_and_loaded,
    ],
)
def test_init_val__stays_until_it_is_cleared(change: Any) -> None:  # noqa: ANN401
    linear = layer("mxfp8", preserve_high_precision_init_val=True)
    value = linear.weight.get_high_precision_init_val().clone()
    linear = change(linear)
    assert torch.equal(linear.weight.get_high_precision_init_val(), value)
    linear.weight.clear_high_precision_init_val()
    assert linear.weight.get_high_precision_init_val() is None


def test_copies__of_a_layer_have_a_cached_weight_of_their_own() -> None:
    """Compiled code keeps the buffers of the cache; a copy's are those of the copy's cache."""

    def run(linear: octet.Linear, x: torch.Tensor, first: bool) -> torch.Tensor:
        return within(RECIPES["mxfp8"], linear)(x, first)

    linear = octet.Linear(70, 44, params_dtype=torch.bfloat16, device="cpu")
    x = inputs()[0]
    call, _ = compiled(run)
    first = call(linear, x, True)
    for copied in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))):
        with torch.no_grad():
            copied.weight.neg_()
            copied.bias.neg_()
        assert torch.equal(call(copied, x, True), -first)
        assert torch.equal(call(copied, x, False), -first)
    assert torch.equal(call(linear, x, False), first)


# ---- recomputation ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUANTIZED)
def test_checkpoint__of_a_quantized_weight(name: str) -> None:
    """A recomputed call saves what the first one did, buffer by buffer."""
    linear, (x, grad) = layer(name), inputs()
    wanted = copy.deepcopy(linear)
    found = []
    for of, call in (
        (wanted, wanted),
        (linear, partial(checkpoint, linear, use_reentrant=False)),
    ):
        given = x.clone().requires_grad_()
        torch.manual_seed(3)
        y = within(RECIPES[name], call)(given)
        y.backward(grad)
        found.append((y.detach(), given.grad, of.weight.grad, of.bias.grad))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("name", QUANTIZED)
def test_compiled__steps_of_a_quantized_weight_are_eager_ones(name: str) -> None:
    """Stochastic rounding included: a seed for backward is drawn beside a quantized weight."""
    x, grad = inputs()
    found = []
    for compile_it in (False, True):
        torch.manual_seed(1)
        linear = layer(name)
        call = within(RECIPES[name], linear)
        call = compiled(call)[0] if compile_it else call
        given = x.clone().requires_grad_()
        torch.manual_seed(3)
        y = call(given)
        y.backward(grad)
        found.append((y, given.grad, linear.weight.grad, linear.bias.grad))
    assert all(map(torch.equal, *found))
