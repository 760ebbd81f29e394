"""Scales that ranks agree on: what is saved is what every rank has, whoever saves it."""

import copy
import gc
from pathlib import Path
from typing import Any

import octet
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from octet import recipe
from parallel_jobs import COMPILES_DELAYED
from ranks import Ranks
from torch.nn.parallel import DistributedDataParallel

import torch

DELAYED = recipe.DelayedScaling(amax_history_len=4)
WAYS = ["eager", "compiled", "autocast compiled", "one autocast", "microbatches", "ddp"]


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [octet.Linear(64, 96, device="cpu"), octet.Linear(96, 32, device="cpu")]
    return octet.prepare(torch.nn.Sequential(*layers), DELAYED)


def autocast() -> octet.autocast:
    return octet.autocast(recipe=DELAYED, amax_reduction_group=dist.group.WORLD)


class Trainer:
    """Replicas that see other data on each rank; the second rank's gradients are larger."""

    def __init__(self, way: str, seed: int = 1) -> None:
        self.way, self.model = way, model(seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.run: Any = self.model
        if way == "ddp":
            self.run = DistributedDataParallel(self.model)
        elif way == "compiled":
            self.run = torch.compile(self.model, backend="aot_eager", fullgraph=True)
        elif way == "autocast compiled":
            inside = autocast()(self.model.forward)
            self.run = torch.compile(inside, backend="aot_eager", fullgraph=True)

    def loss(self, number: int) -> torch.Tensor:
        rank = dist.get_rank()
        generator = torch.Generator().manual_seed(10 * number + rank)
        x = torch.randn(8, 64, generator=generator)
        if self.way in ("autocast compiled", "one autocast"):
            return self.run(x).square().sum() * (1 + 2 * rank)
        with autocast():
            return self.run(x).square().sum() * (1 + 2 * rank)

    def step(self, number: int) -> None:
        self.loss(number).backward()
        if self.way == "microbatches":
            self.loss(number + 100).backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)  # of ddp, the mean: again a sum
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps: range) -> None:
        if self.way == "one autocast":
            with autocast():
                for number in steps:
                    self.step(number)
            return
        for number in steps:
            self.step(number)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: t.detach().clone() for name, t in self.model.state_dict().items()}


def resume(rank: int, way: str, folder: str) -> dict[str, Any]:
    """Trains on, and from what was saved: by one rank, and by all."""
    first = Trainer(way)
    first.train(range(2))
    saved = first.state()
    if rank == 0:
        torch.save(first.model.state_dict(), f"{folder}/one.pt")
    dcp.save(first.model.state_dict(), checkpoint_id=f"{folder}/dcp")
    dist.barrier()
    first.train(range(2, 4))
    found = {"saved": saved, "uninterrupted": first.state()}
    by_one = Trainer(way, 7)
    by_one.model.load_state_dict(torch.load(f"{folder}/one.pt"))
    by_one.train(range(2, 4))
    by_all = Trainer(way, 8)
    state = by_all.model.state_dict()
    dcp.load(state, checkpoint_id=f"{folder}/dcp")
    by_all.model.load_state_dict(state)
    by_all.train(range(2, 4))
    return {**found, "by one": by_one.state(), "by all": by_all.state()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("way", [w for w in WAYS if w != "compiled" or COMPILES_DELAYED])
def test_reduced__a_resumed_training_is_the_uninterrupted_one(
    way: str, two: Ranks, tmp_path: Path
) -> None:
    found = two.run(resume, way, str(tmp_path))
    for rank in found:
        assert same(rank["saved"], found[0]["saved"])
        assert rank["saved"]["0.fp8_grad_state"][1:, 0].any()
        for name in ("by one", "by all"):
            assert same(rank[name], rank["uninterrupted"])


def through_ddp(rank: int) -> dict[str, Any]:
    ddp, plain = Trainer("ddp"), Trainer("eager")
    ddp.train(range(3))
    plain.train(range(3))
    return {"ddp": ddp.state(), "plain": plain.state()}


def copies(rank: int) -> dict[str, Any]:
    """One rank alone copies a model in the middle of a step."""
    first, other = Trainer("eager"), Trainer("eager")
    kept: list[torch.nn.Module] = []
    for number in range(2):
        loss = first.loss(number)
        if rank == 0:
            kept.append(copy.deepcopy(first.model))
        loss.backward()
        for parameter in first.model.parameters():
            dist.all_reduce(parameter.grad)
        first.optimizer.step()
        first.optimizer.zero_grad()
    other.train(range(2))
    return {"first": first.state(), "other": other.state()}


def inner_copies(rank: int) -> dict[str, Any]:
    """The same inside of an autocast, in the middle of a step and after it."""
    first, other = Trainer("one autocast"), Trainer("one autocast")
    kept: list[torch.nn.Module] = []
    with autocast():
        for number in range(3):
            if rank == 0:
                kept.append(copy.deepcopy(first.model))
            loss = first.loss(number)
            if rank == 0:
                kept.append(copy.deepcopy(first.model))
            loss.backward()
            for parameter in first.model.parameters():
                dist.all_reduce(parameter.grad)
            first.optimizer.step()
            first.optimizer.zero_grad()
    other.train(range(3))
    return {"first": first.state(), "other": other.state()}


def freed_on_one(rank: int) -> dict[str, Any]:
    """A model that was given up after its backward; ranks collect garbage when they like."""
    gc.collect()
    gc.disable()
    try:
        given_up = Trainer("eager")
        given_up.model.append(octet.Linear(32, 32, device="cpu"))
        given_up.model.itself = [given_up.model]  # garbage, not freed at once
        given_up.loss(0).backward()
        del given_up
        if rank == 0:
            gc.collect()
        first, other = Trainer("eager"), Trainer("eager")
        first.train(range(2))
    finally:
        gc.enable()
    gc.collect()
    other.train(range(2))
    return {"first": first.state(), "other": other.state()}


def test_reduced__ddp_broadcasts_no_other_amaxes(two: Ranks) -> None:
    for rank in two.run(through_ddp):
        for name in ("0.fp8_grad_state", "1.fp8_grad_state"):
            assert torch.equal(rank["ddp"][name][0], rank["plain"][name][0])


def test_reduced__a_copy_on_one_rank_does_not_take_part(two: Ranks) -> None:
    for job in (copies, inner_copies):
        for rank in two.run(job):
            assert same(rank["first"], rank["other"])


def freed_in_a_step(rank: int) -> dict[str, Any]:
    """The same of compiled code, inside of the autocast whose step it is."""
    gc.collect()
    gc.disable()
    try:
        with autocast():
            given_up, first = Trainer("one autocast"), Trainer("one autocast")
            given_up.model.append(octet.prepare(octet.Linear(32, 32, device="cpu"), DELAYED))
            given_up.model.itself = [given_up.model]
            run = torch.compile(given_up.model, backend="eager", fullgraph=True)
            run(torch.randn(8, 64)).sum().backward()
            first.step(0)  # ends the step, and what backward records after it is reduced later
            run(torch.randn(8, 64)).sum().backward()
            del given_up, run
            torch._dynamo.reset()
            if rank == 0:
                gc.collect()
            first.step(1)
    finally:
        gc.enable()
    gc.collect()
    other = Trainer("one autocast")
    other.train(range(2))
    return {"first": first.state(), "other": other.state()}


def test_reduced__layers_may_be_freed_on_one_rank_first(two: Ranks) -> None:
    for job in (freed_on_one, freed_in_a_step):
        for rank in two.run(job):
            assert same(rank["first"], rank["other"])
