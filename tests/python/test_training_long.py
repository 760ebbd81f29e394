"""Two hundred steps of the demo's GPT: every recipe ends as near to bf16 as bf16 to itself.

Noise is measured: four bf16 runs that differ in their seed (weights and batches) end in four
losses, and a recipe may end as far from the bf16 run of its own seed as three of their
standard deviations. Planted faults show that a broken recipe ends farther away.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from octet import _function

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python" / "gpt"))

import training

pytestmark = pytest.mark.long

STEPS, SEEDS = 200, 4
Op = Callable[[list[torch.Tensor], Sequence[int], str], list[torch.Tensor]]


def final(name: str, seed: int = 0) -> float:
    """The loss that training in a recipe ends with."""
    with training.steady("cpu"):
        return training.train(name, training.Task(STEPS, seed)).final


@pytest.fixture(scope="module")
def bf16() -> list[float]:
    return [final("bf16", seed) for seed in range(SEEDS)]


@pytest.mark.parametrize("name", [name for name in training.RECIPES if name != "bf16"])
def test_training__ends_within_the_noise_of_bf16(name: str, bf16: list[float]) -> None:
    assert max(bf16) < 0.5  # from 3.4: it has learned
    assert abs(final(name) - bf16[0]) < 3 * statistics.stdev(bf16)


def doubled(op: Op) -> Op:
    """Decodes by a scale that is wrong by 2."""

    def broken(args: list[Any], sizes: Sequence[int], words: str) -> list[torch.Tensor]:
        return op([args[0] * 2, *args[1:]], sizes, words)

    return broken


def without_wgrad(op: Op) -> Op:
    """Gives zeros for the weight's gradient, the output that is (n, k)."""

    def broken(args: list[Any], sizes: Sequence[int], words: str) -> list[torch.Tensor]:
        shape = [sizes[-1], sizes[-2]]
        return [out * 0 if list(out.shape) == shape else out for out in op(args, sizes, words)]

    return broken


FAULTS = {"_linear": doubled, "_linear_backward": without_wgrad}


@pytest.mark.parametrize("op", FAULTS)
def test_training__a_broken_recipe_ends_elsewhere(
    op: str, bf16: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_function, op, FAULTS[op](getattr(_function, op)))
    assert final("MXFP8BlockScaling") - bf16[0] > 6 * statistics.stdev(bf16)
