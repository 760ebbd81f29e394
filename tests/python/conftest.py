"""Finds the package in the checkout; each test starts with a compiler that knows nothing."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))

import torch

if TYPE_CHECKING:
    from ranks import Ranks


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


_groups: "dict[int, Ranks]" = {}


def _ranks(world: int) -> "Ranks":
    """Processes that stand for ranks, the same for all tests; others where one has ended."""
    from ranks import Ranks

    found = _groups.get(world)
    if found is not None and not found.is_whole:
        found.close()
    if found is None or not found.is_whole:
        _groups[world] = Ranks(world)
    return _groups[world]


@pytest.fixture
def two() -> "Ranks":
    return _ranks(2)


@pytest.fixture
def four() -> "Ranks":
    return _ranks(4)


@pytest.fixture(scope="session", autouse=True)
def _close_ranks() -> Iterator[None]:
    yield
    for group in _groups.values():
        group.close()
