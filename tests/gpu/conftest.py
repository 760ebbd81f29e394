"""Tests on a GPU. Without one those of models run on the CPU; the others need it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from octet.state import seeds

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_gpu_*.py"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call draws one seed, eager and compiled, on CPU and GPU: their generators
    would draw different ones."""

    def draw(device: torch.device) -> torch.Tensor:
        return torch.full((1,), 0x0123456789ABCDEF, dtype=torch.int64, device=device)

    monkeypatch.setattr(seeds, "draw", draw)
