"""fully_shard (FSDP2) of layers with high-precision weights: steps are those of one process."""

import copy
import gc
from typing import Any

import octet
import pytest
import torch.distributed as dist
from fsdp_workers import Workers, workers  # noqa: F401
from laws import RECIPES
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import torch

STEPS = 3


class Block(torch.nn.Module):
    """Two layers whose sizes are no multiple of any block, nor of the ranks."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        super().__init__()
        self.up = octet.Linear(70, 44, params_dtype=dtype, device=device)
        self.down = octet.Linear(44, 70, params_dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def model(name: str, **options: Any) -> torch.nn.Module:  # noqa: ANN401
    torch.manual_seed(1)
    made = torch.nn.Sequential(Block(**options), Block(**options))
    made.append(octet.Linear(70, 44, params_dtype=options.get("dtype"), device="cpu"))
    return octet.prepare(made, RECIPES[name]) if name == "delayed" else made


def sharded(of: torch.nn.Module, mesh: DeviceMesh, **options: Any) -> torch.nn.Module:  # noqa: ANN401
    for part in (of[0], of[1], of):
        fully_shard(part, mesh=mesh, **options)
    return of


def forward(name: str, of: torch.nn.Module, number: int, rank: int) -> torch.Tensor:
    """The loss of a rank's own batch; random numbers are the batch's own, too."""
    torch.manual_seed(10 * number + rank)
    dtype = next(of.parameters()).dtype
    with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
        return of(torch.randn(6, 70, dtype=dtype)).float().square().mean()


class OneProcess:
    """What the ranks do, one after the other: a replica each, and the mean of gradients."""

    def __init__(self, of: torch.nn.Module, world: int) -> None:
        self.replicas = [copy.deepcopy(of) for _ in range(world)]
        self.optimizers = [torch.optim.SGD(r.parameters(), lr=0.5) for r in self.replicas]

    def step(self, name: str, number: int) -> list[torch.Tensor]:
        losses = [forward(name, r, number, rank) for rank, r in enumerate(self.replicas)]
        for loss in losses:
            loss.backward()
        for together in zip(*(r.parameters() for r in self.replicas), strict=True):
            mean = sum(p.grad for p in together) / len(together)
            for p in together:
                p.grad = mean.clone()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return [loss.detach() for loss in losses]


def whole(of: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in of.named_parameters():
        tensor = parameter.detach()
        found[name] = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def assert_resharded(of: torch.nn.Module) -> None:
    """Nothing that was gathered has memory, not the root's parameters either."""
    for module in of.modules():
        if not isinstance(module, FSDPModule):
            continue
        module.reshard()
        for held in module._get_fsdp_state()._fsdp_param_group.fsdp_params:
            for tensor in (*held.all_gather_outputs, *held._unsharded_inner_tensors):
                assert tensor.untyped_storage().size() == 0


def live_bytes() -> int:
    """Memory of all tensors that Python can see, each storage once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter, octet.QuantizedTensor):
            if isinstance(thing, octet.QuantizedTensor):
                continue  # its buffers are seen one by one
            storage = thing.untyped_storage()
            found[storage._cdata] = storage.size()
    return sum(found.values())


# ---- steps -----------------------------------------------------------------------------------


def steps_job(mesh: DeviceMesh, name: str, options: dict[str, Any], compiled: bool) -> None:
    rank, world = mesh.get_local_rank(), mesh.size()
    made = model(name)
    one = OneProcess(made, world)
    if compiled:
        for block in made[:2]:
            block.compile(backend="aot_eager", fullgraph=True)
    sharded(made, mesh, **options)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    left = []
    for number in range(STEPS):
        loss = forward(name, made, number, rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wanted = one.step(name, number)
        assert torch.equal(loss.detach(), wanted[rank]), number
        assert_same(whole(made), dict(one.replicas[0].named_parameters()))
        del loss, wanted
        assert_resharded(made)
        left.append(live_bytes())
    assert left[1:] == left[1:2] * (STEPS - 1), left


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_fsdp__steps_are_those_of_one_process(
    workers: Workers,  # noqa: F811
    name: str,
    compiled: bool,
) -> None:
    workers.run(steps_job, 2, name, {}, compiled)
