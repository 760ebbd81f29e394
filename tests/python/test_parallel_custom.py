"""Custom recipes on layers that are split over ranks."""

from typing import Any

import parallel_jobs as jobs
import pytest
from parallel_jobs import Case
from ranks import Ranks

import torch


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for key in other:
            assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("mode", ["column", "row"])
def test_custom__octets_own_quantizers_are_split_as_a_recipe_is(
    mode: str, sequence: bool, two: Ranks
) -> None:
    case = Case(mode, sequence, "mxfp8", steps=2)
    wanted = two.run(jobs.train, case)
    assert_same(two.run(jobs.train, case._replace(recipe="custom")), wanted)
    if sequence:
        cut = case._replace(recipe="custom", options=(("ub_overlap_ag", 2),))
        assert_same(two.run(jobs.train, cut), wanted)


@pytest.mark.parametrize("mode", ["column", "row"])
def test_custom__quantizers_of_a_user_are_split_without_sequences(
    mode: str, two: Ranks
) -> None:
    """What ranks exchange are plain sums, so each quantizes what it has."""
    case = Case(mode, False, "mxfp8")
    wanted = two.run(jobs.train, case)
    users = case._replace(recipe="users")
    assert_same(two.run(jobs.train, users), wanted)
    assert_same(two.run(jobs.train, users._replace(compiled="aot_eager")), wanted)
    later = (("delay_wgrad_compute", True),)
    assert_same(two.run(jobs.train, users._replace(options=later)), wanted)


@pytest.mark.parametrize("mode", ["column", "row"])
def test_custom__shards_of_a_users_quantizer_are_refused(mode: str, two: Ranks) -> None:
    case = Case(mode, True, "users", options=(("name", "fc1"),))
    for text in two.errors(jobs.train, case):
        assert text.startswith("NotImplementedError: octet.Linear 'fc1'")
        assert "has quantizers of a user's, whose shards cannot be joined" in text
        assert "leave out sequence_parallel" in text
