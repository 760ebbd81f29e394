"""Jobs of fully_shard and DTensor: each runs in the first few ranks of four, with their mesh.

A job is a function of a test module. One that fails ends the ranks; the next one starts others.
"""

import atexit
import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from ranks import TIMEOUT, Ranks
from torch.distributed.device_mesh import DeviceMesh

import torch

MOST = 4  # processes
PATIENCE = 300  # seconds that a job may take

_MESHES: dict[int, DeviceMesh] = {}  # of this rank: a mesh of the first n ranks, by n


def make_meshes(rank: int) -> None:
    """Made by all ranks together."""
    for n in range(1, MOST + 1):
        group = dist.new_group(list(range(n)), timeout=timedelta(seconds=TIMEOUT))
        if rank < n:
            _MESHES[n] = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("ranks",))


def run_job(rank: int, world: int, module: str, name: str, args: tuple[Any, ...]) -> Any:  # noqa: ANN401
    del rank
    torch.manual_seed(0)
    return getattr(importlib.import_module(module), name)(_MESHES[world], *args)


class Workers:
    """The ranks, started by the first job."""

    def __init__(self) -> None:
        self._ranks: Ranks | None = None

    def stop(self) -> None:
        """Ends the ranks, whatever they do."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def run(self, job: Callable[..., Any], world: int, *args: Any) -> list[Any]:  # noqa: ANN401
        """What the job returns in each of the first `world` ranks."""
        if self._ranks is None:
            self._ranks = Ranks(MOST)
            self._ranks.run(make_meshes)
        where = job.__module__, job.__name__
        try:
            return self._ranks.run(run_job, world, *where, args, first=world, seconds=PATIENCE)
        except BaseException:
            self._ranks.is_whole = False
            self.stop()
            raise


_WORKERS = Workers()
atexit.register(_WORKERS.stop)


@pytest.fixture
def workers() -> Workers:
    """The one group of this run."""
    return _WORKERS
