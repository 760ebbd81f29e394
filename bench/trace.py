"""How long a compiler takes to trace a deep model: octet.Linear beside torch.nn.Linear.

A stack of layers is compiled whole and runs one training step. The backend is ``aot_eager``, so
what is timed is tracing (Dynamo and AOTAutograd) and no code generation. CPU time counts, so
that other programs do not. Subjects are timed in
turns, each in a process of its own; the table shows medians and the ratio to nn.Linear.

``--calls`` counts Python calls in the place of seconds: the same number in every run.

``read-N`` and ``written-N`` are what torch itself takes for live state: nn.Linear where each
layer has N buffers more, which one op of torch's reads, or writes, for all layers at once.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUBJECTS = ("nn.Linear", "none", "current", "block", "mxfp8", "nvfp4", "delayed")


def once(subject: str, layers: int, outside: bool, calls: bool) -> float:
    """CPU seconds of the first compiled step, or its Python calls."""
    import torch

    sys.path.insert(0, str(ROOT / "python"))
    import octet
    from octet import recipe

    recipes = {
        "current": recipe.Float8CurrentScaling,
        "block": recipe.Float8BlockScaling,
        "mxfp8": recipe.MXFP8BlockScaling,
        "nvfp4": recipe.NVFP4BlockScaling,
        "delayed": recipe.DelayedScaling,
    }
    torch.manual_seed(0)
    of_torch, _, buffers = subject.partition("-")

    def stack(count: int) -> torch.nn.Module:
        if subject == "nn.Linear" or buffers:
            made = [torch.nn.Linear(32, 32) for _ in range(count)]
        else:
            made = [octet.Linear(32, 32, device="cpu") for _ in range(count)]
        for layer in made:
            for i in range(int(buffers or 0)):
                layer.register_buffer(f"state{i}", torch.zeros(16, 3))
        return torch.nn.Sequential(*made)

    def step(model: torch.nn.Module) -> float:
        active = recipes[subject]() if subject in recipes else None

        def call(x: torch.Tensor) -> torch.Tensor:
            if buffers:
                y, state = model(x), []
                for layer in model:
                    state.extend(layer._buffers.values())
                if of_torch == "read":
                    return y + torch.cat(state).sum()
                torch._foreach_add_(state, 1.0)
                return y
            if outside or active is None:
                return model(x)
            with octet.autocast(recipe=active):
                return model(x)

        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        x = torch.randn(16, 32, requires_grad=True)
        profile = cProfile.Profile()
        start = time.process_time()
        if calls:
            profile.enable()
        with octet.autocast(enabled=outside and active is not None, recipe=active):
            y = compiled(x)
        y.sum().backward()
        profile.disable()
        if calls:
            return pstats.Stats(profile).total_calls
        return time.process_time() - start

    step(stack(1))  # the compiler's own imports
    torch._dynamo.reset()
    return step(stack(layers))


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--outside", action="store_true", help="autocast around compiled code")
    parser.add_argument("--calls", action="store_true", help="Python calls, not seconds")
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--once", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(once(args.once, args.layers, args.outside, args.calls))
        return
    subjects = args.subjects.split(",")
    times: dict[str, list[float]] = {subject: [] for subject in subjects}
    for _ in range(1 if args.calls else args.rounds):
        for subject in subjects:
            command = [sys.executable, __file__, "--once", subject]
            command += ["--layers", str(args.layers), *["--outside"] * args.outside]
            command += ["--calls"] * args.calls
            found = subprocess.run(command, check=True, capture_output=True, text=True)
            times[subject].append(float(found.stdout.split()[-1]))
    base = statistics.median(times[subjects[0]])
    unit = "thousand calls a layer" if args.calls else "first compiled step, s"
    print(f"| {args.layers} layers | {unit} | ratio |\n|---|---|---|")
    for subject in subjects:
        median = statistics.median(times[subject])
        shown = f"{median / args.layers / 1000:.1f}" if args.calls else f"{median:.2f}"
        print(f"| {subject} | {shown} | {median / base:.2f} |")


if __name__ == "__main__":
    main()
