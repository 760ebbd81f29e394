"""One group of processes for all tests of fully_shard and DTensor: they take jobs.

A job is a function of a test module, by name. It runs in the first `world` processes, each with
a mesh of these. A job that fails ends the group; the next one starts another.
"""

import atexit
import importlib
import os
import queue
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh

import torch

MOST = 4  # processes
PATIENCE = 300  # seconds that a job may take


def _meshes() -> dict[int, DeviceMesh]:
    """A mesh of the first ranks, for each number of them; made by all ranks together."""
    groups = {n: dist.new_group(list(range(n))) for n in range(1, MOST + 1)}
    rank = dist.get_rank()
    return {
        n: DeviceMesh.from_group(group, "cpu", mesh_dim_names=("ranks",))
        for n, group in groups.items()
        if rank < n
    }


def _work(rank: int, store: str, jobs: Any, results: Any) -> None:  # noqa: ANN401
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=MOST)
    meshes = _meshes()
    while True:
        job = jobs.get()
        if job is None:
            os._exit(0)  # gloo's threads have been seen to abort a process that ends as usual
        module, name, world, args = job
        torch.manual_seed(0)
        torch._dynamo.reset()
        try:
            made = getattr(importlib.import_module(module), name)(meshes[world], *args)
            results.put((rank, None, made))
        except BaseException:
            results.put((rank, traceback.format_exc(), None))


class Workers:
    """The processes, started by the first job."""

    def __init__(self) -> None:
        self._processes: list[Any] = []

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._jobs = [context.Queue() for _ in range(MOST)]
        self._results = context.Queue()
        store = str(Path(self._folder.name) / "store")
        for rank, jobs in enumerate(self._jobs):
            args = (rank, store, jobs, self._results)
            self._processes.append(context.Process(target=_work, args=args, daemon=True))
            self._processes[-1].start()

    def stop(self) -> None:
        """Ends the processes, whatever they do."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._processes = []

    def run(self, job: Callable[..., Any], world: int, *args: Any) -> list[Any]:  # noqa: ANN401
        """What the job returns in each of the first `world` processes."""
        if not self._processes:
            self._start()
        for jobs in self._jobs[:world]:
            jobs.put((job.__module__, job.__name__, world, args))
        found: dict[int, Any] = {}
        try:
            while len(found) < world:
                rank, error, made = self._results.get(timeout=PATIENCE)
                if error is not None:
                    raise AssertionError(f"rank {rank} of {world}:\n{error}")
                found[rank] = made
        except (AssertionError, queue.Empty):
            self.stop()
            raise
        return [found[rank] for rank in range(world)]


_WORKERS = Workers()
atexit.register(_WORKERS.stop)


@pytest.fixture
def workers() -> Workers:
    """The one group of this run."""
    return _WORKERS
