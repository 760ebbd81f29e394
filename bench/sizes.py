"""What a batch size that changes at every step costs the host, beside one that stays.

A stack of small layers takes training steps: of one M, and of 300 different ones, one after the
other, over and over. The time is the CPU time of the process, which other programs do not
disturb. Subjects have their turns within a round; the table shows the quietest round, the
difference to torch.nn.Linear in the same turn, and what changing sizes add to that.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import octet
from octet import recipe

import torch

WIDTH, LAYERS, SIZES = 32, 4, 300
RECIPES: dict[str, Callable[[], recipe.Recipe] | None] = {
    "nn.Linear": None,
    "delayed": recipe.DelayedScaling,
    "current": recipe.Float8CurrentScaling,
    "block": recipe.Float8BlockScaling,
    "mxfp8": recipe.MXFP8BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,
}


class Subject:
    """A stack of layers and its training step."""

    def __init__(self, name: str, device: str) -> None:
        made = RECIPES[name]
        self.active = None if made is None else made()
        options = {"dtype": torch.bfloat16, "device": device}
        kind = torch.nn.Linear if made is None else octet.Linear
        layers = [kind(WIDTH, WIDTH, **options) for _ in range(LAYERS)]
        self.stack = torch.nn.Sequential(*layers)
        self.inputs = {
            m: torch.randn(m, WIDTH, requires_grad=True, **options) for m in range(1, SIZES + 1)
        }
        self.gradients = {m: torch.ones_like(x) for m, x in self.inputs.items()}

    def step(self, m: int) -> None:
        """Forward and backward of one batch."""
        x = self.inputs[m]
        if self.active is None:
            y = self.stack(x)
        else:
            with octet.autocast(recipe=self.active):
                y = self.stack(x)
        y.backward(self.gradients[m])
        x.grad = None
        self.stack.zero_grad(set_to_none=True)

    def time_us(self, sizes: list[int]) -> float:
        """CPU microseconds of a step."""
        start = time.process_time()
        for m in sizes:
            self.step(m)
        spent = time.process_time() - start
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return spent / len(sizes) * 1e6


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    changing = random.sample(range(1, SIZES + 1), SIZES)
    staying = [SIZES // 2] * SIZES
    subjects = {name: Subject(name, args.device) for name in RECIPES}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(args.rounds):
            for name, subject in subjects.items():
                pair = subject.time_us(staying), subject.time_us(changing)
                times[name].append(pair)
    print(
        f"`python bench/sizes.py --device {args.device}`, torch {torch.__version__}: {LAYERS} "
        f"layers of {WIDTH}x{WIDTH}, host us of a step\n"
    )
    print("| | M stays | M changes | over nn.Linear: stays | changes |\n|---|---|---|---|---|")
    best = {
        name: tuple(min(column) for column in zip(*t, strict=True)) for name, t in times.items()
    }
    base = best["nn.Linear"]
    for name, (stays, changes) in best.items():
        over = f"{stays / base[0]:.2f} | {changes / base[1]:.2f}"
        print(f"| {name} | {stays:.0f} | {changes:.0f} | {over} |")


if __name__ == "__main__":
    main()
