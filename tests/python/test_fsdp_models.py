"""fully_shard and what stands around it: meta init, checkpoints of both kinds, replicas."""

import copy
from pathlib import Path
from typing import Any

import octet
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_workers import Workers, workers  # noqa: F401
from laws import RECIPES
from test_fsdp import Case, assert_resharded, assert_same, forward, model, sharded, whole
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import torch


def train(name: str, of: torch.nn.Module, steps: range, rank: int) -> None:
    optimizer = torch.optim.SGD(of.parameters(), lr=0.5)
    for number in steps:
        forward(RECIPES[name], of, number, rank).backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- meta ------------------------------------------------------------------------------------


def meta_job(mesh: DeviceMesh) -> None:
    source = model("delayed")
    made = torch.nn.Sequential(*(type(m)(device="meta") for m in source[:2]))
    made.append(octet.Linear(70, 44, device="meta"))
    octet.prepare(made, RECIPES["delayed"])
    sharded(made, mesh).to_empty(device="cpu")
    for layer in made.modules():
        if isinstance(layer, octet.Linear):
            layer.reset_parameters()
    for key, drawn in whole(made).items():
        assert drawn.abs().max() <= 1 / (44 if "down" in key else 70) ** 0.5, key
        assert drawn.std() > 0, key
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(made, source.state_dict(), options=options)
    assert_same(whole(made), dict(source.named_parameters()))
    losses = [forward(RECIPES["delayed"], of, 0, 0) for of in (made, source)]
    assert torch.equal(*losses)


def test_fsdp__meta_init(workers: Workers) -> None:  # noqa: F811
    workers.run(meta_job, 3)


# ---- checkpoints on disk ---------------------------------------------------------------------


def save_job(mesh: DeviceMesh, folder: str, name: str) -> dict[str, Any]:
    made = sharded(model(name), mesh)
    train(name, made, range(2), 0)
    group = mesh.get_group()
    state = {"model": get_model_state_dict(made)}
    dcp.save(state, checkpoint_id=f"{folder}/{name}", process_group=group)
    state = {k: v for k, v in made.state_dict().items() if "fp8" in k}
    return {**whole(made), **state}


def load_job(mesh: DeviceMesh, folder: str, name: str) -> dict[str, Any]:
    torch.manual_seed(7)
    made = model(name)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    sharded(made, mesh)
    state = {"model": get_model_state_dict(made)}
    dcp.load(state, checkpoint_id=f"{folder}/{name}", process_group=mesh.get_group())
    set_model_state_dict(made, state["model"])
    state = {k: v for k, v in made.state_dict().items() if "fp8" in k}
    found = {k: v.clone() for k, v in {**whole(made), **state}.items()}
    train(name, made, range(2, 3), 0)
    return found


@pytest.mark.parametrize("name", ["delayed", "mxfp8"])
def test_fsdp__a_checkpoint_loads_on_another_world_size(
    workers: Workers,  # noqa: F811
    name: str,
    tmp_path: Path,
) -> None:
    saved = workers.run(save_job, 2, str(tmp_path), name)[0]
    for world in (3, 1):
        for found in workers.run(load_job, world, str(tmp_path), name):
            assert_same(found, saved)


# ---- recomputation ---------------------------------------------------------------------------


