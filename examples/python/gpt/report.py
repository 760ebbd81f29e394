"""The demo as one HTML page: all that it shows is inside it, and it needs no script.

``gather`` reads the facts off the runs; ``page`` makes text of facts and knows no model.
"""

import math
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import octet
import plots
from errors import ROLES, errors_of, layers_of
from octet import bench
from training import RECIPES, Run, Task

import torch

# Colours that people who see few colours can tell apart, too, and that print.
COLORS = ("#4d4d4d", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
SHAPE = (8192, 4096, 4096)  # rows, in and out features of what is timed on a GPU
ROLE_NAMES = {"input": "input", "weight": "weight", "grad_output": "gradient of the output"}

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Facts:
    """What one run showed."""

    name: str
    losses: tuple[float, ...]
    final: float
    saved: dict[str, int]  # bytes for backward, by layer
    errors: dict[str, dict[str, float]]  # relative, by layer and role
    tale: str = ""


@dataclass(frozen=True)
class Report:
    """All that the page says."""

    where: str
    steps: int
    rows: int  # of a layer's input
    runs: tuple[Facts, ...]
    plan_title: str
    plan: str
    speed: tuple[bench.Row, ...]  # empty where there is no GPU


# ---- facts -----------------------------------------------------------------------------------


def gather_run(run: Run, task: Task, tale: str) -> Facts:
    """What one run showed; reads its model and changes nothing in it."""
    rows = task.batch * run.model.sizes.context
    layers = layers_of(run).items()
    saved = {
        name: octet.measure(layer, rows, RECIPES[run.name]).saved for name, layer in layers
    }
    return Facts(run.name, tuple(run.losses), run.final, saved, errors_of(run, task), tale)


def measure_speed(names: Sequence[str]) -> list[bench.Row]:
    """A large layer in each recipe beside nn.Linear, eager; needs a GPU."""
    classes = {type(RECIPES[name]) for name in names}
    words = [word for word, made in bench.RECIPES.items() if made in classes]
    traits = {"device": "cuda", "dtype": torch.bfloat16}
    return bench.measure(SHAPE, bench.Plan(words, ["eager"], traits, 3, 0.1), lambda _: None)


def gather(runs: list[Run], task: Task, where: str, tales: list[str]) -> Report:
    """All that the page says. The plan is that of MXFP8, or of the first recipe there is."""
    names = [run.name for run in runs]
    shown = "MXFP8BlockScaling" if "MXFP8BlockScaling" in names else names[-1]
    layer, rows = runs[0].model.blocks[0].up, task.batch * runs[0].model.sizes.context
    plan = octet.explain(
        layer.in_features, layer.out_features, rows, RECIPES[shown], device=task.device
    )
    return Report(
        where,
        task.steps,
        rows,
        tuple(gather_run(run, task, tale) for run, tale in zip(runs, tales, strict=True)),
        f"the layer blocks.0.up in {shown}",
        plan,
        tuple(measure_speed(names) if task.device == "cuda" else ()),
    )


# ---- text ------------------------------------------------------------------------------------


def _cells(cells: Sequence[str], kind: str) -> str:
    """A row of a table; a long name in a head may break before a capital letter."""
    made = [escape(cell) for cell in cells]
    if kind == "th":
        made = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "<wbr>", cell) for cell in made]
    return "<tr>" + "".join(f"<{kind}>{cell}</{kind}>" for cell in made) + "</tr>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "figures") -> str:
    body = "\n".join(_cells(row, "td") for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead>{_cells(head, "th")}</thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _figure(caption: str, plot: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>\n{plot}</figure>"


def _plots(*figures: str) -> str:
    return '<div class="plots">' + "\n".join(figures) + "</div>"


def _colors(report: Report) -> dict[str, str]:
    """A recipe's colour is the same on every page, whichever recipes were run."""
    fixed = dict(zip(RECIPES, COLORS, strict=True))
    return {run.name: fixed[run.name] for run in report.runs}


def _legend(report: Report) -> str:
    items = "".join(
        f'<li><span style="background:{color}"></span>{escape(name)}</li>'
        for name, color in _colors(report).items()
    )
    return f'<ul class="legend">{items}</ul>'


def running_mean(values: Sequence[float], width: int = 10) -> tuple[float, ...]:
    """The mean of each value and those before it, at most so many."""
    spans = [values[max(0, at + 1 - width) : at + 1] for at in range(len(values))]
    return tuple(sum(span) / len(span) for span in spans)


def _losses(report: Report) -> str:
    colors, base = _colors(report), report.runs[0]
    curves = [plots.Series(run.name, colors[run.name], run.losses) for run in report.runs]
    apart = [
        plots.Series(
            run.name,
            colors[run.name],
            running_mean([a - b for a, b in zip(run.losses, base.losses, strict=True)]),
        )
        for run in report.runs
    ]
    rows = [
        (run.name, f"{run.final:.4f}", f"{run.final - base.final:+.4f}", run.tale)
        for run in report.runs
    ]
    caption = f"loss minus {base.name}'s, mean of 10 steps"
    return "\n".join(
        [
            f"<h2>Loss</h2><p>{report.steps} steps from the same weights and batches. The "
            "final loss is the mean of the last tenth of the steps.</p>",
            _legend(report),
            _plots(
                _figure("loss, nats a character", plots.lines(curves, "loss", "step")),
                _figure(caption, plots.lines(apart, caption, "step")),
            ),
            _table(
                ("recipe", "final loss", f"minus {base.name}'s", "it writes"), rows, "words"
            ),
        ]
    )


def _percent(value: float) -> str:
    return f"{value * 100:.3g}%" if math.isfinite(value) else "not finite"


def _errors(report: Report) -> str:
    colors, layers = _colors(report), list(report.runs[0].errors)
    figures, tables = [], []
    for role in ROLES:
        series = [
            plots.Series(
                run.name, colors[run.name], tuple(run.errors[name][role] for name in layers)
            )
            for run in report.runs
        ]
        title = f"error of the {ROLE_NAMES[role]}"
        figures.append(_figure(title, plots.dots(layers, series, title, "relative error")))
        rows = [
            (name, *(_percent(run.errors[name][role]) for run in report.runs))
            for name in layers
        ]
        head = ("layer", *(run.name for run in report.runs))
        tables.append(f"<h3>{escape(title.capitalize())}</h3>{_table(head, rows)}")
    words = (
        "The norm of what quantizing changes, over the norm of the tensor. Each recipe on the "
        "tensors of its own trained model, one batch, along rows. The figure of bf16 is what "
        "rounding to it changes; a tensor that is in bf16 already has no error there."
    )
    return "\n".join(
        [
            f"<h2>Error of each layer</h2><p>{words}</p>",
            _legend(report),
            _plots(*figures),
            *tables,
        ]
    )


def _kib(count: float) -> str:
    return f"{count / 1024:.1f}"


def _saved(report: Report) -> str:
    colors = _colors(report)
    total = [
        plots.Series(run.name, colors[run.name], (sum(run.saved.values()) / 1024,))
        for run in report.runs
    ]
    layers = list(report.runs[0].saved)
    rows = [(name, *(_kib(run.saved[name]) for run in report.runs)) for name in layers]
    rows.append(("all", *(_kib(sum(run.saved.values())) for run in report.runs)))
    words = (
        f"What the layers save for backward at {report.rows} rows of input, read from their "
        "plans. In bf16 that is the input and the fp32 weight themselves."
    )
    head = ("KiB", *(run.name for run in report.runs))
    title = "bytes saved for backward, all layers"
    return "\n".join(
        [
            f"<h2>Saved bytes</h2><p>{words}</p>",
            _plots(_figure(title, plots.bars(total, title, "KiB"))),
            _table(head, rows),
        ]
    )


def _speed(report: Report) -> str:
    shape = ", ".join(map(str, SHAPE))
    if not report.speed:
        return (
            "<h2>Speed</h2><p>There is no GPU here, so no speed is shown: a CPU multiplies no "
            "FP8 or FP4 faster than bf16. On a machine with a GPU this page has a layer of "
            f"({shape}) in every recipe beside nn.Linear, and so has "
            "<code>python -m octet.bench</code> for shapes of your own.</p>"
        )
    times = bench.ratios(list(report.speed))
    color = {row: COLORS[0] if row.name == bench.BASE else COLORS[1] for row in times}
    series = [plots.Series(row.name, color[row], (times[row],)) for row in times]
    rows = [
        (
            row.name,
            f"{row.ms:.3f}" if row.ms else "-",
            f"{times[row]:.2f}" if row in times else row.why,
        )
        for row in report.speed
    ]
    title = "speed over nn.Linear in bf16"
    return "\n".join(
        [
            f"<h2>Speed</h2><p>One layer of ({shape}), forward and backward, eager.</p>",
            _plots(_figure(title, plots.bars(series, title, "x"))),
            _table(("layer", "ms", "over nn.Linear"), rows),
        ]
    )


def page(report: Report) -> str:
    """The whole page."""
    versions = f"octet {octet.__version__}, torch {torch.__version__}"
    plan = (
        f"<h2>Plan of a layer</h2><p>All that {escape(report.plan_title)} does, forward and "
        "backward, decided before it runs: "
        "<code>octet.explain(...)</code>.</p>"
        f"<pre>{escape(report.plan)}</pre>"
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<link rel="icon" href="data:,"><title>Octet: a small GPT in every recipe</title>'
            f"<style>{STYLE}</style></head><body>",
            "<h1>Octet: a small GPT in every recipe</h1>",
            f"<p>A character-level GPT on {escape(report.where)}, compiled. "
            f"{escape(versions)}.</p>",
            *(part(report) for part in (_losses, _errors, _saved, _speed)),
            plan,
            "</body></html>\n",
        ]
    )


def replace_file(out: Path, write: Callable[[Path], None]) -> None:
    """Has a file written beside its place and moved there: it is whole, or as it was before."""
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=".", suffix=out.suffix)
    os.close(handle)
    made = Path(name)
    try:
        write(made)
        made.chmod(0o644)
        made.replace(out)
    finally:
        made.unlink(missing_ok=True)


def save(report: Report, out: Path) -> None:
    """Writes the page."""
    text = page(report)
    replace_file(out, lambda made: made.write_text(text, encoding="utf-8"))
