"""Split layers in the rest of training: pipelines, main_grad in one buffer, caches on disk."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import octet
import pytest
import torch.distributed as dist
from laws import RECIPES
from ranks import Ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import torch

# ---- pipelines -------------------------------------------------------------------------------

MICROBATCHES, ROWS, WIDTH = 4, 32, 64
SCHEDULES = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}


class Stage(torch.nn.Module):
    """A stage that casts its weights once a step, for the first microbatch."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        column = {**options, "parallel_mode": "column"} if options else {}
        row = {**options, "parallel_mode": "row"} if options else {}
        self.up = octet.Linear(WIDTH, 2 * WIDTH, device="cpu", **column)
        self.down = octet.Linear(2 * WIDTH, WIDTH, device="cpu", **row)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.calls % MICROBATCHES == 0
        self.calls += 1
        y = torch.relu(self.up(x, is_first_microbatch=first))
        return self.down(y, is_first_microbatch=first)


def stages(options: dict[str, Any]) -> list[torch.nn.Module]:
    torch.manual_seed(1)
    return [Stage(**options), Stage(**options)]


def batch(number: int, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of each microbatch, one after the other."""
    torch.manual_seed(10 + number)
    found = torch.randn(2, MICROBATCHES, ROWS, WIDTH)
    if options:
        found = found.chunk(2, 2)[dist.get_rank(options["tp_group"].get_group())]
    return tuple(found.reshape(2, -1, WIDTH).unbind())


def in_one(name: str, options: dict[str, Any], steps: int) -> list[torch.nn.Module]:
    """Both stages in one process, a microbatch at a time, each step by weights that changed."""
    parts = stages(options)
    for number in range(steps):
        x, target = batch(number, options)
        for part in parts:
            part.zero_grad()
        for a, b in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
            with octet.autocast(recipe=RECIPES[name]):
                y = parts[1](parts[0](a))
            (torch.nn.functional.mse_loss(y, b) / MICROBATCHES).backward()
        moved(parts)
    return parts


def moved(parts: list[torch.nn.Module]) -> None:
    with torch.no_grad():
        for part in parts:
            for parameter in part.parameters():
                parameter -= parameter.grad


def pipeline(rank: int, name: str, schedule: str, splits: bool) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "tp"))
    options = {"tp_group": mesh["tp"], "sequence_parallel": True} if splits else {}
    wanted = in_one(name, options, 2)
    index = mesh["stage"].get_local_rank()
    part = stages(options)[index]
    rows = ROWS // (2 if splits else 1)
    stage = PipelineStage(
        part,
        index,
        2,
        torch.device("cpu"),
        input_args=(torch.empty(rows, WIDTH, requires_grad=index > 0),),
        output_args=(torch.empty(rows, WIDTH, requires_grad=True),),
        group=mesh["stage"].get_group(),
    )
    runs = SCHEDULES[schedule](stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    for number in range(2):
        x, target = batch(number, options)
        part.zero_grad()
        with octet.autocast(recipe=RECIPES[name]):
            if index == 0:
                runs.step(x)
            else:
                runs.step(target=target, losses=[])
        moved([part])
    assert part.calls == 2 * MICROBATCHES
    for one, two in zip(part.parameters(), wanted[index].parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
        assert torch.equal(one, two)


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_training__stages_cast_weights_for_the_first_microbatch(
    schedule: str, splits: bool, four: Ranks
) -> None:
    for name in ("mxfp8", "current"):
        four.run(pipeline, name, schedule, splits)


# ---- main_grad -------------------------------------------------------------------------------


def flat_gradients(rank: int, splits: bool, name: str) -> None:
    """Gradients that backward adds to views of one buffer, which ranks then reduce at once, are
    those of weight.grad."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tp"))
    options: dict[str, Any] = {"device": "cpu", "params_dtype": torch.bfloat16}
    if splits:
        options |= {"tp_group": mesh["tp"], "sequence_parallel": True}

    def layers(**more: Any) -> list[octet.Linear]:  # noqa: ANN401
        torch.manual_seed(7)
        column, row = ({"parallel_mode": m} if splits else {} for m in ("column", "row"))
        return [
            octet.Linear(64, 128, bias=False, **column, **options, **more),
            octet.Linear(128, 64, bias=False, **row, **options, **more),
        ]

    fused, usual = layers(fuse_wgrad_accumulation=True), layers()
    sizes = [layer.weight.numel() for layer in fused]
    flat = torch.full([sum(sizes)], 5.0)
    for layer, view in zip(fused, flat.split(sizes), strict=True):
        layer.weight.main_grad = view.view(layer.weight.shape)
    totals = [torch.zeros_like(layer.weight, dtype=torch.float32) for layer in usual]
    for number in range(3):
        torch.manual_seed(100 * number + rank)
        x = torch.randn(32, 64, dtype=torch.bfloat16)
        for of in (fused, usual):
            with octet.autocast(recipe=RECIPES[name]):
                y = of[0](x.clone().requires_grad_(), is_first_microbatch=number == 0)
                y = of[1](y, is_first_microbatch=number == 0)
            y.float().square().sum().backward()
        for total, layer in zip(totals, usual, strict=True):
            total += layer.weight.grad
            layer.weight.grad = None
    assert all(layer.weight.grad is None for layer in fused)
    wanted = torch.cat([total.flatten() for total in totals])
    # weight.grad is rounded to bfloat16 once for each microbatch, main_grad is not.
    bound = 3 * 2.0**-8 * torch.cat([t.abs().max().expand(t.numel()) for t in totals])
    assert ((flat - wanted).abs() <= 2 * bound).all()
    own = flat.clone()
    dist.all_reduce(flat, group=mesh["data"].get_group())
    others = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(others, own, group=mesh["data"].get_group())
    assert torch.equal(flat, others[0] + others[1])
    for layer, view in zip(fused, flat.split(sizes), strict=True):
        assert torch.equal(layer.weight.main_grad.flatten(), view)


