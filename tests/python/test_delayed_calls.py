"""Delayed scaling where a layer is called several times in a step: no scale stays behind."""

import octet
import pytest
from octet import recipe
from parallel_jobs import COMPILES_DELAYED
from torch.utils.checkpoint import checkpoint

import torch

RECIPE = recipe.DelayedScaling(amax_history_len=4)


def dead_call(layer: torch.nn.Module, x: torch.Tensor, kind: str) -> None:
    """A call whose backward never runs."""
    if kind == "no_grad":
        with torch.no_grad():
            layer(0.9 * x)
    elif kind == "detached":
        layer(0.9 * x).detach()
    elif kind == "checkpointed":
        checkpoint(layer, 0.9 * x, use_reentrant=True).detach()


def live_call(layer: torch.nn.Module, x: torch.Tensor, how: str) -> torch.Tensor:
    if how == "plain":
        return layer(x)
    return checkpoint(layer, x.requires_grad_(), use_reentrant=how == "reentrant")


def gradients_are_right(layer: octet.Linear, call: object) -> None:
    """Gradients too small for E5M2, unless their scale follows them."""
    twin = torch.nn.Linear(64, 64)
    twin.load_state_dict({name: p.detach() for name, p in layer.named_parameters()})
    for step in range(5):
        torch.manual_seed(step)
        x = torch.randn(16, 64)
        layer.zero_grad()
        twin.zero_grad()
        y = call(x)
        (1e-6 * y.square().sum()).backward()
        (1e-6 * twin(x.detach()).square().sum()).backward()
    error = (layer.weight.grad - twin.weight.grad).norm() / twin.weight.grad.norm()
    assert error < 0.1
    assert layer.fp8_grad_scale[0] > 1e6


@pytest.mark.parametrize("how", ["plain", "reentrant", "hooked"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", ["none", "no_grad", "detached", "checkpointed"])
def test_delayed__a_call_without_backward_leaves_no_scale_behind(
    kind: str, first: bool, how: str
) -> None:
    torch.manual_seed(1)
    layer = octet.Linear(64, 64, device="cpu")

    def call(x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(recipe=RECIPE):
            if first:
                dead_call(layer, x.detach(), kind)
            y = live_call(layer, x, how)
            if not first:
                dead_call(layer, x.detach(), kind)
        return y

    gradients_are_right(layer, call)


@pytest.mark.skipif(not COMPILES_DELAYED, reason="state that changes before backward")
@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        ("none", False),
        ("no_grad", False),
        ("detached", False),
        ("none", True),
        ("no_grad", True),
    ],
)
def test_delayed__nor_does_it_in_compiled_code(kind: str, whole: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    layer = octet.Linear(64, 64, device="cpu")
    part = layer if whole else torch.compile(layer, backend="aot_eager", fullgraph=True)

    def call(x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(recipe=RECIPE):
            dead_call(part, x, kind)
            return part(x)

    made = torch.compile(call, backend="aot_eager", fullgraph=True) if whole else call
    gradients_are_right(layer, made)


def test_delayed__nor_does_it_inside_one_autocast_around_a_loop() -> None:
    torch.manual_seed(1)
    layer = octet.Linear(64, 64, device="cpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    with octet.autocast(recipe=RECIPE):
        for _ in range(5):
            x = torch.randn(16, 64)
            dead_call(layer, x, "no_grad")
            (1e-6 * layer(x).square().sum()).backward()
            optimizer.step()
    assert layer.fp8_grad_scale[0] > 1e6


@pytest.mark.parametrize("how", ["eager", "compiled", "in turns"])
@pytest.mark.parametrize("calls", ["et", "ett", "tet", "eett"])
def test_delayed__a_cast_of_eval_is_not_training_s(calls: str, how: str) -> None:
    """Under constant_weights, a layer called in eval() first: training records its weight."""
    found = []
    for order in (calls.replace("e", ""), calls):
        torch._dynamo.reset()
        torch.manual_seed(1)
        layer = octet.Linear(64, 32, bias=False, device="cpu")
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        outputs = []
        for step in range(4):
            torch.manual_seed(step)
            x = torch.randn(16, 64)
            with octet.autocast(recipe=RECIPE), octet.constant_weights():
                for at, kind in enumerate(order):
                    turn = how == "compiled" or (how == "in turns" and at % 2)
                    call = compiled if turn else layer
                    layer.train(kind == "t")
                    with torch.set_grad_enabled(kind == "t"):
                        y = call(x)
                    if kind == "t":
                        y.sum().backward()
                        outputs.append(y.detach())
        found.append([*outputs, layer.fp8_state, layer.weight.grad])
    assert all(map(torch.equal, *found))
    assert found[0][-2][0, 1] > 1
