"""Layers that are split over ranks, compiled: the bits of eager, and the plan's collectives."""

from typing import Any

import parallel_jobs as jobs
import pytest
from parallel_jobs import RECIPES, Case
from ranks import Ranks

import torch

MODES = [("column", False), ("column", True), ("row", False), ("row", True)]
SPLIT = [(mode, sequence, name) for mode, sequence in MODES for name in RECIPES]


@pytest.mark.parametrize(("mode", "sequence", "name"), SPLIT, ids=str)
def test_parallel__compiled_is_eager(mode: str, sequence: bool, name: str, two: Ranks) -> None:
    case = Case(mode, sequence, name, steps=3)
    wanted = two.run(jobs.train, case)
    found = two.run(jobs.train, case._replace(compiled="aot_eager"))
    assert_same(found, wanted)


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("name", list(RECIPES))
def test_parallel__symbolic_sizes_are_eager(name: str, two: Ranks) -> None:
    for mode, sequence in MODES:
        case = Case(mode, sequence, name, rows=(64, 2), compiled="none dynamic", steps=3)
        wanted = two.run(jobs.train, case)
        found = two.run(jobs.train, case._replace(compiled="aot_eager dynamic"))
        assert_same(found, wanted)
