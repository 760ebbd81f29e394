"""A user's own quantizers in a layer: what they return is what is multiplied."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import octet
import pytest
from laws import assert_same, compiled, inputs, layer, step, twins, within
from octet import recipe
from torch.torch_version import TorchVersion

import torch

# Before 2.11 Dynamo mixes up what a traced backward captures with the sizes that are dynamic.
DYNAMIC = TorchVersion(torch.__version__) >= (2, 11)


class Fake(octet.Quantizer):
    """Rounds to a grid of 2**bits points up to the amax, and stays a plain tensor."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
        assert out is None
        wide = tensor.float()
        step = wide.abs().amax() / 2 ** (self.bits - 1)
        return ((wide / step).round() * step).to(tensor.dtype)


class Same(octet.MXFP8Quantizer):
    """MXFP8, by a quantize of its own."""

    def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
        return super().quantize(tensor, out=out)


class Clipped(octet.MXFP8Quantizer):
    """MXFP8 of what lies between -1 and 1."""

    def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
        return super().quantize(tensor.clamp(-1, 1), out=out)


class Impl(octet.Quantizer):
    """MXFP8 of what lies between -1 and 1, by TransformerEngine's method."""

    def __init__(self, fmt: str) -> None:
        super().__init__(rowwise=True, columnwise=True)
        self.inner = octet.MXFP8Quantizer(fmt)

    def quantize_impl(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.inner.quantize(tensor.clamp(-1, 1))


PLAIN = octet.MXFP8Quantizer("e4m3")


def custom(**roles: octet.Quantizer) -> recipe.CustomRecipe:
    """A recipe of these answers; one for grad_weight is asked for where there is one."""
    return recipe.CustomRecipe(
        lambda role: roles.get(role.tensor_type), quantize_grad_weight="grad_weight" in roles
    )


def delayed(fmt: str, scale: float = 8.0) -> octet.Float8Quantizer:
    return octet.Float8Quantizer(torch.tensor([scale]), torch.zeros(1), fmt)


CASES: dict[str, Callable[[], dict[str, octet.Quantizer]]] = {
    "fake": lambda: {r: Fake(6) for r in ("input", "weight", "grad_output")},
    "impl": lambda: {r: Impl("e4m3") for r in ("input", "weight", "grad_output")},
    "clipped": lambda: {r: Clipped("e4m3") for r in ("input", "weight", "grad_output")},
    "mixed": lambda: {
        "input": Clipped("e4m3"),
        "weight": octet.MXFP8Quantizer("e4m3"),
        "grad_output": Fake(8),
    },
    "rounded": lambda: {
        "input": Fake(6),
        "weight": Fake(6),
        "grad_output": octet.NVFP4Quantizer(stochastic_rounding=True),
    },
    "delayed": lambda: {
        "input": delayed("e4m3"),
        "weight": octet.Float8CurrentScalingQuantizer("e4m3"),
        "grad_output": delayed("e5m2"),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_custom__compiled_is_eager(case: str) -> None:
    eager, other = twins()
    roles, others = CASES[case](), CASES[case]()
    call = within(custom(**roles), eager)
    fast, counter = compiled(within(custom(**others), other), "inductor", dynamic=DYNAMIC)
    for rows in (5, 9, 17):
        x, grad = inputs(rows)
        assert_same(step(eager, call, x, grad), step(other, fast, x, grad))
    assert counter.frame_count == (1 if DYNAMIC else 3)
    for role, q in roles.items():
        if isinstance(q, octet.Float8Quantizer):
            assert q.amax > 0
            assert torch.equal(q.amax, others[role].amax)


ASKED: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({}, ()),
    ({"bias": False}, ()),
    ({"fuse_wgrad_accumulation": True}, (True,)),
    ({}, (None, True, True)),
    ({"delay_wgrad_compute": True}, ()),
    ({"delay_wgrad_compute": True, "fuse_wgrad_accumulation": True}, ()),
]


@pytest.mark.parametrize(("options", "words"), ASKED, ids=str)
@pytest.mark.parametrize("compile_it", [False, True])
def test_custom__a_quantize_that_does_the_same_changes_no_bit(
    options: dict[str, Any], words: tuple[Any, ...], compile_it: bool
) -> None:
    found = []
    roles = ("input", "weight", "output", "grad_output", "grad_input")
    for cls in (octet.MXFP8Quantizer, Same):
        linear = layer(**options)
        linear.weight.main_grad = torch.zeros(44, 70)
        active = custom(**{role: cls("e4m3") for role in roles})

        def call(x: torch.Tensor, linear: octet.Linear = linear) -> torch.Tensor:
            y = linear(x * 1, *words)
            return y.dequantize() if isinstance(y, octet.QuantizedTensor) else y

        run = within(active, call)
        x, grad = inputs()
        found.append(step(linear, compiled(run)[0] if compile_it else run, x, grad))
        if linear.delay_wgrad_compute:
            assert linear.weight.grad is None
            linear.backward_dw()
        found[-1] += [linear.weight.grad, linear.weight.main_grad]
    assert_same(*found)


def test_custom__a_main_grad_of_the_bias_is_refused() -> None:
    linear = layer(fuse_wgrad_accumulation=True, name="fc1")
    linear.weight.main_grad, linear.bias.main_grad = torch.zeros(44, 70), torch.zeros(44)
    with pytest.raises(ValueError, match=r"'fc1'.*bias\.main_grad gets no gradient"):
        within(custom(input=Same("e4m3")), linear)(inputs()[0])


class Again(octet.MXFP8Quantizer):
    """The same, by its base's."""

    def quantize_impl(self, tensor: torch.Tensor) -> torch.Tensor:
        return super().quantize_impl(tensor.clamp(-1, 1))


class Doubled(octet.Float8Quantizer):
    """Delayed scaling of twice the tensor, by both methods."""

    def quantize(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:  # noqa: ANN401
        return super().quantize(tensor * 1, **options)

    def quantize_impl(self, tensor: torch.Tensor) -> torch.Tensor:
        return super().quantize_impl(tensor * 2)


def test_custom__a_subclass_may_change_what_delayed_scaling_quantizes() -> None:
    q, x = Doubled(torch.ones(1), torch.zeros(1), "e4m3"), torch.randn(4, 64)
    want = delayed("e4m3", 1.0)
    assert torch.equal(q(x).dequantize(), want(2 * x).dequantize())
    assert torch.equal(q.amax, want.amax)


def test_custom__a_quantize_impl_is_a_quantize() -> None:
    linear, (x, grad) = layer(), inputs()
    found = [
        step(linear, within(custom(input=q, weight=q, grad_output=q), linear), x, grad)
        for q in (Impl("e4m3"), Again("e4m3"), Clipped("e4m3"))
    ]
    assert_same(found[0], found[2])
    assert_same(found[1], found[2])
    q, x = Impl("e4m3"), torch.randn(4, 64, requires_grad=True)
    q(x).dequantize().sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    out = q.quantize(2 * x.detach(), out=PLAIN(x.detach()))
    assert torch.equal(out.dequantize(), PLAIN(2 * x.detach().clamp(-0.5, 0.5)).dequantize())


def test_custom__a_factory_that_answers_every_role_leaves_weight_gradients_alone() -> None:
    linear, (x, grad) = layer(), inputs()
    found = {
        told: step(
            linear,
            within(recipe.CustomRecipe(lambda role: PLAIN, quantize_grad_weight=told), linear),
            x,
            grad,
        )[2]
        for told in (False, True)
    }
    roles = dict.fromkeys(("input", "weight", "grad_output"), PLAIN)
    plain = step(linear, within(custom(**roles), linear), x, grad)[2]
    assert torch.equal(found[False], plain)
    assert torch.equal(found[True], PLAIN(plain).dequantize())
    assert not torch.equal(found[True], plain)


def test_custom__plain_tensors_are_multiplied_as_they_are() -> None:
    linear, q = layer(params_dtype=torch.float32), Fake(4)
    x, grad = inputs(24, dtype=torch.float32)
    active = recipe.CustomRecipe(lambda role: q, quantize_grad_weight=True)
    y, dx, dw, db, *_ = step(
        linear, within(active, lambda x: linear(x, None, True, True)), x, grad
    )
    qx, qw, qdy = (q.quantize(t.detach()).double() for t in (x, linear.weight, grad))
    for found, want in (
        (y, q.quantize((qx @ qw.T + linear.bias.double()).float().detach())),
        (dx, q.quantize((qdy @ qw).float())),
        (dw, q.quantize((qdy.T @ qx).float())),
        (db, grad.double().sum(0)),  # the bias gradient sums what was not quantized
    ):
        assert torch.allclose(found.double(), want.double(), rtol=1e-4, atol=1e-4)


def test_custom__output_may_be_quantized_by_it() -> None:
    active, linear = custom(input=Same("e4m3"), output=Clipped("e4m3")), layer()
    x, _ = inputs()
    y = within(active, linear)(x).detach()
    z = within(active, lambda x: linear(x, fp8_output=True))(x)
    assert isinstance(z, octet.QuantizedTensor)
    assert torch.equal(z.detach().dequantize(), Clipped("e4m3")(y).dequantize())


@pytest.mark.parametrize("compile_it", [False, True])
def test_custom__later_microbatches_reuse_the_weight(compile_it: bool) -> None:
    linear = layer()
    x, grad = inputs()
    active = custom(input=Same("e4m3"), weight=octet.MXFP8Quantizer("e4m3"))
    usual = step(linear, within(active, linear), x, grad)
    call: Any = within(active, lambda x, first: linear(x, first))
    call = compiled(call)[0] if compile_it else call
    assert_same(usual, step(linear, lambda x: call(x, True), x, grad))
    linear.weight.data.zero_()  # leaves no trace
    assert_same(usual, step(linear, lambda x: call(x, False), x, grad))
    assert not torch.equal(usual[0], call(x, True))


def test_custom__each_object_is_its_own_unless_it_registers() -> None:
    assert Fake(4) != Fake(4)
    assert Same("e4m3") != Same("e4m3")
    assert len({Same("e4m3"), Same("e4m3")}) == 2

    @octet.register_value_opaque_quantizer
    class Value(octet.MXFP8Quantizer):
        limit = 1.0

        def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
            # torch 2.11 cannot trace super() in an opaque object.
            return PLAIN.quantize(tensor.clamp(-self.limit, self.limit), out=out)

    first, second = Value("e4m3"), Value("e4m3")
    assert first == second
    linear = layer()
    x, _ = inputs()
    fast, counter = compiled(linear)
    found = [within(custom(input=q), fast)(x) for q in (first, second)]
    assert torch.equal(*found)
    assert torch.equal(found[0], within(custom(input=Clipped("e4m3")), linear)(x))
    assert counter.frame_count == 1
    second.limit = 2.0
    assert first != second
    with pytest.raises(TypeError, match=r"Value keeps limit.*__fx_repr__"):
        second.__fx_repr__()


def test_custom__another_quantizer_is_another_graph() -> None:
    linear = layer()
    x, _ = inputs()
    fast, _ = compiled(linear)
    found = []
    for bits in (4, 6, 4):
        active = custom(input=Fake(bits), weight=Fake(bits))
        found.append(within(active, fast)(x))
        assert torch.equal(found[-1], within(active, linear)(x))
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_custom__delayed_quantizer_scales_by_what_it_holds() -> None:
    linear, x = layer(), inputs()[0]
    q = delayed("e4m3", 1.0)
    fast, counter = compiled(within(custom(input=q), linear))
    for scale in (1.0, 16.0):
        q.scale.fill_(scale)
        other = octet.Float8Quantizer(q.scale, torch.zeros(1), "e4m3")
        want = torch.nn.functional.linear(
            other(x).dequantize(torch.float32), linear.weight.float(), linear.bias.float()
        )
        assert torch.allclose(fast(x).float(), want, rtol=2**-7, atol=1e-5)
        assert torch.equal(q.amax, other.amax)
    assert counter.frame_count == 1


class Bad(octet.Quantizer):
    def __init__(self, made: Callable[[torch.Tensor], Any]) -> None:
        self.made = made

    def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> Any:  # noqa: ANN401
        del out
        return self.made(tensor)


REFUSED: dict[str, tuple[Callable[[], recipe.CustomRecipe], dict[str, Any], str]] = {
    "shape": (lambda: custom(input=Bad(lambda t: t[:1])), {}, r"'fc1'.*\(1, 13, 70\).*input"),
    "dtype": (lambda: custom(weight=Bad(lambda t: t.double())), {}, r"'fc1'.*float64.*weight"),
    "kind": (lambda: custom(weight=Bad(lambda t: None)), {}, r"'fc1'.*NoneType for weight"),
    "answer": (lambda: custom(input="mxfp8"), {}, r"str for input.*octet\.Quantizer"),
    "nothing": (lambda: custom(input=octet.Quantizer()), {}, r"Quantizer for input"),
    "kept input": (
        lambda: custom(input=Fake(4)),
        {"save_original_input": True},
        r"'fc1'.*save_original_input.*Fake",
    ),
    "main_grad": (
        lambda: custom(grad_weight=Fake(4)),
        {"fuse_wgrad_accumulation": True},
        r"'fc1'.*main_grad.*grad_weight",
    ),
    "later": (
        lambda: custom(grad_weight=Fake(4)),
        {"delay_wgrad_compute": True},
        r"'fc1'.*delay_wgrad_compute.*grad_weight",
    ),
    "override": (
        lambda: recipe.CustomRecipe(lambda role: Fake(4), backward_override="high_precision"),
        {},
        r"backward_override='high_precision'.*Fake for input",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_custom__what_cannot_be_is_refused(case: str) -> None:
    make, options, pattern = REFUSED[case]
    linear = layer(name="fc1", **options)
    call = within(make(), linear)
    with pytest.raises((TypeError, ValueError), match=pattern):
        call(inputs()[0])
    with pytest.raises(Exception, match=pattern):
        compiled(call)[0](inputs()[0])


def test_custom__protos_need_octets_quantizers() -> None:
    linear, active = layer(name="fc1"), custom(input=Fake(4))
    with pytest.raises(NotImplementedError, match=r"'fc1'.*protos.*without data"):
        linear.protos(inputs()[0], recipe=active)
    assert linear.protos(inputs()[0], recipe=custom(input=PLAIN)).forward.arguments


def test_custom__stored_weights_need_octets_quantizers() -> None:
    with (
        pytest.raises(ValueError, match="Fake has a quantize of its own"),
        octet.quantized_model_init(recipe=custom(weight=Fake(4))),
    ):
        layer()


def test_custom__the_documentations_example_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "quantizers.md"
    (text,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["y"].shape == (8, 32)
    assert not torch.equal(names["y"], names["layer"](names["x"]))  # it was quantized


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("compile_it", [False, True])
def test_custom__gradients_that_the_core_quantizes(
    compile_it: bool, dtype: torch.dtype
) -> None:
    """The weight's has its shape and dtype, and the values of a cast afterwards; a graph gives
    it plain."""
    mxfp8 = octet.MXFP8Quantizer("e4m3")
    roles = dict.fromkeys(("input", "weight", "grad_output"), mxfp8)
    linear = octet.Linear(70, 44, params_dtype=dtype, device="cpu")
    x = torch.randn(96, 70, dtype=torch.bfloat16, requires_grad=True)
    found = {}
    for name, given in {"plain": roles, "quantized": {**roles, "grad_weight": mxfp8}}.items():
        chosen = custom(**given)

        def forward(x: torch.Tensor, chosen: recipe.CustomRecipe = chosen) -> torch.Tensor:
            with octet.autocast(recipe=chosen):
                return linear(x)

        call = torch.compile(forward, backend="aot_eager", fullgraph=True)
        linear.zero_grad(set_to_none=True)
        (call if compile_it else forward)(x).float().pow(2).sum().backward()
        found[name] = linear.weight.grad
    made = found["quantized"]
    assert made.shape == (44, 70)
    assert made.dtype == dtype
    assert isinstance(made, octet.QuantizedTensor) is not compile_it
    want = mxfp8(found["plain"]).dequantize()
    assert torch.equal(made if compile_it else made.dequantize(), want)
