"""Long work says how far it is: at a terminal, after five seconds, and nowhere else."""

import io
import re
import sys
import time
from itertools import count
from pathlib import Path

import octet
import pytest

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python" / "gpt"))

import demo
from training import Task


class Stderr(io.StringIO):
    """Stderr that is a terminal, or is not."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        """As asked."""
        return self.is_terminal


@pytest.mark.parametrize(("is_terminal", "seconds"), [(True, 6), (True, 0), (False, 6)])
def test_progress__of_weights_that_convert_quantizes(
    is_terminal: bool, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr, clock = Stderr(is_terminal), count(step=seconds)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    octet.convert(model, weights=octet.recipe.MXFP8BlockScaling())
    text = "octet.convert: weights"
    shown = f"\r{text}: 1 of 2\r{text}: 2 of 2\n"
    assert stderr.getvalue() == (shown if is_terminal and seconds else "")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress__of_the_demo(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Stderr(is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(demo, "train", lambda name, task, tick: tick(1.0))
    demo.train_all(["bf16"], Task(steps=1))
    assert bool(re.search("bf16 .*done .*100%", stderr.getvalue())) == is_terminal
    assert bool(stderr.getvalue()) == is_terminal
