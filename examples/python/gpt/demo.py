"""Trains a small GPT in bf16 and in every recipe; one table, one picture, one HTML report.

python examples/python/gpt/demo.py [--steps N] [--recipe NAME ...] [--seed N] [--out FILE]
"""

import argparse
import logging
import os
import warnings
from pathlib import Path

try:
    import octet
    from matplotlib.figure import Figure
    from tqdm import tqdm

    import torch
except ImportError as error:
    raise SystemExit(
        f"the demo cannot import {error.name or error}; run `make demo`, which installs what "
        "is needed and finds octet"
    ) from error

from report import gather, replace_file, save
from training import RECIPES, Run, Task, steady, train, write

HEADER = (
    *("recipe", "final loss", "- bf16", "saved/layer", "octet nodes", "recompiled"),
    *("compile", "train"),
)


def choose_device() -> tuple[str, str]:
    """CUDA where there is one, else the CPU; and why."""
    if not torch.cuda.is_available():
        return "cpu", "there is no CUDA device"
    return "cuda", torch.cuda.get_device_name()


def row(run: Run, task: Task, base: Run | None) -> tuple[str, ...]:
    """A recipe's line of the table; the layer is the widest one of a block."""
    rows = task.batch * run.model.sizes.context
    kept = octet.measure(run.model.blocks[0].up, rows, RECIPES[run.name])
    return (
        run.name,
        f"{run.final:.4f}",
        "" if base in (None, run) else f"{run.final - base.final:+.4f}",
        f"{kept.saved / 1024:.1f} KiB",
        f"{run.graphs.forward} + {run.graphs.backward}",
        str(run.graphs.count - 1),
        f"{run.compiling:.1f} s",
        f"{run.training:.1f} s",
    )


def table(runs: list[Run], task: Task) -> str:
    """Every run as a line; names to the left, figures to the right."""
    base = next((run for run in runs if RECIPES[run.name] is None), None)
    rows = [HEADER, *(row(run, task, base) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def draw(runs: list[Run], out: Path) -> None:
    """The loss curves, and below them how far each lies from the first."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    losses, differences = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for run in runs:
        steps = range(1, len(run.losses) + 1)
        losses.plot(steps, run.losses, label=run.name, linewidth=1)
        apart = [a - b for a, b in zip(run.losses, runs[0].losses, strict=True)]
        differences.plot(steps, apart, linewidth=1)
    losses.set_ylabel("loss, nats a character")
    losses.legend()
    differences.set_ylabel(f"minus {runs[0].name}")
    differences.set_xlabel("step")
    replace_file(out, lambda made: figure.savefig(made, dpi=120))


def train_all(names: list[str], task: Task) -> list[Run]:
    """A run a recipe, under one bar; without a terminal there is none."""
    runs = []
    layout = "{desc:<20} {percentage:3.0f}% |{bar:30}| {elapsed}{postfix}"
    with tqdm(total=len(names) * task.steps, bar_format=layout, disable=None) as bar:

        def tick(loss: float) -> None:
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update()

        for name in names:
            bar.set_postfix_str("compiling", refresh=False)
            bar.set_description_str(name)
            runs.append(train(name, task, tick))
        bar.set_postfix_str("", refresh=False)
        bar.set_description_str("done")
    return runs


def refused(out: Path) -> str | None:
    """Why neither a picture nor a report can be written there, before hours of training."""
    known = Figure().canvas.get_supported_filetypes()
    if out.suffix[1:] not in known:
        return f"--out is {out}; it names a picture: {', '.join(f'.{end}' for end in known)}"
    for path in (out, out.with_suffix(".html")):
        if path.is_dir():
            return f"--out: {path} is a folder; name a file"
    folder = next(path for path in (out.absolute().parents) if path.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return f"--out is {out}, but nothing can be written in {folder}; name another folder"
    return None


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=Task.steps, help="of training, per recipe")
    parser.add_argument(
        "--recipe",
        action="append",
        choices=list(RECIPES),
        help="one to train in; may be repeated (default: all)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    parser.add_argument("--out", type=Path, default=Path("build/demo.png"), help="the picture")
    found = parser.parse_args(words)
    if found.steps < 1:
        parser.error(f"--steps is {found.steps}; it is at least 1")
    why = refused(found.out)
    if why is not None:
        parser.error(why)
    return found


def main(words: list[str] | None = None) -> None:
    """Trains, prints, draws and reports."""
    chosen = parse(words)
    warnings.filterwarnings("ignore")  # the compiler's advice would break the bar
    logging.getLogger("torch").setLevel(logging.ERROR)
    device, why = choose_device()
    task = Task(chosen.steps, chosen.seed, device)
    print(f"A character-level GPT on {device} ({why}), {task.steps} steps a recipe, compiled.")
    with steady(device):
        runs = train_all(chosen.recipe or list(RECIPES), task)
        tales = [write(run, 60).splitlines()[0] for run in runs]
    lines = [f"{run.name:<20}  {tale}" for run, tale in zip(runs, tales, strict=True)]
    print(f"\n{table(runs, task)}\n", *lines, sep="\n")
    draw(runs, chosen.out)
    report = chosen.out.with_suffix(".html")
    save(gather(runs, task, f"{device} ({why})", tales), report)
    print(f"\nThe loss curves: {chosen.out}\nThe report: {report}")


if __name__ == "__main__":
    main()
