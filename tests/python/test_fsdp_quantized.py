"""fully_shard of quantized weights: bytes travel, and they are the whole's."""

import copy
from typing import Any

import octet
import pytest
from fsdp_workers import Workers, workers  # noqa: F401
from laws import RECIPES
from octet._shard import QuantizedShard
from test_fsdp import Case, assert_resharded, assert_same, forward, model, sharded
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import torch

QUANTIZED = [name for name in RECIPES if name != "none"]
OWN_SCALES = [name for name in QUANTIZED if name != "delayed"]  # those of the tensor at hand


def quantized(name: str, **options: Any) -> torch.nn.Module:  # noqa: ANN401
    with octet.quantized_model_init(recipe=RECIPES[name]):
        return model(name, **options)


def gathered_job(mesh: DeviceMesh, name: str) -> None:
    made = quantized(name)
    wanted = copy.deepcopy(made)
    sharded(made, mesh)
    assert_same(
        {k: p.full_tensor() for k, p in made.named_parameters() if p.dim() == 2},
        {k: p.dequantize() for k, p in wanted.named_parameters() if p.dim() == 2},
    )
    for module in (made, made[0], made[1]):
        module.unshard()
    for (key, found), whole in zip(made.named_parameters(), wanted.parameters(), strict=True):
        if not isinstance(whole, octet.QuantizedTensor):
            continue
        assert isinstance(found, octet.QuantizedTensor), key
        assert found._text == whole._text
        for one, two in zip(found.buffers(), whole.buffers(), strict=True):
            assert torch.equal(one, two), key


@pytest.mark.parametrize("world", [1, 2, 3])
def test_quantized__what_is_gathered_is_the_whole(workers: Workers, world: int) -> None:  # noqa: F811
    for name in QUANTIZED:
        workers.run(gathered_job, world, name)


# ---- steps -----------------------------------------------------------------------------------


