"""fully_shard's policies and meshes: shards on the CPU, replicas of shards, layers in parts."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import octet
import pytest
from fsdp_workers import Workers, workers  # noqa: F401
from laws import RECIPES
from octet import _shard, _sharded
from test_fsdp import Case, Halves, forward, model, sharded
from test_fsdp_models import Checkpointed
from test_fsdp_quantized import quantized
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

import torch


def made_as(name: str, kind: str) -> torch.nn.Module:
    return quantized(name) if kind == "quantized" else model(name)


def change_of(name: str, kind: str) -> Any:  # noqa: ANN401
    """What is done to the sharded model alone."""
    if kind != "gathered":
        return None
    return lambda made: octet.fsdp_gather_quantized(made, RECIPES[name])


# ---- shards on the CPU -----------------------------------------------------------------------


@contextmanager
def copies_travel() -> Iterator[list[int]]:
    """Has shards be copied before they are gathered, as they are where a GPU gathers them."""
    usual, seen = _shard.QuantizedShard.to, []

    def to(shard: _shard.QuantizedShard, *_: Any, **__: Any) -> _shard.QuantizedShard:  # noqa: ANN401
        seen.append(1)
        return _shard.sent_to(shard, torch.device("cpu"))

    _shard.QuantizedShard.to = to
    try:
        yield seen
    finally:
        _shard.QuantizedShard.to = usual


def offload_job(mesh: DeviceMesh, cases: list[tuple[str, str]]) -> None:
    for name, kind in cases:
        policy = CPUOffloadPolicy(pin_memory=False)
        with copies_travel() as seen:
            case = Case(mesh, made_as(name, kind), change_of(name, kind), offload_policy=policy)
            case.run(RECIPES[name], 2)
        assert bool(seen) == (kind != "plain")
        for layer in case.made.modules():
            if isinstance(layer, octet.Linear) and kind == "quantized":
                assert layer.weight.to_local()._memory.values is None  # quantized by the step


OFFLOADED = [("mxfp8", "plain"), ("mxfp8", "quantized"), ("nvfp4", "quantized")]


def test_policies__shards_on_the_cpu(workers: Workers) -> None:  # noqa: F811
    workers.run(offload_job, 3, [*OFFLOADED, ("current", "gathered")])


def test_policies__a_pinned_shard_stays_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here pinned memory is any other."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    form = _shard.form_of("mxfp8:e4m3+row", (8, 64))
    memory = _shard.Memory(form, torch.float32, 8, False)
    memory.lines = torch.arange(8 * form.width, dtype=torch.int32).to(torch.uint8).view(8, -1)
    shard = _shard.QuantizedShard(memory, 0, (8, 64))
    found = _shard._SHARD_HANDLERS[torch.ops.aten._pin_memory.default](None, (shard,), {})
    assert isinstance(found, _shard.QuantizedShard)
    assert torch.equal(found._memory.lines, shard._memory.lines)
    assert found._memory.lines.data_ptr() != shard._memory.lines.data_ptr()


# ---- meshes of two dimensions ----------------------------------------------------------------


def hybrid_job(mesh: DeviceMesh, name: str, kind: str) -> None:
    """Shards on two ranks, replicated on two more: all of them see the same batch, so a step is
    that of one process."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    made = made_as(name, kind)
    own = copy.deepcopy(made)
    if change_of(name, kind) is not None:
        change_of(name, kind)(made)
    sharded(made, both)
    optimizers = [torch.optim.SGD(of.parameters(), lr=0.5) for of in (made, own)]
    for number in range(2):
        losses = [forward(RECIPES[name], of, number, 0) for of in (made, own)]
        assert torch.equal(*losses), number
        for loss in losses:
            loss.backward()
        for found, wanted in zip(made.parameters(), own.parameters(), strict=True):
            assert torch.equal(found.grad.full_tensor(), wanted.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "kind"), [("current", "quantized"), ("mxfp8", "quantized"), ("block", "gathered")]
)
def test_policies__replicas_of_quantized_shards(workers: Workers, name: str, kind: str) -> None:  # noqa: F811
    workers.run(hybrid_job, 4, name, kind)


