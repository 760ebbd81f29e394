"""torch.distributed.checkpoint: a resumed training is the uninterrupted one, bit for bit."""

import os
from pathlib import Path
from typing import Any

import octet
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from laws import RECIPES
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch

DELAYED = RECIPES["delayed"]
WORLD = 2


def model(seed: int = 1, prepared: bool = True) -> torch.nn.Module:
    torch.manual_seed(seed)
    made = torch.nn.Sequential(
        octet.Linear(64, 96, device="cpu"), torch.nn.ReLU(), octet.Linear(96, 32, device="cpu")
    )
    return octet.prepare(made, DELAYED) if prepared else made


def train(of: torch.nn.Module, steps: range, recipe: Any = DELAYED) -> None:  # noqa: ANN401
    optimizer = torch.optim.SGD(of.parameters(), lr=0.5)
    for number in steps:
        torch.manual_seed(10 + number)
        with octet.autocast(recipe=recipe):
            loss = of(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(of: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights and state, gathered."""
    found = of.state_dict()
    return {
        k: (v.full_tensor() if hasattr(v, "full_tensor") else v).detach().clone()
        for k, v in found.items()
    }


def assert_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


def test_dcp__a_resumed_training_is_the_uninterrupted_one(tmp_path: Path) -> None:
    for name in ("delayed", "mxfp8", "nvfp4"):
        first, plain, by_api = model(), model(7), model(8)
        train(first, range(2), RECIPES[name])
        dcp.save({"model": first.state_dict()}, checkpoint_id=tmp_path / name)
        train(first, range(2, 4), RECIPES[name])
        state = {"model": plain.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path / name)
        plain.load_state_dict(state["model"])
        state = {"model": get_model_state_dict(by_api)}
        dcp.load(state, checkpoint_id=tmp_path / name)
        set_model_state_dict(by_api, state["model"])
        for other in (plain, by_api):
            train(other, range(2, 4), RECIPES[name])
            assert_equal(whole(first), whole(other))


def test_dcp__without_prepare_the_state_starts_afresh(tmp_path: Path) -> None:
    first, other = model(), model(7, prepared=False)
    train(first, range(2))
    dcp.save(first.state_dict(), checkpoint_id=tmp_path)
    state = other.state_dict()
    assert not any("fp8" in key for key in state)
    dcp.load(state, checkpoint_id=tmp_path)
    other.load_state_dict(state)
    assert torch.equal(first[0].weight, other[0].weight)
    assert torch.equal(other[0].fp8_scale, torch.ones(3))
    train(other, range(2, 4))
    assert all(t.isfinite().all() for t in whole(other).values())


def sharded() -> torch.nn.Module:
    made, mesh = model(), init_device_mesh("cpu", (WORLD,))
    for part in (made[0], made[2], made):
        fully_shard(part, mesh=mesh)
    return made


def on_two(rank: int, folder: str) -> None:
    """Saves on two ranks; resumes there, too."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    first = sharded()
    train(first, range(2))
    before = whole(first)
    dcp.save({"model": first.state_dict()}, checkpoint_id=f"{folder}/plain")
    dcp.save({"model": get_model_state_dict(first)}, checkpoint_id=f"{folder}/api")
    train(first, range(2, 4))
    for name in ("plain", "api"):
        other = sharded()
        state = {"model": other.state_dict()}
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        set_model_state_dict(other, state["model"], options=StateDictOptions(strict=True))
        assert_equal(before, whole(other))
        train(other, range(2, 4))
        assert_equal(whole(first), whole(other))
    if rank == 0:
        torch.save(before, f"{folder}/whole.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads have been seen to abort a process that ends in the usual way


def test_dcp__saved_on_two_ranks_and_loaded_on_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(on_two, (str(tmp_path),), nprocs=WORLD)
    wanted = torch.load(tmp_path / "whole.pt")
    assert not torch.equal(wanted["0.fp8_state"][0], torch.ones(3))
    for name in ("plain", "api"):
        other = model(7)
        state = {"model": other.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path / name)
        other.load_state_dict(state["model"])
        assert_equal(wanted, whole(other))
