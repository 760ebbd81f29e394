"""Measures a layer's call, forward and backward, beside nn.Linear in bf16."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from octet import _wgrad
from octet._linear_call import text_of
from octet._probe import LayerCall, run_call
from octet._prologue import applied
from octet.linear import AnyLinear
from octet.quantizers import from_text
from octet.state import scaling

_MOST_SECONDS = 0.25  # time spent on one kind of call, warm-up not counted
_MOST_RUNS = 30
_LEAST_RUNS = 5  # where a busy machine makes them long, the least of one or two says nothing
_MOST_SECONDS_WHERE_BUSY = 2.0


class Timing(NamedTuple):
    """Seconds of a call and of the same call in bf16; or the reason why there are none."""

    octet: float
    bf16: float
    bf16_saved: int  # bytes that torch saves for backward in bf16
    why: str = ""
    busy: bool = False  # other programs had the processor for more than half of the time


def _operands(
    layer: AnyLinear, call: LayerCall, dtype: torch.dtype | None, quantizer: str | None
) -> list[torch.Tensor]:
    """Random input, weight, bias and norm parameters, of the call's dtypes or of the given
    one."""
    k, n = call.sizes[-2:]
    shapes = [(*call.sizes[:-2], layer._columns()), (n, k)]
    shapes += [(n,)] if call.takes_bias else []
    kinds = list(call.dtypes[:2]) + ([call.dtypes[2]] if call.takes_bias else [])
    wants = list(call.wants[: len(shapes)])
    for vector in layer._vectors():
        shapes.append((k,))
        kinds.append(vector.dtype)
        wants.append(vector.requires_grad and torch.is_grad_enabled())
    made = []
    for shape, kind, want in zip(shapes, kinds, wants, strict=True):
        tensor = torch.randn(shape, dtype=dtype or kind, device=call.device)
        tensor = from_text(quantizer)(tensor) if quantizer and len(made) == 1 else tensor
        made.append(tensor.requires_grad_(want))
    return made


def extra_tensors(
    layer: AnyLinear, call: LayerCall, of: dict[str, torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """What a call takes besides its operands: copies of those in `of`, or new ones."""
    found: dict[str, list[torch.Tensor]] = {}
    for name in call.tensors:
        if name in of:
            found[name] = [of[name].detach().clone()]
        elif name in scaling.SLOTS:
            found[name] = [scaling.fresh(name, 1, call.device)]
        elif name == "seed":
            found[name] = [torch.zeros(1, dtype=torch.int64, device=call.device)]
        elif name == "cache":
            found[name] = layer._cached_buffers(call.words)
        elif name == "queue":
            found[name] = [_wgrad.Queue().handle]
        else:
            held = layer._whole("bias" if name == "bias_main_grad" else "weight")
            found[name] = [torch.zeros_like(held.main_grad)]
    return found


def _of_octet(layer: AnyLinear, call: LayerCall) -> Callable[[], None]:
    operands = _operands(layer, call, None, text_of(layer._whole("weight")))
    extra = extra_tensors(layer, call, {})
    wanted = [each for each in operands if each.requires_grad]
    grad = torch.randn((*call.sizes[:-2], call.sizes[-1]), dtype=call.dtype, device=call.device)

    def run() -> None:
        y = run_call(call, operands, extra)
        if wanted:
            torch.autograd.grad(y, wanted, grad, allow_unused=True)

    return run


def _of_bf16(layer: AnyLinear, call: LayerCall) -> Callable[[], None]:
    x, weight, *rest = _operands(layer, call, torch.bfloat16, None)
    bias = rest.pop(0) if call.takes_bias else None
    wanted = [t for t in (x, weight, bias, *rest) if t is not None and t.requires_grad]
    grad = torch.randn((*call.sizes[:-2], call.sizes[-1]), dtype=x.dtype, device=call.device)

    def run() -> None:
        before = x if layer._prologue is None else applied(x, layer._prologue, rest)
        y = torch.nn.functional.linear(before, weight, bias)
        if wanted:
            torch.autograd.grad(y, wanted, grad, allow_unused=True)

    return run


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _least_times(runs: list[Callable[[], None]], device: torch.device) -> list[float]:
    """The shortest time of each function, measured in turns. A slow phase of the machine then
    slows all of them, and the shortest time is the cost when nothing else runs."""
    for _ in range(2):
        for run in runs:
            _seconds(run, device)
    times: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    while len(times[0]) < _MOST_RUNS:
        most = _MOST_SECONDS if len(times[0]) >= _LEAST_RUNS else _MOST_SECONDS_WHERE_BUSY
        if times[0] and time.perf_counter() - start > most:
            break
        for run, found in zip(runs, times, strict=True):
            found.append(_seconds(run, device))
    return [min(found) for found in times]


def _saved_bytes(run: Callable[[], None]) -> int:
    """The bytes that autograd saves in a run; each storage counts once."""
    found: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(found.values())


def time_call(layer: AnyLinear, call: LayerCall, memo: dict[Any, Timing]) -> Timing:
    """The time of a call; calls of one kind are measured once."""
    if layer.tp_size > 1:
        return Timing(0, 0, 0, "not timed: it is split over ranks")
    if call.rows == 0:
        return Timing(0, 0, 0, "not timed: its input has no rows")
    if call.texts[0] is not None:
        return Timing(0, 0, 0, "not timed: its input arrives quantized")
    key = call.words, call.sizes, layer._columns()
    if key not in memo:
        runs = [_of_octet(layer, call), _of_bf16(layer, call)]
        wall, cpu = time.perf_counter(), time.process_time()
        times = _least_times(runs, call.device)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        busy = call.device.type == "cpu" and cpu < 0.5 * wall
        memo[key] = Timing(*times, _saved_bytes(runs[1]), busy=busy)
    return memo[key]
