"""Linear on a GPU beside its rivals, in one run: eager, compiled, as one CUDA graph.

Prints tables, and writes them to bench/RESULTS.md and the numbers to bench/gpu.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import random
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import gpu_model  # noqa: E402
import gpu_plot  # noqa: E402
import gpu_trace  # noqa: E402
import octet  # noqa: E402
from octet import recipe  # noqa: E402

import torch  # noqa: E402

SHAPES = [
    (8192, 4096, 4096),
    (8192, 4096, 14336),
    (8192, 14336, 4096),
    (16384, 8192, 8192),
]
TINY = (128, 128, 128)
FAST = recipe.MMParams(use_split_accumulator=False)
RECIPES: dict[str, recipe.Recipe | None] = {
    "delayed": recipe.DelayedScaling(),
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
    "nvfp4": recipe.NVFP4BlockScaling(),
    "current, fast everywhere": recipe.Float8CurrentScaling(
        fp8_gemm_dgrad=FAST, fp8_gemm_wgrad=FAST
    ),
}

Step = Callable[[], Any]
Name = TypeVar("Name")


# ---- timing ----------------------------------------------------------------------------------


def burst_ms(step: Step, steps: int = 10) -> float:
    """A step's share of ten between two events; the host runs ahead, of the first one too."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        step()
    start.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / steps


def steady_ms(step: Step) -> float:
    """The same after the GPU has done nothing else for a while: at the pace that the step's own
    heat leaves it, not the one before's."""
    for _ in range(max(1, int(150 / burst_ms(step)))):
        step()
    return burst_ms(step)


def rested_ms(step: Step) -> float:
    """The same on a GPU that is not at its power limit."""
    time.sleep(0.2)
    return burst_ms(step)


def host_us(step: Step, steps: int = 100) -> float:
    """The time a step costs the host, while the GPU has next to nothing to do."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    passed = time.perf_counter() - start
    torch.cuda.synchronize()
    return passed / steps * 1e6


def beside(
    steps: dict[Name, Step], measure: Callable[[Step], float] = burst_ms, rounds: int = 11
) -> dict[Name, list[float]]:
    """What each takes in some rounds. Each round measures all of them, in an order of its own,
    so that a GPU that grows hot and slow, or a busy host, is the same to all."""
    for step in steps.values():
        for _ in range(10):
            step()
    torch.cuda.synchronize()
    times: dict[Name, list[float]] = {name: [] for name in steps}
    dice = random.Random(0)
    for _ in range(rounds):
        for name in dice.sample(list(steps), len(steps)):
            times[name].append(measure(steps[name]))
    return times


def graphed(step: Step) -> Step:
    """The step captured as one CUDA graph; the answer replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(alive: Step = step) -> None:  # it is the memory of the step that is replayed
        graph.replay()

    return replay


# ---- the layers ------------------------------------------------------------------------------


def within(active: recipe.Recipe | None) -> octet.autocast:
    return octet.autocast(enabled=active is not None, recipe=active)


class Case:
    """One layer with its input and gradient, and its training step."""

    def __init__(
        self,
        layer: torch.nn.Module,
        sizes: tuple[int, int, int],
        around: Callable[[], Any] = contextlib.nullcontext,
        words: tuple[Any, ...] = (),
    ) -> None:
        m, k, n = sizes
        self.layer, self.around, self.words = layer, around, words
        self.x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        self.dy = torch.randn(m, n, dtype=torch.bfloat16, device="cuda")

    def forward(self) -> torch.Tensor:
        with self.around():
            return self.layer(self.x, *self.words)

    def step(self, forward: Callable[[], torch.Tensor] | None = None) -> None:
        for parameter in self.layer.parameters():
            parameter.grad = None
        self.x.grad = None
        (forward or self.forward)().backward(self.dy)

    def compiled(self, mode: str | None = None) -> Step:
        # By a code object of its own: torch keeps compiled code there, and looks through all.
        own = type(self).forward
        made = types.FunctionType(own.__code__.replace(), own.__globals__, own.__name__)
        fast = torch.compile(types.MethodType(made, self), fullgraph=True, mode=mode)
        return lambda: self.step(fast)


