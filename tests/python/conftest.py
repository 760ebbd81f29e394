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


def _ranks(world: int) -> Iterator["Ranks"]:
    from ranks import Ranks

    made = Ranks(world)
    yield made
    made.close()


@pytest.fixture(scope="session")
def two() -> Iterator["Ranks"]:
    """Two processes that stand for ranks; they live as long as the tests."""
    yield from _ranks(2)


@pytest.fixture(scope="session")
def four() -> Iterator["Ranks"]:
    yield from _ranks(4)
