"""What ranks do in the tests of split layers; each job runs on every rank."""

import contextlib
import copy
from typing import Any, NamedTuple

import octet
import torch.distributed as dist
from laws import RECIPES
from octet import recipe
from torch.torch_version import TorchVersion

import torch

RECIPES = {
    **RECIPES,
    # Without random rounding: what the unsplit layer computes is known to the bit.
    "nvfp4-nearest": recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "mxfp4-nearest": recipe.MXFP4BlockScaling(disable_stochastic_rounding=True),
}
# On torch 2.10 a compiled backward refuses state that changed since its forward; the amaxes
# that ranks reduce at the end of an autocast are such a change.
COMPILES_DELAYED = TorchVersion(torch.__version__) >= (2, 11)
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


def ready(rank: int) -> int:
    """Processes have started: what follows is timed without that."""
    return rank


def share(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """This rank's share of a tensor."""
    ranks = dist.get_world_size()
    return tensor.chunk(ranks, axis)[dist.get_rank()].clone()


def whole_tensors(case: Case, number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole input and the gradient of the whole output, the same on every rank."""
    made = torch.Generator().manual_seed(100 + number)
    dtype = getattr(torch, case.dtype)
    rows = (
        (case.rows[0] * (1 + number), *case.rows[1:])
        if "dynamic" in case.compiled
        else (case.rows)
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


class Same(octet.MXFP8Quantizer):
    """MXFP8, by a quantize of its own."""

    def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
        return super().quantize(tensor, out=out)


def _custom(kind: type[octet.MXFP8Quantizer]) -> recipe.CustomRecipe:
    roles = "input", "weight", "grad_output"
    return recipe.CustomRecipe(lambda role: kind("e4m3") if role.tensor_type in roles else None)


CUSTOM = {"custom": _custom(octet.MXFP8Quantizer), "users": _custom(Same)}


def within(case: Case) -> Any:  # noqa: ANN401
    active = CUSTOM[case.recipe] if case.recipe in CUSTOM else RECIPES[case.recipe]
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
        y, *_others = y if isinstance(y, tuple) else (y,)
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
        if "words" in node.kwargs and "plan" in node.kwargs:
            one = _plans.LINEAR_PLANS[node.kwargs["plan"]], node.kwargs["words"]
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
                    dtype = (plan.arena if place == "saved" else plan.restored[port])[item][0]
                found.append((collective.kind, str(dtype)))
    return found


def _order(graph: Any) -> list[str]:  # noqa: ANN401
    """Phases, collectives and waits for them, in the order of the graph."""
    words = {"linear_phase": "phase", "all_gather": "gather", "reduce_scatter": "scatter"}
    order, of = [], {}
    for node in graph.nodes:
        target = f"{node.target} {node.args[:1]}" if node.op == "call_function" else ""
        if "wait_tensor" in str(node.target):
            order.append(f"wait for {of.get(node.args[0], 'another')}")
            continue
        for name, word in words.items():
            if name in (target if name == "linear_phase" else str(node.target)):
                order.append(word)
                of[node] = word
    return order


def graphs(rank: int, case: Case, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """What the graphs of a call hold, forward and backward."""
    from torch._dynamo.backends.common import aot_autograd

    layer, seen = layer_of(case, **more), []

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
        "order": [_order(graph) for graph in seen],
    }


def overlapped(rank: int, case: Case) -> dict[str, Any]:
    """The same over a group without gloo: its collectives do nothing, so nothing keeps one from
    running beside another."""
    import os

    import torch.testing._internal.distributed.fake_pg  # noqa: F401  (registers the backend)

    os.environ["OCTET_CHECK_RANKS"] = "0"  # the ranks hear nothing from each other
    group = dist.new_group(backend="fake")
    try:
        return graphs(rank, case, tp_group=group)
    finally:
        dist.destroy_process_group(group)
        del os.environ["OCTET_CHECK_RANKS"]


# ---- calls -----------------------------------------------------------------------------------


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
    for _ in range(len(layer._wgrads.calls)):
        layer.backward_dw()
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


def quantized_gradients(rank: int, case: Case) -> dict[str, Any]:
    """A layer before another that hands its gradient on quantized."""
    layer, (x, grad) = layer_of(case), own_tensors(case)
    after = octet.Linear(grad.shape[-1], 64, device="cpu", params_dtype=grad.dtype)
    arrived: list[Any] = []
    with within(case):
        y = layer(x.requires_grad_())
        y.register_hook(arrived.append)
        z = after(y, fp8_grad=True)
    z.square().sum().backward()
    (given,) = arrived
    found = {"kind": type(given).__name__, "dx": x.grad, "weight": layer.weight.grad}
    # The same gradient at a layer of its own; where ranks share rows, of plain numbers.
    twin = layer_of(case)
    if not case.sequence:
        options = {"bias": twin.parallel_mode == "column", "params_dtype": x.dtype}
        unsplit = octet.Linear(twin.in_features, twin.out_features, device="cpu", **options)
        unsplit.load_state_dict(twin.state_dict(), strict=False)
        twin = unsplit
    other = x.detach().clone().requires_grad_()
    with within(case):
        y = twin(other)
    y.backward(given.dequantize() if case.sequence else given)
    return {**found, "other dx": other.grad, "other weight": twin.weight.grad}


def calibrated(rank: int, case: Case) -> dict[str, Any]:
    layer, (x, _) = layer_of(case), own_tensors(case)
    call = compiled(case, layer)
    with octet.autocast(enabled=False, calibrating=True, recipe=RECIPES["delayed"]):
        y = call(x.requires_grad_())
    return {"y": y, **state_of(layer)}


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


def flops(rank: int, case: Case) -> int:
    """What torch counts of a step."""
    from torch.utils.flop_counter import FlopCounterMode

    layer, (x, grad) = layer_of(case), own_tensors(case)
    with FlopCounterMode(display=False) as counter, within(case):
        layer(x.requires_grad_()).backward(grad)
    return counter.get_total_flops()


def checkpointed_steps(rank: int, way: str) -> dict[str, Any]:
    """Delayed scaling where backward runs forward again."""
    case = Case("column", True, "delayed")
    layer = layer_of(case)
    for number in range(3):
        x, grad = own_tensors(case, number)
        with within(case):
            if way:
                again = octet.checkpoint(layer, x.requires_grad_(), use_reentrant=way == "in")
            else:
                again = layer(x.requires_grad_())
        again.backward(grad)
    return {"dx": x.grad, "weight": layer.weight.grad, **state_of(layer)}


# ---- delayed scaling -------------------------------------------------------------------------


class Peaks(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the collectives that find largest amaxes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.count += func is torch.ops._c10d_functional.all_reduce.default and args[1] == "max"
        return func(*args, **(kwargs or {}))


def delayed(rank: int, where: str, steps: int, sequence: bool = True) -> dict[str, Any]:
    """Steps of two layers, each split its own way; how often ranks looked for amaxes."""
    made = recipe.DelayedScaling(amax_history_len=4)
    torch.manual_seed(7)
    options = {"tp_group": dist.group.WORLD, "sequence_parallel": sequence, "device": "cpu"}
    first = octet.Linear(64, 128, parallel_mode="column", **options)
    second = octet.Linear(128, 64, parallel_mode="row", **options)

    def both(x: torch.Tensor) -> torch.Tensor:
        return second(first(x))

    def inside(x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(recipe=made):
            return both(x)

    call = {"eager": both, "inside": inside, "around": both}[where]
    if where != "eager":
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    found: dict[str, Any] = {}
    for number in range(steps):
        x, grad = delayed_tensors(number)
        x = share(x, 0) if sequence else x
        around = octet.autocast(recipe=made) if where != "inside" else contextlib.nullcontext()
        with Peaks() if where == "eager" else contextlib.nullcontext() as peaks, around:
            y = call(x.requires_grad_())
        found["peaks"] = getattr(peaks, "count", None)
        y.backward(share(grad, 0) if sequence else grad)
        found[f"y{number}"], found[f"dx{number}"] = y, x.grad
    for name, layer in (("first", first), ("second", second)):
        found.update({f"{name} {n}": t for n, t in state_of(layer).items()})
    return found


def delayed_tensors(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(200 + number)
    return torch.randn(32, 64, generator=made), torch.randn(32, 64, generator=made)


def replicas(rank: int, grouped: bool, reduces: bool) -> dict[str, Any]:
    """Unsplit layers that see other data on each rank."""
    torch.manual_seed(7)
    layer = octet.Linear(64, 32, device="cpu")
    made = recipe.DelayedScaling(amax_history_len=4, reduce_amax=reduces)
    group = dist.group.WORLD if grouped else None
    for number in range(3):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * number + rank))
        with octet.autocast(recipe=made, amax_reduction_group=group):
            y = layer(x * (1 + rank))
        (y * (1 + rank)).sum().backward()
    return state_of(layer)


def other_layers(rank: int) -> None:
    """Each rank but the first leaves out a layer."""
    layers = [octet.Linear(64, 64, device="cpu", name=name) for name in ("fc1", "fc2")]
    group = dist.new_group(list(range(dist.get_world_size())))
    with octet.autocast(recipe=recipe.DelayedScaling(), amax_reduction_group=group):
        for layer in layers[: 1 if rank else 2]:
            layer(torch.randn(8, 64))


# ---- parameters ------------------------------------------------------------------------------


class Tracker:
    """A tracker of random states as Megatron has one: a state of this rank's own."""

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Any:  # noqa: ANN401
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(sum(map(ord, name)) + dist.get_rank())
            yield


def tracker() -> Tracker:
    return Tracker()


def parameters(rank: int, mode: str, options: dict[str, Any]) -> dict[str, Any]:
    if options.pop("tracker", False):
        options["get_rng_state_tracker"] = tracker
    layer = layer_of(Case(mode), **options)
    marks = {
        name: [getattr(p, mark, None) for mark in MARKS] for name, p in layer.named_parameters()
    }
    return {
        **{name: p.detach() for name, p in layer.named_parameters()},
        "marks": marks,
        "sizes": [layer.in_features, layer.out_features],
        "next": torch.rand(3),
    }


MARKS = ("tensor_model_parallel", "partition_dim", "partition_stride", "sequence_parallel")


def groups(rank: int) -> list[torch.Tensor]:
    """Every way to name a group."""
    from torch.distributed.device_mesh import init_device_mesh

    case = Case("row")
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
    x, _ = own_tensors(case)
    made = []
    ways = [dist.group.WORLD, dist.group.WORLD.group_name, mesh["tp"], (mesh, "tp")]
    for group in ways:
        made.append(layer_of(case, tp_group=group)(x))
        later = layer_of(case, tp_group=None, tp_size=2, get_rng_state_tracker=tracker)
        later.load_state_dict(layer_of(case).state_dict())
        later.set_tensor_parallel_group(group)
        made.append(later(x))
    return made