def plain(sizes: tuple[int, int, int], bias: bool = False) -> Case:
    _, k, n = sizes
    layer = torch.nn.Linear(k, n, bias=bias, dtype=torch.bfloat16, device="cuda")
    return Case(layer, sizes)


def ours(
    sizes: tuple[int, int, int],
    active: recipe.Recipe | None,
    quantized: bool = False,
    bias: bool = False,
) -> Case:
    _, k, n = sizes
    with octet.quantized_model_init(enabled=quantized, recipe=active):
        layer = octet.Linear(k, n, bias=bias, params_dtype=torch.bfloat16, device="cuda")
    return Case(layer, sizes, lambda: within(active))


def cached(sizes: tuple[int, int, int], active: recipe.Recipe) -> Case:
    """Later microbatches: the weight is quantized already."""
    case = ours(sizes, active)
    with within(active):
        case.layer(case.x, True)
    case.words = (False,)
    return case


def transformer_engine(sizes: tuple[int, int, int], name: str) -> Case | None:
    if importlib.util.find_spec("transformer_engine") is None:
        return None
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as te_recipe

    made = {
        "delayed": te_recipe.DelayedScaling,
        "current": te_recipe.Float8CurrentScaling,
        "block": te_recipe.Float8BlockScaling,
    }[name]()
    _, k, n = sizes
    layer = te.Linear(k, n, bias=False, params_dtype=torch.bfloat16)
    return Case(layer, sizes, lambda: te.autocast(enabled=True, recipe=made))


def torchao(sizes: tuple[int, int, int]) -> Case | None:
    if importlib.util.find_spec("torchao") is None:
        return None
    from torchao.float8 import convert_to_float8_training

    case = plain(sizes)
    case.layer = convert_to_float8_training(torch.nn.Sequential(case.layer))
    return case


# ---- tables ----------------------------------------------------------------------------------


def linear_cases(sizes: tuple[int, int, int]) -> dict[str, Case]:
    current = RECIPES["current"]
    cases = {"bf16 nn.Linear": plain(sizes)}
    cases |= {name: ours(sizes, active) for name, active in RECIPES.items()}
    cases["current, quantized weights"] = ours(sizes, current, True)
    cases["current, cached weights"] = cached(sizes, current)
    for name in ("delayed", "current", "block"):
        if (case := transformer_engine(sizes, name)) is not None:
            cases[f"TransformerEngine {name}"] = case
    if (case := torchao(sizes)) is not None:
        cases["torchao tensorwise"] = case
    return cases


def linear_rows(sizes: tuple[int, int, int]) -> dict[str, dict[str, float]]:
    """TFLOP/s of a training step in eager, compiled and as one CUDA graph."""
    steps: dict[tuple[str, str], Step] = {}
    cases = linear_cases(sizes)
    for name, case in cases.items():
        steps[name, "eager"] = case.step
        if not ("," in name or name.startswith("TransformerEngine")):
            steps[name, "compiled"] = case.compiled()
        steps[name, "graph"] = graphed(case.step)
    flop = 6.0 * sizes[0] * sizes[1] * sizes[2]
    rows: dict[str, dict[str, float]] = {}
    for (name, way), ms in beside(steps, steady_ms, 4).items():
        rows.setdefault(name, {})[way] = flop / statistics.median(ms) / 1e9
    for row in rows.values():
        row["eager of bf16"] = row["eager"] / rows["bf16 nn.Linear"]["eager"]
    eager = {name: case.step for name, case in cases.items()}
    for name, ms in beside(eager, rested_ms, 3).items():
        rows[name]["eager, rested"] = flop / statistics.median(ms) / 1e9
    torch._dynamo.reset()
    return rows