def split_job(mesh: DeviceMesh, cases: list[tuple[str, str]]) -> None:
    """Layers that are split by parallel_mode over two ranks, and sharded over two more."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    for name, kind in cases:
        recipe = RECIPES[name]
        torch.manual_seed(1)
        options = {"tp_group": both["model"], "sequence_parallel": True, "device": "cpu"}
        with octet.quantized_model_init(enabled=kind == "quantized", recipe=recipe):
            made = torch.nn.Sequential(
                octet.Linear(64, 128, parallel_mode="column", **options),
                octet.Linear(128, 64, parallel_mode="row", **options),
            )
        own = copy.deepcopy(made)
        if kind == "gathered":
            octet.fsdp_gather_quantized(made, recipe)
        for part in (*made, made):
            fully_shard(part, mesh=both["data"])
        for number in range(2):
            torch.manual_seed(number)
            x = torch.randn(2, 64, 64)[both["model"].get_local_rank()]
            with octet.autocast(recipe=recipe):
                outputs = [made(x), own(x)]
            assert torch.equal(*outputs), (name, kind)
            for y in outputs:
                y.square().sum().backward()
            for found, wanted in zip(made.parameters(), own.parameters(), strict=True):
                assert torch.equal(found.grad.full_tensor(), wanted.grad), (name, kind)
            made.zero_grad()
            own.zero_grad()


def test_policies__split_layers_are_sharded(workers: Workers) -> None:  # noqa: F811
    cases = [("current", "plain"), ("delayed", "plain"), ("mxfp8", "quantized")]
    workers.run(split_job, 4, [*cases, ("block", "gathered")])


# ---- a weight that Python makes of what was gathered -----------------------------------------


def remade_job(mesh: DeviceMesh, kind: str, compiled: str) -> tuple[int, int]:
    """Layers whose weight is joined of parts, or cast by a quantizer of a user's: bytes that
    forward saves, and parameters among them that fully_shard has freed."""
    torch.manual_seed(1)
    options: dict[str, Any] = {"device": "cpu"}
    if "parts" in kind:
        options["parameters_split"] = {"query": 384, "key": 128}
    recipe = octet.recipe.CustomRecipe(lambda role: Halves())
    if "custom" not in kind:
        recipe = RECIPES[kind.split()[1]]
    made = torch.nn.Sequential(*(octet.Linear(512, 512, **options) for _ in range(2)))
    own = copy.deepcopy(made)
    for layer in made:
        if compiled:
            layer.compile(backend=compiled, fullgraph=True)
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    saved: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    x = torch.randn(2, 512, requires_grad=True)
    active = octet.autocast(enabled=recipe is not None, recipe=recipe)
    with hooks, active:
        y = made(x)
    sizes = [storage.size() for storage in saved.values()]
    y.square().sum().backward()
    with active:
        wanted = own(x)
    wanted.square().sum().backward()
    assert torch.equal(y, wanted)
    for found, given in zip(made.parameters(), own.parameters(), strict=True):
        assert torch.equal(found.grad.full_tensor(), given.grad)
    return sum(sizes), sum(size == 0 for size in sizes)


@pytest.mark.parametrize("compiled", ["", "aot_eager"])
@pytest.mark.parametrize(
    "kind", ["parts mxfp8", "parts current", "parts none", "custom", "custom parts"]
)
def test_policies__what_is_made_of_gathered_weights_is_not_saved(
    workers: Workers,  # noqa: F811
    kind: str,
    compiled: str,
) -> None:
    for size, freed in workers.run(remade_job, 2, kind, compiled):
        assert size < 512 * 512 // 8
        assert freed == (4 if "parts" in kind else 2)


def test_policies__parts_without_a_recipe_have_all_derivatives() -> None:
    from octet._function import LinearOfParts

    made = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in SHAPES]
    assert torch.autograd.gradcheck(LinearOfParts.apply, made)
    assert torch.autograd.gradgradcheck(LinearOfParts.apply, made)


SHAPES = [(2, 3, 4), (5,), (3, 4), (2, 4)]


# ---- refused ---------------------------------------------------------------------------------


def refused_job(mesh: DeviceMesh) -> None:
    made = sharded(quantized("current"), mesh, reshard_after_forward=2)
    with pytest.raises(ValueError, match=r"weight \(44, 70\) .* reshard_after_forward True or"):
        forward(RECIPES["current"], made, 0, 0)


def test_policies__fewer_ranks_after_forward_are_refused(workers: Workers) -> None:  # noqa: F811
    workers.run(refused_job, 4)


def checkpoint_job(mesh: DeviceMesh, where: str) -> None:
    """Compiled code that a checkpoint runs again, with MXFP8's two directions."""
    words = r"octet.Linear 'up' \(70 -> 44\): a checkpoint .* reshard_after_forward=False"
    made = quantized("mxfp8")
    for block in made[:2]:
        block.up.name = "up"
    for index in range(2):
        made[index] = Checkpointed(made[index])
    sharded(made, mesh)
    for block in made[:2]:
        (block if where == "inside" else block.inner).compile(
            backend="aot_eager", fullgraph=True
        )
    with pytest.raises(Exception, match=words):
        forward(RECIPES["mxfp8"], made, 0, 0)


@pytest.mark.parametrize("where", ["inside", "around"])
def test_policies__a_checkpoint_of_compiled_code_is_refused(
    workers: Workers,  # noqa: F811
    where: str,
) -> None:
    workers.run(checkpoint_job, 2, where)


def once_job(mesh: DeviceMesh) -> None:
    """The fix that the refusal names."""
    made = quantized("mxfp8")
    for index in range(2):
        made[index] = Checkpointed(made[index])
    case = Case(mesh, made, reshard_after_forward=False)
    for block in case.made[:2]:
        block.compile(backend="aot_eager", fullgraph=True)
    case.run(RECIPES["mxfp8"], 2)


def test_policies__weights_that_stay_gathered_are_recomputed(workers: Workers) -> None:  # noqa: F811
    workers.run(once_job, 2)


def test_policies__torchs_fully_shard_is_the_one_that_is_known() -> None:
    """The private names that docs/architecture.md lists."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    assert _sharded.knows_fully_shard()
    assert _fsdp_param.__name__ == _sharded.FSDP_PARAM
    assert "unsafe_setattr_param" in _fsdp_param.FSDPParam._setattr_on_modules.__code__.co_names
    fields = set(_fsdp_param.ParamModuleInfo.__dataclass_fields__)
    assert {"module", "param_name", "shared_modules", "shared_param_names"} <= fields
    group = _fsdp_param_group.FSDPParamGroup
    assert {"unshard", "wait_for_unshard"} <= set(vars(group))
    written = group.__init__.__code__.co_names
    for name in ("_reshard_after_forward", "_training_state", "post_forward_mesh_info"):
        assert name in written or hasattr(group, name), name
