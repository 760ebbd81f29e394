"""``python -m octet.bench``: a linear layer of your shapes, beside nn.Linear and its rivals.

Measures forward and backward together. The contenders take turns, each after some steps of
its own, so that a machine that grows hot or busy is the same to all: compare ratios within a
table, not times between runs.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import octet
import torch

Shape = tuple[int, int, int]
Step = Callable[[], Any]

BASE = "nn.Linear"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
RECIPES = {
    "delayed": octet.recipe.DelayedScaling,
    "current": octet.recipe.Float8CurrentScaling,
    "block": octet.recipe.Float8BlockScaling,
    "mxfp8": octet.recipe.MXFP8BlockScaling,
    "nvfp4": octet.recipe.NVFP4BlockScaling,
    "mxfp4": octet.recipe.MXFP4BlockScaling,
}
TE_RECIPES = {"delayed": "DelayedScaling", "current": "Float8CurrentScaling"}
MODES = ("eager", "compiled")


class Row(NamedTuple):
    """A contender at a shape: milliseconds of a step, or why there are none."""

    shape: Shape
    name: str
    mode: str
    ms: float | None
    why: str = ""


# ---- contenders ------------------------------------------------------------------------------


class Quantized(torch.nn.Module):
    """A layer inside the autocast of its library."""

    def __init__(self, layer: torch.nn.Module, around: Callable[[], Any]) -> None:
        super().__init__()
        self.layer, self.around = layer, around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.around():
            return self.layer(x)


def _ours(k: int, n: int, name: str, traits: dict[str, Any]) -> torch.nn.Module:
    layer = octet.Linear(k, n, bias=False, **traits)
    recipe = RECIPES[name]()
    return Quantized(layer, lambda: octet.autocast(recipe=recipe))


def _torchao(k: int, n: int, traits: dict[str, Any]) -> torch.nn.Module:
    float8 = importlib.import_module("torchao.float8")
    layer = torch.nn.Linear(k, n, bias=False, **traits)
    return float8.convert_to_float8_training(torch.nn.Sequential(layer))


def _transformer_engine(k: int, n: int, name: str, traits: dict[str, Any]) -> torch.nn.Module:
    te = importlib.import_module("transformer_engine.pytorch")
    recipes = importlib.import_module("transformer_engine.common.recipe")
    made = getattr(recipes, TE_RECIPES[name])()
    layer = te.Linear(k, n, bias=False, params_dtype=traits["dtype"], device=traits["device"])
    return Quantized(layer, lambda: te.autocast(enabled=True, recipe=made))


def contenders(
    shape: Shape, recipes: Iterable[str], traits: dict[str, Any]
) -> dict[str, Callable[[], torch.nn.Module]]:
    """How to make each layer. Rivals are among them where they are installed."""
    _, k, n = shape
    made: dict[str, Callable[[], torch.nn.Module]] = {
        BASE: lambda: torch.nn.Linear(k, n, bias=False, **traits)
    }
    for name in recipes:
        made[f"octet {name}"] = lambda name=name: _ours(k, n, name, traits)
    if importlib.util.find_spec("torchao") is not None:
        made["torchao tensorwise"] = lambda: _torchao(k, n, traits)
    if importlib.util.find_spec("transformer_engine") is not None:
        for name in [name for name in recipes if name in TE_RECIPES]:
            made[f"TransformerEngine {name}"] = lambda name=name: _transformer_engine(
                k, n, name, traits
            )
    return made


# ---- timing ----------------------------------------------------------------------------------


def _step(layer: torch.nn.Module, shape: Shape, traits: dict[str, Any], mode: str) -> Step:
    """A training step of a layer without an optimizer."""
    m, k, n = shape
    x = torch.randn(m, k, **traits, requires_grad=True)
    dy = torch.randn(m, n, **traits)
    call = torch.compile(layer, fullgraph=True) if mode == "compiled" else layer
    parameters = list(layer.parameters())

    def step() -> None:
        x.grad = None
        for parameter in parameters:
            parameter.grad = None
        call(x).backward(dy)

    return step


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _ms(step: Step, steps: int, device: torch.device) -> float:
    """Milliseconds of one of some steps in a row."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    _wait(device)
    return (time.perf_counter() - start) / steps * 1e3


