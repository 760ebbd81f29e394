"""Data parallelism by torch's own wrappers: two processes that train one model."""

import copy
import os
from pathlib import Path
from typing import Any

import octet
import pytest
import torch.distributed as dist
from laws import RECIPES
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch

WORLD = 2
MODELS = [(name, False) for name in RECIPES] + [
    (name, True) for name in RECIPES if name != "none"
]


def model(name: str, quantized: bool) -> torch.nn.Module:
    torch.manual_seed(1)
    with octet.quantized_model_init(enabled=quantized, recipe=RECIPES[name]):
        layers = [octet.Linear(70, 44, device="cpu"), octet.Linear(44, 70, device="cpu")]
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])


def train(name: str, wrapped: Any, rank: int, lr: float = 0.1) -> None:  # noqa: ANN401
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=lr)
    for number in range(3):
        torch.manual_seed(10 * number + rank)
        with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
            y = wrapped(torch.randn(6, 70))
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def assert_alike(tensor: torch.Tensor) -> None:
    """The same on every rank."""
    found = [torch.empty_like(tensor) for _ in range(WORLD)]
    dist.all_gather(found, tensor)
    assert all(torch.equal(other, tensor) for other in found)


def in_ddp(rank: int) -> None:
    for name, quantized in MODELS:
        inner = model(name, quantized)
        train(name, torch.nn.parallel.DistributedDataParallel(inner), rank)
        for parameter in inner.parameters():
            is_quantized = isinstance(parameter, octet.QuantizedTensor)
            assert is_quantized == (quantized and parameter.dim() == 2)
            plain = parameter.dequantize() if is_quantized else parameter
            assert_alike(plain.detach())


def in_fsdp(rank: int) -> None:
    """Shards of quantized weights are bytes; they stand for what the whole stands for."""
    mesh = init_device_mesh("cpu", (WORLD,))
    for name, quantized in MODELS:
        inner = model(name, quantized)
        before = copy.deepcopy(inner[0].weight.detach())
        for part in (inner[0], inner[2], inner):
            fully_shard(part, mesh=mesh)
        shard = inner[0].weight
        assert (type(shard.to_local()) is torch.Tensor) == (not quantized)
        start = before.dequantize() if quantized else before
        assert torch.equal(shard.full_tensor().detach(), start)
        train(name, inner, rank, lr=10.0 if quantized else 0.1)  # bytes take large steps only
        after = inner[0].weight.full_tensor().detach()
        assert not torch.equal(after, start)
        assert_alike(after)


def run(rank: int, store: str, work: Any) -> None:  # noqa: ANN401
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    work(rank)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads have been seen to abort a process that ends in the usual way


@pytest.mark.parametrize("work", [in_ddp, in_fsdp])
def test_distributed__ranks_train_one_model(work: Any, tmp_path: Path) -> None:  # noqa: ANN401
    torch.multiprocessing.spawn(run, (str(tmp_path / "store"), work), nprocs=WORLD)
