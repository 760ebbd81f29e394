"""Derivatives: nn.Linear's where nothing is quantized, an error where something is."""

from typing import Any

import laws
import octet
import pytest
from laws import within

import torch


class Halved(octet.MXFP8Quantizer):
    """MXFP8 of half the values, by a quantize of its own."""

    def quantize(self, tensor: torch.Tensor, **_: Any) -> Any:  # noqa: ANN401
        return super().quantize(tensor / 2)


HALVED = octet.recipe.CustomRecipe(
    lambda role: Halved("e4m3") if role.tensor_type in ("input", "weight") else None
)
RECIPES = {**laws.RECIPES, "user's": HALVED}
QUANTIZED = ["current", "mxfp8", "nvfp4", "delayed", "user's"]


def pair() -> tuple[octet.Linear, torch.nn.Linear]:
    ours, theirs = octet.Linear(6, 4, device="cpu"), torch.nn.Linear(6, 4)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def scalar(linear: torch.nn.Module) -> Any:  # noqa: ANN401
    return lambda x: linear(x).pow(3).sum()


def routes(linear: torch.nn.Module) -> dict[str, Any]:
    """Each way to a second derivative, or through a transform."""
    x, v = torch.linspace(-1, 1, 12).reshape(2, 6), torch.ones(2, 6)
    f = scalar(linear)

    def double(inputs: Any) -> Any:  # noqa: ANN401
        y = f(inputs[0])
        (first,) = torch.autograd.grad(y, inputs[0], create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), inputs, allow_unused=True)

    def penalty() -> Any:  # noqa: ANN401
        leaf = x.clone().requires_grad_()
        return double([leaf, *linear.parameters()])[:2]

    def dual() -> Any:  # noqa: ANN401
        with torch.autograd.forward_ad.dual_level():
            return torch.autograd.forward_ad.unpack_dual(
                linear(torch.autograd.forward_ad.make_dual(x, v))
            ).tangent

    api = torch.autograd.functional
    return {
        "penalty": penalty,
        "hvp": lambda: api.hvp(f, x, v),
        "vhp": lambda: api.vhp(f, x, v),
        "hessian": lambda: api.hessian(f, x),
        "hessian vectorized": lambda: api.hessian(f, x, vectorize=True),
        "jvp": lambda: api.jvp(lambda x: linear(x), x, v),
        "forward mode": dual,
        "func.hessian": lambda: torch.func.hessian(f)(x),
        "func.grad": lambda: torch.func.grad(f)(x),
        "func.jvp": lambda: torch.func.jvp(lambda x: linear(x), (x,), (v,)),
        "func.vmap": lambda: torch.func.vmap(lambda x: linear(x))(x),
        "gradgrad": lambda: api.hessian(
            lambda w: torch.func.functional_call(linear, {"weight": w}, (x,)).pow(3).sum(),
            linear.weight.detach(),
        ),
    }


ROUTES = list(routes(torch.nn.Linear(6, 4)))


@pytest.mark.parametrize("route", ROUTES)
def test_derivatives__without_a_recipe_are_those_of_torch(route: str) -> None:
    ours, theirs = pair()
    found, want = routes(ours)[route](), routes(theirs)[route]()
    for a, b in zip(
        torch.utils._pytree.tree_leaves(found),
        torch.utils._pytree.tree_leaves(want),
        strict=True,
    ):
        assert torch.equal(a, b)
        assert a.abs().sum() > 0


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("route", ROUTES)
def test_derivatives__of_a_layer_that_quantizes_are_an_error(route: str, name: str) -> None:
    """Transforms of torch.func are one for the first derivative, too."""
    ours, _ = pair()
    ours.forward = within(RECIPES[name], ours.forward)
    with pytest.raises((RuntimeError, NotImplementedError)):
        routes(ours)[route]()


def test_derivatives__forward_mode_names_the_layer() -> None:
    ours, _ = pair()
    ours.forward = within(RECIPES["mxfp8"], ours.forward)
    with pytest.raises(NotImplementedError, match=r"octet.Linear \(6 -> 4\): .*forward_ad"):
        routes(ours)["forward mode"]()


@pytest.mark.parametrize("name", QUANTIZED)
def test_derivatives__one_derivative_with_create_graph_is_as_usual(name: str) -> None:
    ours, _ = pair()
    x = torch.randn(2, 6, requires_grad=True)
    found = []
    for create in (False, True):
        torch.manual_seed(1)
        octet.reset_state(ours)
        y = within(RECIPES[name], ours)(x)
        found.append(torch.autograd.grad(y.sum(), [x, ours.weight], create_graph=create))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