def steps_job(mesh: DeviceMesh, name: str, options: dict[str, Any]) -> None:
    case = Case(mesh, quantized(name), **options)
    case.run(RECIPES[name])
    for layer in case.made.modules():
        if isinstance(layer, octet.Linear):
            shard = layer.weight.to_local()
            assert isinstance(shard, QuantizedShard)
            assert shard._memory.values is None  # bytes are all that is stored


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized__steps_are_those_of_one_process(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(steps_job, 2, name, {})


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized__shards_may_be_uneven(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(steps_job, 3, name, {})


def test_quantized__weights_may_stay_gathered(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8"):
        workers.run(steps_job, 2, name, {"reshard_after_forward": False})


def compiled_job(mesh: DeviceMesh, name: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    case = Case(mesh, quantized(name))
    for block in case.made[:2]:
        block.compile(backend=counter, fullgraph=True)
    case.run(RECIPES[name])
    assert counter.frame_count > 0


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized__compiled_steps(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(compiled_job, 2, name)


def adam_job(mesh: DeviceMesh, name: str) -> None:
    """An optimizer that writes a weight once in a step writes what it writes in one process."""
    case = Case(mesh, quantized(name))
    case.optimizer = torch.optim.Adam(case.made.parameters(), lr=0.01)
    case.one.optimizers = [torch.optim.Adam(r.parameters(), lr=0.01) for r in case.one.replicas]
    case.run(RECIPES[name])
    for state in case.optimizer.state.values():
        assert not isinstance(state["exp_avg"].to_local(), QuantizedShard)


def test_quantized__adam(workers: Workers) -> None:  # noqa: F811
    for name in ("block", "nvfp4"):
        workers.run(adam_job, 2, name)


# ---- what travels ----------------------------------------------------------------------------


class Counted(TorchDispatchMode):
    """Bytes that all-gathers bring, and how many all-reduces there are."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered: list[int] = []
        self.reduced = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if func._schema.name == "c10d::_allgather_base_":
            self.gathered.append(args[0].numel() * args[0].itemsize)
        self.reduced += func._schema.name == "c10d::allreduce_"
        return func(*args, **(kwargs or {}))


def layers(recipe: Any, gathers: bool = False) -> torch.nn.Module:  # noqa: ANN401
    torch.manual_seed(1)
    options = {"bias": False, "device": "cpu", "params_dtype": torch.bfloat16}
    with octet.quantized_model_init(enabled=recipe is not None and not gathers, recipe=recipe):
        made = torch.nn.Sequential(*(octet.Linear(512, 512, **options) for _ in range(3)))
    return octet.fsdp_gather_quantized(made, recipe) if gathers else made


def traffic_job(mesh: DeviceMesh, name: str, gathers: bool) -> list[float]:
    """What the gathers of two steps bring, as parts of what bfloat16 brings."""
    recipe, found, plain = RECIPES[name], [], 512 * 512 * 2
    made = layers(recipe, gathers)
    for layer in made:
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    for number in range(2):
        with Counted() as count:
            with octet.autocast(recipe=recipe):
                y = made(torch.randn(4, 512, dtype=torch.bfloat16))
            y.float().sum().backward()
            optimizer.step()
        assert len(count.gathered) == 6  # each layer for forward, and again for backward
        needs = name in ("delayed", "current", "nvfp4")
        # Once for all layers, in the optimizer's step. Before the first one each layer does it
        # by itself: its ranks are known when it is gathered.
        first = 3 * (gathers and number == 0)
        assert count.reduced == needs * (1 + first)
        found += [size / plain for size in count.gathered]
    return found


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized__bytes_travel(workers: Workers, name: str, gathers: bool) -> None:  # noqa: F811
    most = 0.30 if "4" in name else 0.52
    for found in workers.run(traffic_job, 2, name, gathers):
        assert max(found) <= most


def memory_job(mesh: DeviceMesh, name: str, gathers: bool) -> tuple[int, int]:
    """Bytes that forward saves for backward, and those of gathered memory that it frees."""
    made = layers(RECIPES[name], gathers)
    for layer in made:
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    saved: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        for each in tensor.buffers() if isinstance(tensor, octet.QuantizedTensor) else [tensor]:
            saved[each.untyped_storage()._cdata] = each.untyped_storage()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    x = torch.randn(1, 512, dtype=torch.bfloat16, requires_grad=True)
    with hooks, octet.autocast(recipe=RECIPES[name]):
        y = made(x)
    sizes = [storage.size() for storage in saved.values()]
    y.sum().backward()
    assert_resharded(made)
    return sum(sizes), sum(size == 0 for size in sizes)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized__nothing_gathered_is_saved(workers: Workers, name: str) -> None:  # noqa: F811
    for gathers in (False, True):
        for size, freed in workers.run(memory_job, 2, name, gathers):
            assert size < 512 * 512 // 8
            assert freed >= 3


# ---- weights in high precision that travel quantized -----------------------------------------


def travelling_job(mesh: DeviceMesh, name: str, compiled: bool) -> None:
    """A layer casts its weight, or its ranks do, each its rows: the step is the same."""
    recipe = RECIPES[name]
    case = Case(mesh, model(name), lambda m: octet.fsdp_gather_quantized(m, recipe))
    if compiled:
        for block in case.made[:2]:
            block.compile(backend="aot_eager", fullgraph=True)
    assert_same(
        {k: p.full_tensor() for k, p in case.made.named_parameters()},
        dict(case.one.replicas[0].named_parameters()),
    )
    case.run(recipe)


@pytest.mark.parametrize("name", OWN_SCALES)
def test_gather_quantized__steps(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(travelling_job, 3, name, False)


def test_gather_quantized__compiled_steps(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8"):
        workers.run(travelling_job, 2, name, True)


def delayed_job(mesh: DeviceMesh) -> None:
    """Delayed scaling scales its weights by their own amaxes here, as it does stored ones."""
    recipe = RECIPES["delayed"]
    made = octet.fsdp_gather_quantized(model("delayed"), recipe)
    stored = quantized("delayed")
    sharded(made, mesh)
    losses = [forward(recipe, of, 0, 0) for of in (made, stored)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    for one, two in zip(made.parameters(), stored.parameters(), strict=True):
        assert torch.equal(one.grad.full_tensor(), two.grad)
    assert_resharded(made)


def test_gather_quantized__delayed_scaling(workers: Workers) -> None:  # noqa: F811
    workers.run(delayed_job, 2)


def test_gather_quantized__is_refused_by_name() -> None:
    recipe = RECIPES["current"]
    with pytest.raises(ValueError, match=r"no octet layer in Linear; call octet.convert"):
        octet.fsdp_gather_quantized(torch.nn.Linear(3, 4), recipe)
    with pytest.raises(
        ValueError, match=r"Linear \(70 -> 44\): its weight is a QuantizedTensor"
    ):
        octet.fsdp_gather_quantized(quantized("current"), recipe)
    parts = octet.Linear(70, 44, device="cpu", parameters_split=("query", "key"))
    with pytest.raises(ValueError, match="parameters_split joins weights"):
        octet.fsdp_gather_quantized(parts, recipe)
    with pytest.raises(TypeError, match="recipe is None"):
        octet.fsdp_gather_quantized(model("none"), None)
    override = octet.recipe.Float8CurrentScaling(backward_override="high_precision")
    with pytest.raises(ValueError, match="leave out one of the two"):
        octet.fsdp_gather_quantized(model("none"), override)
