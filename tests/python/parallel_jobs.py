"""What ranks do in the tests of layers that are split over them; each job runs on every rank."""

import contextlib
import copy
from typing import Any, NamedTuple

import octet
import torch.distributed as dist
from laws import RECIPES
from octet import recipe

import torch

RECIPES = {
    **RECIPES,
    # Without random rounding: what the unsplit layer computes is known to the bit.
    "nvfp4-nearest": recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "mxfp4-nearest": recipe.MXFP4BlockScaling(disable_stochastic_rounding=True),
}
EXACT = [name for name in RECIPES if name not in ("nvfp4", "mxfp4")]
SIZES = {"in": 256, "out": 512}


class Case(NamedTuple):
    """A layer that is split, and how it is called."""

    mode: str = "column"
    sequence: bool = False
    recipe: str = "mxfp8"
    rows: tuple[int, ...] = (256,)  # of the whole input
    compiled: str = ""  # a backend, with " dynamic" where sizes are symbols
    options: tuple[tuple[str, Any], ...] = ()
    dtype: str = "bfloat16"
    steps: int = 1


def share(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """This rank's share of a tensor."""
    ranks = dist.get_world_size()
    return tensor.chunk(ranks, axis)[dist.get_rank()].clone()


def whole_tensors(case: Case, number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole input and the gradient of the whole output, the same on every rank."""
    made = torch.Generator().manual_seed(100 + number)
    dtype = getattr(torch, case.dtype)
    rows = (case.rows[0] * (1 + number), *case.rows[1:]) if "dynamic" in case.compiled else (
        case.rows
    )
    x = torch.randn(*rows, SIZES["in"], generator=made)
    grad = torch.randn(*rows, SIZES["out"], generator=made)
    return x.to(dtype), grad.to(dtype)


def own_tensors(case: Case, number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """What this rank has of them."""
    x, grad = whole_tensors(case, number)
    if case.mode == "column":
        return (share(x, 0) if case.sequence else x), share(grad, -1)
    return share(x, -1), (share(grad, 0) if case.sequence else grad)


def layer_of(case: Case, **more: Any) -> octet.Linear:  # noqa: ANN401
    torch.manual_seed(7)
    options: dict[str, Any] = {
        "params_dtype": getattr(torch, case.dtype),
        "device": "cpu",
        "parallel_mode": case.mode,
        "sequence_parallel": case.sequence,
        "tp_group": dist.group.WORLD,
        **dict(case.options),
        **more,
    }
    return octet.Linear(SIZES["in"], SIZES["out"], **options)


def compiled(case: Case, function: Any) -> Any:  # noqa: ANN401
    if not case.compiled:
        return function
    backend, *dynamic = case.compiled.split()
    if backend == "none":  # the sizes of a compiled case, in eager code
        return function
    return torch.compile(
        function, backend=backend, fullgraph=True, dynamic=True if dynamic else None
    )


def within(case: Case) -> Any:  # noqa: ANN401
    active = RECIPES[case.recipe]
    return octet.autocast(enabled=active is not None, recipe=active)


def state_of(layer: octet.Linear) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in layer._buffers.items() if t is not None}


def train(rank: int, case: Case) -> dict[str, Any]:
    """Steps of a layer: outputs, gradients and the state that is left."""
    layer = layer_of(case)
    call, made = compiled(case, layer), {}
    for number in range(case.steps):
        x, grad = own_tensors(case, number)
        x.requires_grad_()
        torch.manual_seed(1000 + 10 * number + rank)  # of stochastic rounding
        with within(case):
            y = call(x)
        y, *others = y if isinstance(y, tuple) else (y,)
        if isinstance(y, octet.QuantizedTensor):
            y = y.dequantize()
        y.backward(grad)
        for _ in range(len(layer._wgrads.calls)):
            layer.backward_dw()
        made[f"y{number}"], made[f"dx{number}"] = y, x.grad
    for name, parameter in layer.named_parameters():
        made[name] = parameter.grad
    return {**made, **state_of(layer)}