def _in_turns(
    steps: dict[Any, Step], device: torch.device, rounds: int, seconds: float
) -> dict[Any, float]:
    """The median time of each step over the rounds. Each turn begins with steps that are not
    counted."""
    counts = {}
    for key, step in steps.items():
        counts[key] = max(1, int(seconds * 1e3 / max(_ms(step, 1, device), 1e-3)))
    times: dict[Any, list[float]] = {key: [] for key in steps}
    for _ in range(rounds):
        for key, step in steps.items():
            _ms(step, max(1, counts[key] // 2), device)
            times[key].append(_ms(step, counts[key], device))
    return {key: statistics.median(found) for key, found in times.items()}


class Plan(NamedTuple):
    """What to measure."""

    recipes: list[str]
    modes: list[str]
    traits: dict[str, Any]  # dtype and device of the layers
    rounds: int
    seconds: float


def measure(shape: Shape, plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """All contenders at one shape, in all modes. One that fails is a row with the reason."""
    steps: dict[tuple[str, str], Step] = {}
    failed: dict[tuple[str, str], str] = {}
    device = torch.device(plan.traits["device"])
    for name, make in contenders(shape, plan.recipes, plan.traits).items():
        for mode in plan.modes:
            tell(f"{shape}: {name}, {mode}")
            try:
                step = _step(make(), shape, plan.traits, mode)
                for _ in range(2):  # the first steps compile, make state and fill caches
                    step()
                _wait(device)
                steps[name, mode] = step
            except Exception as error:  # a rival that fails is a result, too
                line = str(error).strip().split("\n")[0]
                failed[name, mode] = f"{type(error).__name__}: {line}"[:100]
    tell(f"{shape}: {len(steps)} contenders in turns, {plan.rounds} rounds")
    found = _in_turns(steps, device, plan.rounds, plan.seconds)
    torch._dynamo.reset()
    rows = [Row(shape, name, mode, ms) for (name, mode), ms in found.items()]
    return rows + [Row(shape, name, mode, None, why) for (name, mode), why in failed.items()]


# ---- what is shown ---------------------------------------------------------------------------


def ratios(rows: list[Row]) -> dict[Row, float]:
    """How many times as fast as nn.Linear each row is, in the same mode and shape."""
    base = {(row.shape, row.mode): row.ms for row in rows if row.name == BASE and row.ms}
    return {
        row: base[row.shape, row.mode] / row.ms
        for row in rows
        if row.ms and (row.shape, row.mode) in base
    }


def table(rows: list[Row]) -> str:
    """The rows as a table of Markdown."""
    times = ratios(rows)
    lines = [
        "| M,K,N | layer | mode | ms | TFLOP/s | over nn.Linear |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        shape = ",".join(map(str, row.shape))
        if row.ms is None:
            lines.append(f"| {shape} | {row.name} | {row.mode} | - | - | {row.why} |")
            continue
        m, k, n = row.shape
        rate = 6.0 * m * k * n / row.ms / 1e9
        ratio = f"{times[row]:.2f}" if row in times else "-"
        lines.append(
            f"| {shape} | {row.name} | {row.mode} | {row.ms:.3f} | {rate:.3g} | {ratio} |"
        )
    return "\n".join(lines)


def picture(rows: list[Row]) -> str:
    """The ratios as bars, an SVG."""
    bars = list(ratios(rows).items())
    top = max([ratio for _, ratio in bars], default=1.0)
    left, width, line = 330, 360, 18
    drawn = []
    for index, (row, ratio) in enumerate(bars):
        y = 34 + index * line
        label = f"{','.join(map(str, row.shape))}  {row.name}, {row.mode}"
        color = "#888888" if row.name == BASE else "#1b6ca8"
        long = width * ratio / top
        drawn.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{label}</text>')
        drawn.append(
            f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{line - 5}" fill="{color}"/>'
        )
        drawn.append(f'<text x="{left + long + 5:.1f}" y="{y + 11}">{ratio:.2f}</text>')
    title = f'<text x="{left}" y="20">speed over nn.Linear, forward and backward</text>'
    high = 44 + len(bars) * line
    body = "\n".join([title, *drawn])
    style = 'font-family="sans-serif" font-size="11"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" '
        f'height="{high}" {style}>\n<rect width="100%" height="100%" fill="white"/>\n'
        f"{body}\n</svg>\n"
    )


# ---- the command -----------------------------------------------------------------------------


def _shape(given: str) -> Shape:
    parts = given.replace("x", ",").split(",")
    try:
        m, k, n = (int(part) for part in parts)
    except ValueError:
        m = k = n = 0
    if min(m, k, n) < 1:
        raise argparse.ArgumentTypeError(
            f"{given!r} is no shape; write rows,in_features,out_features, as in 4096,1024,1024"
        )
    return m, k, n


def _words(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Reads a list of known words, separated by commas."""

    def read(given: str) -> list[str]:
        found = given.split(",")
        for word in found:
            if word not in known:
                raise argparse.ArgumentTypeError(
                    f"{word!r} is not known; choose among {', '.join(known)}"
                )
        return found

    return read


def _device(text: str) -> str:
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(str(error).split("\n")[0]) from None
    if device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r}: Octet runs on cpu and cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text!r}: torch sees no GPU; take --device cpu")
    return text


def _written(text: str) -> Path:
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    gpu = torch.cuda.is_available()
    made = argparse.ArgumentParser(prog="python -m octet.bench", description=__doc__)
    add = made.add_argument
    add("shapes", nargs="*", type=_shape, metavar="M,K,N", help="rows, in, out features")
    add("--device", type=_device, default="cuda" if gpu else "cpu")
    add("--dtype", choices=DTYPES, default="bf16", help="of input and weight")
    add("--recipes", type=_words(RECIPES), default=list(RECIPES), help=",".join(RECIPES))
    add("--modes", type=_words(MODES), default=list(MODES), help=",".join(MODES))
    add("--rounds", type=int, default=5, help="turns of each contender; the median counts")
    add("--seconds", type=float, default=0.2, help="how long a turn is")
    add("--json", type=_written, help="write the rows here, too")
    add("--plot", type=_written, help="write an SVG of the ratios here, too")
    return made


def _say(text: str) -> None:
    """Progress, for a person at a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main(words: list[str] | None = None) -> None:
    """Runs the command."""
    made = parser()
    given = made.parse_args(words)
    if given.rounds < 1 or given.seconds <= 0:
        made.error("--rounds is at least 1, and --seconds above 0")
    gpu = torch.device(given.device).type == "cuda"
    shapes = given.shapes or [(8192, 4096, 4096) if gpu else (512, 1024, 1024)]
    traits = {"device": given.device, "dtype": DTYPES[given.dtype]}
    plan = Plan(given.recipes, given.modes, traits, given.rounds, given.seconds)
    rows: list[Row] = []
    with contextlib.suppress(KeyboardInterrupt):  # show what was measured so far
        for shape in shapes:
            rows += measure(shape, plan, _say)
    _say("")
    where = torch.cuda.get_device_name(given.device) if gpu else platform.processor() or "CPU"
    print(
        f"octet {octet.__version__}, torch {torch.__version__}, {where}, {given.dtype}, "
        f"{torch.get_num_threads()} threads"
    )
    print(table(rows))
    if given.json is not None:
        given.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    if given.plot is not None:
        given.plot.write_text(picture(rows))


if __name__ == "__main__":
    main()
