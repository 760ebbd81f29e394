"""Products in chunks beside their collectives: two processes on one CPU, over gloo.

    python bench/overlap.py [--rows 2048] [--features 2048] [--rounds 15]

A process that computes and gloo's thread that adds up share this machine's cores, and what
"travels" is copied through its memory. So the table says what cutting a product costs, and
whether a collective runs beside it at all; it says nothing of NVLink, for which `octet plan`
has a model. Ways alternate within each round; ratios are of medians of one run. CPU time is
that of a process with all its threads, so that other programs do not count.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import octet

WAYS = (1, 2, 4)  # chunks
RECIPES = {
    "none": None,
    "current": octet.recipe.Float8CurrentScaling(),
    "mxfp8": octet.recipe.MXFP8BlockScaling(),
}


def layer_of(mode: str, features: int, chunks: int) -> octet.Linear:
    torch.manual_seed(7)
    return octet.Linear(
        features,
        features,
        bias=False,
        parallel_mode=mode,
        tp_group=dist.group.WORLD,
        sequence_parallel=True,
        params_dtype=torch.bfloat16,
        device="cpu",
        ub_overlap_rs=chunks,
        ub_overlap_rs_dgrad=chunks,
        ub_overlap_ag=chunks,
    )


def forward(layer: octet.Linear, x: torch.Tensor, recipe: Any) -> Callable[[], Any]:  # noqa: ANN401
    def call() -> None:
        with torch.no_grad(), octet.autocast(enabled=recipe is not None, recipe=recipe):
            layer(x)

    return call


def backward(layer: octet.Linear, x: torch.Tensor, recipe: Any) -> Callable[[], Any]:  # noqa: ANN401
    with octet.autocast(enabled=recipe is not None, recipe=recipe):
        y = layer(x.requires_grad_())
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (x, layer.weight), grad, retain_graph=True)


def milliseconds(call: Callable[[], Any]) -> tuple[float, float]:
    """By the clock, and of the CPU."""
    dist.barrier()
    begin, used = time.perf_counter(), time.process_time()
    call()
    return (time.perf_counter() - begin) * 1e3, (time.process_time() - used) * 1e3


def cells(times: list[list[tuple[float, float]]], which: int) -> str:
    """The median of the whole product, and the others over it."""
    whole, *others = (
        statistics.median(t[which] for t in one) for one in zip(*times, strict=True)
    )
    return " | ".join([f"{whole:.1f}", *(f"{one / whole:.2f}" for one in others)])


def measure(rank: int, store: str, asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rows = []
    # Forward of row and backward of column scatter, the others gather.
    ways = itertools.product((forward, backward), ("row", "column"))
    for make, mode in ways:
        for name, recipe in RECIPES.items():
            calls = []
            for chunks in WAYS:
                layer = layer_of(mode, asked.features, chunks)
                shape = (asked.rows if mode == "row" else asked.rows // 2, layer.in_features)
                x = torch.randn(shape, dtype=torch.bfloat16)
                calls.append(make(layer, x, recipe))
            for call in calls:
                call()
            times = [[milliseconds(call) for call in calls] for _ in range(asked.rounds)]
            what = f"{make.__name__} of {mode}"
            rows.append(f"| {what} | {name} | {cells(times, 0)} | {cells(times, 1)} |")
    if rank == 0:
        print("| call | recipe | ms | 2 chunks | 4 | CPU ms | 2 chunks | 4 |")
        print("|---|---|---|---|---|---|---|---|", *rows, sep="\n")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measure, (f"{folder}/store", asked), nprocs=2)


if __name__ == "__main__":
    main()
