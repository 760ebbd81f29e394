"""What the tests of models share: a model of several layers, and steps of its training."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import octet
from laws import RECIPES
from octet import recipe

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 48
ROWS = 40


class Gated(torch.nn.Module):
    """Two gated blocks with residuals: three layers each, and none of the others' arithmetic
    depends on who fuses it."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        options = {"params_dtype": torch.bfloat16, "device": DEVICE, **options}
        for block in ("a", "b"):
            for name, k, n in (("up", WIDTH, 80), ("gate", WIDTH, 80), ("down", 80, WIDTH)):
                layer = octet.Linear(k, n, name=f"{block}.{name}", **options)
                self.add_module(f"{block}_{name}", layer)

    def forward(self, x: torch.Tensor, *words: Any) -> torch.Tensor:  # noqa: ANN401
        for block in ("a", "b"):
            up, gate, down = (getattr(self, f"{block}_{k}") for k in ("up", "gate", "down"))
            x = x + down(torch.relu(up(x, *words)) * gate(x, *words), *words)
        return x

    def layers(self) -> list[octet.Linear]:
        return [module for module in self.modules() if isinstance(module, octet.Linear)]


def model(**options: Any) -> Gated:  # noqa: ANN401
    """Every one of the same weights, on any device."""
    made = Gated(**options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for linear in made.layers():
            for parameter in linear.parameters():
                drawn = torch.randn(parameter.shape, generator=generator, device="cpu")
                parameter.copy_(drawn / linear.in_features**0.5)
    return made


def batch(turn: int = 0, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:
    """An input and the gradient that the output gets, drawn on the CPU."""
    generator = torch.Generator().manual_seed(turn)
    draws = [
        torch.randn(2, ROWS // 2, WIDTH, generator=generator, device="cpu") for _ in range(2)
    ]
    return tuple(draw.to(DEVICE, dtype) for draw in draws)


def seed(turn: int) -> None:
    """Has a turn draw the same random numbers whenever and however it runs."""
    torch.manual_seed(100 + turn)


def prepared(net: torch.nn.Module, name: str) -> torch.nn.Module:
    """The model with the state that a recipe needs: a capture may not make it."""
    return net if RECIPES[name] is None else octet.prepare(net, RECIPES[name])


@contextlib.contextmanager
def quantizing(name: str) -> Iterator[None]:
    """Inside the autocast of a recipe's name."""
    with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
        yield


def called(call: Callable[..., Any], active: recipe.Recipe | None) -> Callable[..., Any]:
    """The call inside an autocast, for compilers."""

    def inside(*args: Any) -> Any:  # noqa: ANN401
        with octet.autocast(enabled=active is not None, recipe=active):
            return call(*args)

    return inside


class Inside(torch.nn.Module):
    """A model inside the autocast of a recipe."""

    def __init__(self, net: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.net, self.name = net, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return called(self.net, RECIPES[self.name])(x)


def state(net: torch.nn.Module) -> list[torch.Tensor]:
    """All that training changes: parameters, gradients, and the layers' state."""
    found = [t.detach() for t in (*net.parameters(), *net.buffers())]
    found += [p.grad for p in net.parameters() if p.grad is not None]
    return [
        t.dequantize() if isinstance(t, octet.QuantizedTensor) else t.clone() for t in found
    ]


def train(
    net: torch.nn.Module,
    call: Callable[..., Any],
    optimizer: torch.optim.Optimizer | None = None,
    turns: int = 3,
) -> list[torch.Tensor]:
    """Outputs and input gradients of a few steps, and what they leave."""
    found: list[torch.Tensor] = []
    dtype = next(net.parameters()).dtype
    for turn in range(turns):
        x, dy = batch(turn, dtype)
        x.requires_grad_()
        net.zero_grad()
        seed(turn)
        y = call(x)
        y.backward(dy)
        found += [y.detach().clone(), x.grad.clone()]
        if optimizer is not None:
            optimizer.step()
    return found + state(net)


def sgd(net: torch.nn.Module) -> torch.optim.Optimizer:
    """By a power of two, so that a fused multiply-add rounds as two operations do."""
    return torch.optim.SGD(net.parameters(), lr=2.0**-6, foreach=True)


def usual(name: str, **options: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """Three eager steps with an optimizer, by a recipe's name."""
    net = model(**options)
    return train(net, called(net, RECIPES[name]), sgd(net))
