"""Tests on a GPU. Without one those of models run on the CPU; the others need it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_gpu_*.py"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
