"""fully_shard on a GPU: one rank gathers what it holds; a step is the one without."""

import copy
from collections.abc import Iterator
from typing import Any

import octet
import pytest
import torch.distributed as dist
from octet import recipe
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch

RECIPES = {
    "delayed": recipe.DelayedScaling(amax_history_len=4),
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
    "nvfp4": recipe.NVFP4BlockScaling(),
    "mxfp4": recipe.MXFP4BlockScaling(),
}


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(of: torch.nn.Module, active: Any) -> list[torch.Tensor]:  # noqa: ANN401
    optimizer, losses = torch.optim.SGD(of.parameters(), lr=0.1), []
    for number in range(3):
        torch.manual_seed(number)
        x = torch.randn(32, 256, dtype=torch.bfloat16, device="cuda")
        with octet.autocast(recipe=active):
            loss = of(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("kind", ["plain", "quantized", "gathered"])
@pytest.mark.parametrize("name", RECIPES)
def test_gpu_fsdp__steps_are_those_without(name: str, kind: str) -> None:
    active = RECIPES[name]
    if (name, kind) == ("delayed", "gathered"):
        pytest.skip("its weights are scaled by their own amaxes then")
    torch.manual_seed(1)
    options = {"params_dtype": torch.bfloat16, "device": "cuda"}
    with octet.quantized_model_init(enabled=kind == "quantized", recipe=active):
        layers = [octet.Linear(256, 384, **options), octet.Linear(384, 256, **options)]
    made = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    wanted = copy.deepcopy(made)
    if kind == "gathered":
        octet.fsdp_gather_quantized(made, active)
    mesh = init_device_mesh("cuda", (1,))
    for part in (made[0], made[2], made):
        fully_shard(part, mesh=mesh)
    assert all(map(torch.equal, train(made, active), train(wanted, active)))
    for one, two in zip(made.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(one.full_tensor(), two)