def bias_rows() -> dict[str, dict[str, float]]:
    """Microseconds of a training step as one CUDA graph, without a bias and with one."""
    sizes = SHAPES[0]
    steps: dict[tuple[str, str], Step] = {}
    for way, bias in (("without", False), ("with", True)):
        steps["bf16 nn.Linear", way] = graphed(plain(sizes, bias).step)
        for name, active in RECIPES.items():
            if "," not in name:
                steps[name, way] = graphed(ours(sizes, active, bias=bias).step)
    rows: dict[str, dict[str, float]] = {}
    for (name, way), ms in beside(steps, rested_ms, 5).items():
        rows.setdefault(name, {})[way] = statistics.median(ms) * 1e3
    for row in rows.values():
        row["a bias costs"] = row["with"] - row["without"]
    return rows


def cast_rows() -> dict[str, dict[str, float]]:
    """Bytes moved over time of a bf16 cast, and its share of a copy's."""
    m, k = 16384, 8192
    x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    y = torch.empty_like(x)
    quantizers = {
        "current, row": octet.Float8CurrentScalingQuantizer("e4m3", columnwise=False),
        "current, row and column": octet.Float8CurrentScalingQuantizer("e4m3"),
        "block 1D": octet.Float8BlockQuantizer("e4m3", block_scaling_dim=1),
        "block 2D": octet.Float8BlockQuantizer("e4m3", block_scaling_dim=2),
        "mxfp8": octet.MXFP8Quantizer("e4m3"),
        "nvfp4 row": octet.NVFP4Quantizer(columnwise=False),
        "nvfp4 with transform": octet.NVFP4Quantizer(with_rht=True),
        "nvfp4 2D": octet.NVFP4Quantizer(with_2d_quantization=True),
    }
    steps: dict[str, Step] = {"copy": lambda: y.copy_(x)}
    moved = {"copy": 4.0 * m * k}
    for name, quantizer in quantizers.items():
        reads = 2 if name.startswith(("current", "nvfp4")) else 1  # an amax comes first
        moved[name] = reads * 2.0 * m * k + sum(b.nbytes for b in quantizer(x).buffers())
        steps[name] = lambda q=quantizer: q(x)
    times = {name: statistics.median(ms) for name, ms in beside(steps).items()}
    rates = {name: moved[name] / ms / 1e6 for name, ms in times.items()}
    return {n: {"GB/s": rate, "of copy": rate / rates["copy"]} for n, rate in rates.items()}


def host_rows() -> dict[str, dict[str, float]]:
    """Microseconds of host time of a training step on a tiny shape: the quietest round's."""
    cases = {"bf16 nn.Linear": plain(TINY)}
    cases |= {name: ours(TINY, active) for name, active in RECIPES.items() if "," not in name}
    rows: dict[str, dict[str, float]] = {name: {} for name in cases}
    eager = {name: case.step for name, case in cases.items()}
    ways = {"eager": eager}
    for way, mode in (("compiled", None), ("reduce-overhead", "reduce-overhead")):
        ways[way] = {name: case.compiled(mode) for name, case in cases.items()}
    for way, steps in ways.items():
        for name, us in beside(steps, host_us, 15).items():
            rows[name][way] = min(us)
    with torch.autograd.set_multithreading_enabled(False):  # backward in the caller's thread
        for name, us in beside(eager, host_us, 15).items():
            rows[name]["eager, one thread"] = min(us)
        octet._C.allow_replays(False)
        for name, us in beside(eager, host_us, 15).items():
            rows[name]["and launched one by one"] = min(us)
        octet._C.allow_replays(True)
    torch._dynamo.reset()
    return rows