@pytest.mark.parametrize("splits", [False, True])
def test_training__main_grads_are_views_of_one_buffer(splits: bool, four: Ranks) -> None:
    for name in ("mxfp8", "current"):
        four.run(flat_gradients, splits, name)


# ---- caches on disk --------------------------------------------------------------------------

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import octet
from torch._dynamo.utils import counters

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
options = {"tp_group": dist.group.WORLD, "sequence_parallel": True, "device": "cpu"}
first = octet.Linear(64, 128, parallel_mode="column", **options)
second = octet.Linear(128, 64, parallel_mode="row", **options)

def call(x):
    with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
        return second(first(x))

x = torch.randn(2, 32, 64)[rank].clone().requires_grad_()
y = torch.compile(call, fullgraph=True)(x)
y.sum().backward()
found = counters["aot_autograd"]
kinds = ("hit", "miss", "bypass")
print(*(found[f"autograd_cache_{kind}"] for kind in kinds))
print(float(y.sum()), float(x.grad.sum()), float(first.weight.grad.sum()), flush=True)
os._exit(0)
"""


def two_processes(folders: list[Path], store: Path) -> list[list[str]]:
    """What two ranks print, whose compilers have these folders."""
    started = []
    for rank, folder in enumerate(folders):
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2] / "python"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        }
        line = [sys.executable, "-c", SCRIPT, str(rank), str(store)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(line, env=environment, **pipes))
    found = []
    for process in started:
        printed, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]
        found.append(printed.splitlines()[-2:])
    return found


def test_training__ranks_find_their_graphs_again(tmp_path: Path) -> None:
    """One folder serves both ranks. Later one rank finds its graphs, and the other one has to
    compile: they agree, and compute the same."""
    shared, other = tmp_path / "shared", tmp_path / "other"
    first = two_processes([shared, shared], tmp_path / "store 1")
    again = two_processes([shared, other], tmp_path / "store 2")
    assert [lines[1] for lines in first] == [lines[1] for lines in again]
    assert first[0][1] != first[1][1]
    assert [lines[0] for lines in again] == ["1 0 0", "0 1 0"]
