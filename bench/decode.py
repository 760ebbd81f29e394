"""Decoding: a few rows against a weight that is quantized once, beside bf16 torch.nn.Linear.

A weight is quantized (octet.quantized_model_init), cached (is_first_microbatch=False) or cast
by every call. Forward alone, without gradients, a loop of calls inside one autocast. Within a
round every contender has its turn, so what disturbs one disturbs all; the table shows medians
over the rounds, each as its ratio to nn.Linear of the same shape: below 1 is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import octet
from octet import recipe
from torch.utils._python_dispatch import TorchDispatchMode

import torch

SIZES = ["1024x1024", "2048x2048", "4096x4096", "4096x14336"]  # K x N
RECIPES: dict[str, Callable[[], recipe.Recipe]] = {
    "delayed": recipe.DelayedScaling,
    "current": recipe.Float8CurrentScaling,
    "block": recipe.Float8BlockScaling,
    "mxfp8": recipe.MXFP8BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,
}
KINDS = ["quantized", "cached", "cast"]
TORCH = "nn.Linear"
TURN_S = 2e-3  # of one contender in one round, roughly

Call = Callable[[], Any]


class Contender(NamedTuple):
    """A call, and what a loop of such calls stands inside."""

    call: Call
    around: Callable[[], Any] = contextlib.nullcontext


def layer_call(name: str, kind: str, x: torch.Tensor, n: int) -> Contender:
    """A call of a layer as a decoding loop makes it."""
    active, k, is_first = RECIPES[name](), x.shape[-1], None
    context: Any = contextlib.nullcontext()
    if kind == "quantized":
        context = octet.quantized_model_init(recipe=active)
    with context:
        layer = octet.Linear(k, n, bias=False, params_dtype=x.dtype, device=x.device)
    layer.eval()
    if kind == "cached":
        with octet.autocast(recipe=active):
            layer(x, is_first_microbatch=True)
        is_first = False

    def call() -> torch.Tensor:
        return layer(x, is_first_microbatch=is_first)

    return Contender(call, lambda: octet.autocast(recipe=active))


class Ops(TorchDispatchMode):
    """Notes the last op of Octet that runs inside, with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.last: tuple[Any, tuple[Any, ...]] | None = None

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        del types
        if func.namespace == "octet":
            self.last = func, args
        return func(*args, **(kwargs or {}))


def buffers(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Quantized tensors as the op takes them: their buffers in order."""
    return [
        buffer
        for tensor in tensors
        for buffer in (
            [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            if isinstance(tensor, octet.QuantizedTensor)
            else [tensor]
        )
    ]


def op_call(contender: Contender) -> Contender:
    """The op that a call ends in, without the Python code above it."""
    with contender.around(), Ops() as ops:
        contender.call()
    if ops.last is None:
        raise RuntimeError("the call ran no op of Octet")
    op, args = ops.last
    args = tuple(
        buffers(arg) if isinstance(arg, list) and isinstance(arg[0], torch.Tensor) else arg
        for arg in args
    )
    return Contender(lambda: op._op(*args))


def contenders(m: int, k: int, n: int, choice: argparse.Namespace) -> dict[str, Contender]:
    device = torch.device(choice.device)
    x = torch.randn(m, k, dtype=torch.bfloat16, device=device)
    plain = torch.nn.Linear(k, n, bias=False, dtype=x.dtype, device=device)
    calls: dict[str, Contender] = {TORCH: Contender(lambda: plain(x))}
    for kind in choice.weights:
        for name in choice.recipes:
            call = layer_call(name, kind, x, n)
            if choice.enter_each:
                call = Contender(entering(call))
            calls[f"{name} {kind}"] = op_call(call) if choice.op else call
    return calls


def entering(contender: Contender) -> Call:
    """A call that enters its autocast by itself."""

    def call() -> torch.Tensor:
        with contender.around():
            return contender.call()

    return call


def mean_us(contender: Contender, calls: int, choice: argparse.Namespace) -> float:
    """The mean time of a call; on a GPU until the last one is done."""
    clock = time.process_time if choice.cpu_time else time.perf_counter
    call = contender.call
    start = clock()
    with contender.around():
        for _ in range(calls):
            call()
    if choice.device.startswith("cuda"):
        torch.cuda.synchronize()
    return (clock() - start) / calls * 1e6


def measure(calls: dict[str, Contender], choice: argparse.Namespace) -> dict[str, float]:
    """The median of each in microseconds; every round measures all of them in turn."""
    turns = {}
    for name, call in calls.items():
        mean_us(call, 5, choice)
        turns[name] = max(1, int(TURN_S * 1e6 / mean_us(call, 5, choice)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(choice.rounds):
        for name, call in calls.items():
            times[name].append(mean_us(call, turns[name], choice))
    return {name: statistics.median(values) for name, values in times.items()}


def table(columns: dict[str, dict[str, float]]) -> str:
    """Ratios to nn.Linear, whose own row holds microseconds."""
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for name in next(iter(columns.values())):
        cells = [
            f"{times[name]:.1f} us" if name == TORCH else f"{times[name] / times[TORCH]:.2f}"
            for times in columns.values()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="K x N, as in 4096x14336")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--weights", nargs="+", choices=KINDS, default=KINDS[:2])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="the CPU time of the process, which other programs do not disturb: --threads 1",
    )
    parser.add_argument("--op", action="store_true", help="time the ops, not the layers")
    parser.add_argument(
        "--enter-each", action="store_true", help="enter an autocast at every call"
    )
    choice = parser.parse_args()
    if choice.cpu_time and (choice.threads > 1 or choice.device != "cpu"):
        parser.error("--cpu-time measures one thread of the CPU: give --threads 1")
    torch.set_num_threads(choice.threads)
    torch.manual_seed(0)
    columns = {}
    with torch.no_grad():
        for size in choice.sizes:
            k, n = (int(word) for word in size.split("x"))
            for m in choice.rows:
                calls = contenders(m, k, n, choice)
                columns[f"{m} x {size}"] = measure(calls, choice)
    kernels = octet._C.cpu_name() if choice.device == "cpu" else choice.device
    print(f"torch {torch.__version__}, {choice.threads} threads, {kernels}; M x K x N\n")
    print(table(columns))


if __name__ == "__main__":
    main()