def model_rows() -> dict[str, dict[str, float]]:
    """Milliseconds of a transformer's training step; the host decides many of them."""
    models = {"bf16 nn.Linear": gpu_model.Training(None, ours=False)}
    for name, active in RECIPES.items():
        if "," not in name:
            models[name] = gpu_model.Training(active)
    rows: dict[str, dict[str, float]] = {name: {} for name in models}
    steps: dict[tuple[str, str], Step] = {}
    for way, replays in (("eager", True), ("launched one by one", False)):
        for name, model in models.items():

            def step(model: gpu_model.Training = model, replays: bool = replays) -> None:
                octet._C.allow_replays(replays)
                model.step()

            steps[name, way] = step
    for (name, way), ms in beside(steps, lambda step: burst_ms(step, 15), 5).items():
        rows[name][way] = min(ms)
    octet._C.allow_replays(True)
    return rows


def saved_rows() -> dict[str, dict[str, float]]:
    """Bytes that a layer saves for backward, over those of bf16 (input and weight)."""
    sizes = SHAPES[0]
    rows: dict[str, dict[str, float]] = {}
    for name, active in RECIPES.items():
        case = ours(sizes, active)
        kept: dict[int, int] = {}

        def note(t: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            case.forward()
        bf16 = 2.0 * (sizes[0] * sizes[1] + sizes[1] * sizes[2])
        rows[name] = {"of bf16": sum(kept.values()) / bf16}
    return rows


def table(title: str, rows: dict[str, dict[str, float]], digits: int = 0) -> str:
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    lines = [f"| {title} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    places = {c: 2 if c.endswith("of bf16") and digits < 2 else digits for c in columns}
    for name, row in rows.items():
        cells = [f"{row[c]:.{places[c]}f}" if c in row else "" for c in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(text: str) -> None:
    path, begin, end = HERE / "RESULTS.md", "<!-- gpu -->", "<!-- /gpu -->"
    old = path.read_text() if path.exists() else ""
    head, _, rest = old.partition(begin)
    tail = rest.partition(end)[2]
    path.write_text(f"{head.rstrip()}\n\n{begin}\n{text}\n{end}{tail or chr(10)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="linear,bias,casts,host,model,saved,trace")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of them")
    parts = (given := parser.parse_args()).parts.split(",")
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    texts = [
        "## GPU",
        f"`make bench-gpu` on {torch.cuda.get_device_name()}, torch {torch.__version__}. "
        "Linear forward and backward of a bf16 layer without bias, 6MNK flop; ten steps "
        "between two events, the host free to run ahead, after 0.15 s of the same, so that the "
        "GPU is at its power limit by this step; rounds through all the rows of a table, and "
        "their medians; *graph*: the step captured as one CUDA graph; *rested*: after the GPU "
        "has rested for 0.2 s. Rivals that are not in the table were not installed.",
        "![TFLOP/s](gpu.svg)",
    ]

    def add(title: str, rows: dict[str, dict[str, float]], digits: int = 0) -> None:
        found[title] = rows
        texts.append(table(title, rows, digits))
        print(texts[-1], flush=True)

    for sizes in SHAPES[: given.shapes] if "linear" in parts else []:
        add(f"TFLOP/s at {sizes}", linear_rows(sizes))
    if "bias" in parts:
        add(f"us a step at {SHAPES[0]} as a graph, rested", bias_rows())
    if "casts" in parts:
        add("bf16 cast, 16384 x 8192", cast_rows(), 2)
    if "host" in parts:
        add(f"host us a step at {TINY}", host_rows(), 1)
    if "model" in parts:
        add(f"ms a training step, {gpu_model.SHAPE}", model_rows(), 2)
    if "saved" in parts:
        add(f"bytes saved for backward at {SHAPES[0]}", saved_rows(), 3)
    for name in ("delayed", "current", "block", "mxfp8", "nvfp4") if "trace" in parts else ():
        rows = gpu_trace.kernels(graphed(ours(SHAPES[0], RECIPES[name]).step))
        texts.append(gpu_trace.table(f"{name}, one step at {SHAPES[0]} as a graph", rows))
        print(texts[-1], flush=True)
    write("\n\n".join(texts))
    (HERE / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    if "linear" in parts:
        (HERE / "gpu.svg").write_text(gpu_plot.picture(found))


if __name__ == "__main__":
    main()
