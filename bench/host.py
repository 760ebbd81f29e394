"""What a call costs besides its arithmetic: octet.Linear beside torch.nn.Linear, tiny shape.

Eager and compiled, forward alone and with backward, and the time to the first compiled step.
Calls are timed by the CPU time of the process, so that other programs do not count, and the
first step by the clock, for a compiler runs programs of its own. Within a round every layer is
timed in turn, so that what disturbs one disturbs all; the table shows medians over the rounds
and the differences to nn.Linear.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import octet
from octet import recipe

M, K, N = 16, 32, 32
RECIPES: dict[str, Callable[[], recipe.Recipe]] = {
    "delayed": recipe.DelayedScaling,
    "current": recipe.Float8CurrentScaling,
    "block": recipe.Float8BlockScaling,
    "mxfp8": recipe.MXFP8BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,
}
TORCH = "nn.Linear"
SUBJECTS = [TORCH, "octet none", *(f"octet {name}" for name in RECIPES)]
ROUNDS, CALLS = 150, 10  # rounds shorter than a turn of the scheduler

Call = Callable[[torch.Tensor], torch.Tensor]


def make(subject: str) -> tuple[torch.nn.Module, Call]:
    """The layer, and a call of it inside the autocast that its recipe needs."""
    if subject == TORCH:
        layer: torch.nn.Module = torch.nn.Linear(K, N, dtype=torch.bfloat16)
        return layer, layer
    layer = octet.Linear(K, N, params_dtype=torch.bfloat16, device="cpu")
    name = subject.removeprefix("octet ")
    if name == "none":
        return layer, layer
    active = RECIPES[name]()

    def call(x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(recipe=active):
            return layer(x)

    return layer, call


def forward_of(call: Call) -> Callable[[], None]:
    x = torch.randn(M, K, dtype=torch.bfloat16)

    def forward() -> None:
        with torch.no_grad():
            call(x)

    return forward


def step_of(layer: torch.nn.Module, call: Call) -> Callable[[], None]:
    """Forward and backward with all three gradients."""
    x = torch.randn(M, K, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(M, N, dtype=torch.bfloat16)
    leaves = [x, *layer.parameters()]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        call(x).backward(grad)

    return step


def mean_us(function: Callable[[], None]) -> float:
    start = time.process_time()
    for _ in range(CALLS):
        function()
    return (time.process_time() - start) / CALLS * 1e6


def medians(functions: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The median time of each in microseconds; the rounds are interleaved."""
    for function in functions.values():
        for _ in range(20):
            function()
    rounds = [{name: mean_us(f) for name, f in functions.items()} for _ in range(ROUNDS)]
    return {name: statistics.median(r[name] for r in rounds) for name in functions}


def measure(prepare: Callable[[Call], Call]) -> tuple[dict[str, float], dict[str, float]]:
    """Forward, and forward with backward, of every subject."""
    forwards, steps = {}, {}
    for subject in SUBJECTS:
        layer, call = make(subject)
        forwards[subject] = forward_of(prepare(call))
        layer, call = make(subject)
        steps[subject] = step_of(layer, prepare(call))
    return medians(forwards), medians(steps)


def compiled(call: Call) -> Call:
    torch._dynamo.config.recompile_limit = 4 * len(SUBJECTS)  # layers share the code they run
    return torch.compile(call, fullgraph=True)


# ---- the first compiled step ---------------------------------------------------------------


def first_step(subject: str) -> float:
    """Seconds to the end of a first compiled step, in a process whose compiler has run."""
    layer = torch.nn.Sequential(torch.nn.GELU())
    step_of(layer, compiled(lambda x: layer(x)))()
    layer, call = make(subject)
    step = step_of(layer, compiled(call))
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def first_steps(rounds: int) -> dict[str, float]:
    """The median over fresh processes with empty caches."""
    found: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
    for _ in range(rounds):
        for subject, seconds in found.items():
            with tempfile.TemporaryDirectory() as cache:
                done = subprocess.run(
                    [sys.executable, __file__, "--first", subject],
                    env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
                    check=True,
                    capture_output=True,
                    text=True,
                )
            seconds.append(float(done.stdout))
    return {subject: statistics.median(seconds) for subject, seconds in found.items()}


# ---- the table -----------------------------------------------------------------------------


def cells(times: dict[str, float], subject: str) -> str:
    here, there = times[subject], times[TORCH]
    return f"{here:.1f} |" if subject == TORCH else f"{here:.1f} | {here - there:+.1f}"


def table(columns: list[dict[str, float]], first: dict[str, float]) -> str:
    names = ["eager", "eager step", "compiled", "compiled step"]
    head = " | ".join(f"{name}, us | +" for name in names)
    lines = [f"| Linear | {head} | first step, s | ratio |", "|---" * 11 + "|"]
    for subject in SUBJECTS:
        times = " | ".join(cells(column, subject) for column in columns)
        ratio = first[subject] / first[TORCH]
        lines.append(f"| {subject} | {times} | {first[subject]:.2f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first-rounds", type=int, default=3)
    parser.add_argument("--first", choices=SUBJECTS, help="print only its first step's time")
    choice = parser.parse_args()
    torch.set_num_threads(choice.threads)
    torch.manual_seed(0)
    if choice.first:
        print(first_step(choice.first))
        return
    columns = [*measure(lambda call: call), *measure(compiled)]
    print(
        f"`python bench/host.py --threads {choice.threads} --first-rounds "
        f"{choice.first_rounds}`, torch {torch.__version__}, "
        f"kernels {octet._C.cpu_name()}: M, K, N = {M}, {K}, {N}, bf16 with bias; a step is "
        "forward and backward, + is the difference to nn.Linear, the first step is a compiled "
        "one with empty caches.\n"
    )
    print(table(columns, first_steps(choice.first_rounds)))


if __name__ == "__main__":
    main()