class Checkpointed(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def recompute_job(mesh: DeviceMesh, name: str) -> None:
    made = model(name)
    for index in range(2):
        made[index] = Checkpointed(made[index])
    Case(mesh, made).run(RECIPES[name], 2)


def test_fsdp__blocks_are_recomputed(workers: Workers) -> None:  # noqa: F811
    for name in ("delayed", "mxfp8", "nvfp4"):
        workers.run(recompute_job, 2, name)


# ---- microbatches, frozen weights, replicas of shards ----------------------------------------


def microbatch_job(mesh: DeviceMesh, name: str) -> None:
    """Gradients of microbatches add up before they are reduced."""
    rank, grads = mesh.get_local_rank(), []
    made, own = model(name), model(name)
    sharded(made, mesh)
    for number in range(2):
        made.set_requires_gradient_sync(number == 1)
        forward(RECIPES[name], made, number, rank).backward()
        forward(RECIPES[name], own, number, rank).backward()
    for found, wanted in zip(made.parameters(), own.parameters(), strict=True):
        total = wanted.grad.clone()
        dist.all_reduce(total, group=mesh.get_group())
        grads.append((found.grad.full_tensor(), total / mesh.size()))
    assert all(torch.equal(*pair) for pair in grads)
    assert_resharded(made)


def test_fsdp__microbatches(workers: Workers) -> None:  # noqa: F811
    for name in ("delayed", "block"):
        workers.run(microbatch_job, 2, name)


def frozen_job(mesh: DeviceMesh) -> None:
    made = model("mxfp8")
    for layer in (made[0].up, made[1].down):
        layer.requires_grad_(False)
    Case(mesh, made).run(RECIPES["mxfp8"], 2)


def test_fsdp__frozen_layers(workers: Workers) -> None:  # noqa: F811
    workers.run(frozen_job, 2)


class Tied(torch.nn.Module):
    """A head whose weight is the embedding's, by which fully_shard holds it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(50, 70)
        self.head = octet.Linear(70, 50, bias=False, device="cpu")
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids))


def tied_job(mesh: DeviceMesh) -> tuple[int, int]:
    """Bytes that forward saves beside what fully_shard holds, and those of the weight."""
    made, other, ids = Tied(), Tied(), torch.arange(2)
    fully_shard(made, mesh=mesh)
    with torch.no_grad(), octet.autocast(recipe=RECIPES["mxfp8"]), octet.constant_weights():
        made(ids)
        cast = made.head._weight_cache.tensor
        made.reshard()
        held = torch.empty(50, 70)  # the weight is gathered into other memory
        made(ids)
        assert made.head._weight_cache.tensor is cast
        made.reshard()
        for each in (made, other):
            each.table.weight.mul_(2)
        assert torch.equal(made(ids), other(ids))
    del held
    saved: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, octet.autocast(recipe=RECIPES["mxfp8"]):
        y = made(ids)
    own = made.head.weight.untyped_storage()._cdata
    y.sum().backward()
    return sum(s.size() for key, s in saved.items() if key != own), 50 * 70


def test_fsdp__a_weight_of_two_modules(workers: Workers) -> None:  # noqa: F811
    for saved, elements in workers.run(tied_job, 2):
        assert saved < elements  # it is cast again in backward


def hybrid_job(mesh: DeviceMesh) -> None:
    """Shards on two ranks, replicated on two more."""
    made, own = model("mxfp8"), model("mxfp8")
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    sharded(made, both)
    rank = mesh.get_local_rank()
    forward(RECIPES["mxfp8"], made, 0, rank).backward()
    forward(RECIPES["mxfp8"], own, 0, rank).backward()
    for found, wanted in zip(made.parameters(), own.parameters(), strict=True):
        total = wanted.grad.clone()
        dist.all_reduce(total)
        assert torch.allclose(found.grad.full_tensor(), total / 4, rtol=1e-5, atol=1e-7)


def test_fsdp__replicas_of_shards(workers: Workers) -> None:  # noqa: F811
    workers.run(hybrid_job, 4)


# ---- DistributedDataParallel -----------------------------------------------------------------


def one_step(recipe: Any, twins: list[torch.nn.Module], number: int) -> None:  # noqa: ANN401
    """A step of DDP in one process: buffers are the first one's, gradients the mean."""
    for twin in twins:
        twin.zero_grad()
        for held, first in zip(twin.buffers(), twins[0].buffers(), strict=True):
            held.copy_(first)
    for rank, twin in enumerate(twins):
        forward(recipe, twin, number, rank).backward()


def replicas_job(mesh: DeviceMesh, compiled: bool) -> None:
    """A static graph: DDP counts on the same gradients in the same order in each step."""
    rank, world = mesh.get_local_rank(), mesh.size()
    for name, recipe in RECIPES.items():
        stored = name in ("current", "mxfp8") or (recipe is not None and not compiled)
        for quantized in (False, True) if stored else (False,):
            torch._dynamo.reset()
            with octet.quantized_model_init(enabled=quantized, recipe=recipe):
                made = model(name)
            group = mesh.get_group()
            ddp = DistributedDataParallel(made, process_group=group, static_graph=True)
            # DDP has written the first rank's weights into all: it quantizes them once more.
            twins = [copy.deepcopy(made) for _ in range(world)]
            if compiled:
                for block in made[:2]:
                    block.compile(backend="aot_eager", fullgraph=True)
            for number in range(3):
                ddp.zero_grad()
                forward(recipe, ddp, number, rank).backward()
                one_step(recipe, twins, number)
                pairs = zip(made.parameters(), *(t.parameters() for t in twins), strict=True)
                for found, *wanted in pairs:
                    total = sum(w.grad / world for w in wanted)
                    assert torch.equal(found.grad, total), (name, number)


@pytest.mark.parametrize("compiled", [False, True])
def test_ddp__a_static_graph(workers: Workers, compiled: bool) -> None:  # noqa: F811
    workers.run(replicas_job, 2, compiled)
