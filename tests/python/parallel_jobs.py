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
        if parameter.grad is not None:
            made[name] = parameter.grad
    if case.compiled and "none" not in case.compiled:
        made["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {**made, **state_of(layer)}


# ---- graphs ----------------------------------------------------------------------------------

KINDS = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "reduce",
}


def _seen(graph: torch.fx.Graph) -> list[tuple[str, str, int]]:
    """The collectives of a graph: kind, dtype and bytes that a rank sends."""
    found = []
    for node in graph.nodes:
        name = str(node.target).split(".")[1:2]
        if node.op == "call_function" and name and name[0] in KINDS:
            sent = node.args[0].meta["val"]
            kind = KINDS[name[0]]
            kind = node.args[1] if kind == "reduce" else kind
            found.append((kind, str(sent.dtype), sent.numel() * sent.element_size()))
    return found


def _planned(graph: torch.fx.Graph) -> list[tuple[str, str]]:
    """The collectives that the plans of a graph's phases list: kind and dtype."""
    from octet import _plans

    texts: list[tuple[str, str]] = []
    for node in graph.nodes:
        if "problem" in node.kwargs and "plan" in node.kwargs:
            one = _plans.LINEAR_PLANS[node.kwargs["plan"]], node.kwargs["problem"]
            if one not in texts:
                texts.append(one)
    found = []
    for kind, text in texts:
        plan, ports = _plans.phases(kind, text), _plans.describe(kind, text).args
        for phase in plan.phases:
            for collective in phase.collectives:
                place, port, item = collective.source
                if place == "exchange":
                    dtype = plan.exchanges[port][0]
                elif place == "arg":
                    dtype = ports[port].dtype
                else:
                    dtype = (plan.block if place == "saved" else plan.kept[port])[item][0]
                found.append((collective.kind, str(dtype)))
    return found


def graphs(rank: int, case: Case) -> dict[str, Any]:
    """What the graphs of a call hold, forward and backward."""
    from torch._dynamo.backends.common import aot_autograd

    layer, seen = layer_of(case), []

    def keep(module: Any, inputs: Any) -> Any:  # noqa: ANN401
        module.graph.eliminate_dead_code()  # what torch's partition leaves in backward
        seen.append(module.graph)
        return module

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    x, grad = own_tensors(case)
    with within(case):
        y = torch.compile(layer, backend=backend, fullgraph=True)(x.requires_grad_())
    y.backward(grad)
    return {
        "seen": [_seen(graph) for graph in seen],
        "planned": [_planned(graph) for graph in seen],
    }


# ---- calls ------------------------------------------------------------------------------------


def microbatches(rank: int, case: Case) -> dict[str, Any]:
    """Microbatches that add to main_grad, whose first one casts the weight."""
    layer = layer_of(case, fuse_wgrad_accumulation=True)
    layer.weight.main_grad = torch.full(layer.weight.shape, 3.0)
    call, made = compiled(case, layer), {}
    for number in range(3):
        x, grad = own_tensors(case, number)
        with within(case):
            y = call(x.requires_grad_(), is_first_microbatch=number == 0)
        y.backward(grad)
        made[f"y{number}"], made[f"dx{number}"] = y, x.grad
    assert layer.weight.grad is None
    return {**made, "main_grad": layer.weight.main_grad, **state_of(layer)}


def quantized_parameters(rank: int, case: Case) -> dict[str, Any]:
    with octet.quantized_model_init(recipe=RECIPES[case.recipe]):
        layer = layer_of(case)
    assert isinstance(layer.weight, octet.QuantizedTensor)
    x, grad = own_tensors(case)
    with within(case):
        y = compiled(case, layer)(x.requires_grad_())
    y.backward(grad)
    return {"y": y, "dx": x.grad, "weight": layer.weight.grad}


def quantized_ends(rank: int, case: Case) -> dict[str, Any]:
    """Output and gradient of the input leave quantized."""
    layer, (x, grad) = layer_of(case), own_tensors(case)
    with within(case), contextlib.nullcontext() if not case.compiled else torch.no_grad():
        y = compiled(case, layer)(x.requires_grad_(), fp8_output=True)
    assert isinstance(y, octet.QuantizedTensor)
    return {"y": y.dequantize(), "shape": list(y.shape), "given": list(grad.shape)}


def checkpointed(rank: int, case: Case) -> dict[str, Any]:
    """A call that backward runs again, collectives and all."""
    layer, (x, grad) = layer_of(case), own_tensors(case)
    with within(case):
        y = octet.checkpoint(layer, x.requires_grad_(), use_reentrant=False)
    y.backward(grad)
    return {"y0": y, "dx0": x.grad, "weight": layer.weight.grad, "bias": layer.bias.grad}


def copied(rank: int, case: Case) -> dict[str, Any]:
    """A copy of a layer is split as the layer is, and so is one that was saved and loaded."""
    layer = layer_of(case)
    other = copy.deepcopy(layer)
    again = layer_of(case)
    again.load_state_dict(layer.state_dict())
    x, _ = own_tensors(case)
    with within(case), torch.no_grad():
        return {"y": layer(x), "copied": other(x), "loaded": again(x)}
