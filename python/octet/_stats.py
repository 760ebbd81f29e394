"""octet.stats: measures what casts lose, in sampled steps, in eager and compiled code."""

import weakref
from typing import Any, NamedTuple

from torch.compiler import is_compiling, is_dynamo_compiling

import torch
from octet import _stats_ops
from octet._gathering import GATHERING
from octet._probe import octet_layers
from octet._prologue import applied
from octet._sharded import is_dtensor
from octet.linear import AnyLinear
from octet.state.active import current, in_backward
from octet.tensor import QuantizedTensor

ROLES = ("input", "weight", "grad_output")
_SLOTS = (0, 1, 0)  # slots of delayed scaling (octet_slot)


class TensorStats(NamedTuple):
    """What casting a tensor lost, over all calls of a step."""

    calls: int
    elements: int
    underflow: float  # share of nonzero values that became zero
    saturation: float  # share of codes with the largest magnitude
    scale_min: int | None  # smallest and largest exponent of the scales (value = code * scale)
    scale_max: int | None
    error: float  # rms of x - dequantize(quantize(x)), divided by rms of x
    nonfinite: float  # share of values that are or became infinite or NaN; not counted in error


Results = dict[str, dict[str, TensorStats]]


def _stats_of(row: list[float]) -> TensorStats:
    calls, elements, nonzero, underflow, saturated, nonfinite, error, power = row[:-2]
    has_scales = row[-1] > -torch.inf
    return TensorStats(
        int(calls),
        int(elements),
        underflow / nonzero if nonzero else 0.0,
        saturated / elements,
        int(-row[-2]) if has_scales else None,
        int(row[-1]) if has_scales else None,
        (error / power) ** 0.5 if power else 0.0,
        nonfinite / elements,
    )


class _Watch:
    """A layer's sums. Compiled code reads this object and guards on ``samples`` only."""

    def __init__(self, device: torch.device, training: bool) -> None:
        self.samples = False
        self.training = training
        self.rows = [_stats_ops.new_row(device) for _ in ROLES]

    def run(self, layer: AnyLinear, inp: torch.Tensor, *asked: Any) -> Any:  # noqa: ANN401
        """Runs a layer's call; in a sampled step adds to the sums."""
        run = layer._run if is_dynamo_compiling() else layer._run_or_undo
        made = run(inp, *asked)
        if not self.samples or layer.training != self.training:
            return made
        recipe = layer._recipe_in(current())
        if recipe.custom is not None or recipe.options:
            return made
        texts = layer._cast_quantizers(recipe.text)
        if not texts:
            return made
        if not in_backward():  # inside a backward a checkpoint repeats the call
            self._gather_operands(layer, inp, texts)
        return self._watched(layer, made, texts[2])

    def _gather_operands(
        self, layer: AnyLinear, inp: torch.Tensor, texts: tuple[str, ...]
    ) -> None:
        with torch.no_grad():
            x = layer._checked(inp)
            if not isinstance(x, QuantizedTensor) and layer._prologue is not None:
                x = applied(x, layer._prologue, layer._vectors())
            state = layer._buffers.get("fp8_state")
            states = [] if state is None else [state]
            for at, tensor in enumerate((x, layer._whole("weight"))):
                plain = not isinstance(tensor, QuantizedTensor)
                if texts[at] != "none" and plain:
                    _stats_ops.gather(self.rows[at], tensor, states, _SLOTS[at], texts[at])

    def _watched(self, layer: AnyLinear, made: Any, text: str) -> Any:  # noqa: ANN401
        """The output, wrapped so that its gradient is measured in backward."""
        output = made[0] if isinstance(made, tuple) else made
        if text == "none" or isinstance(output, QuantizedTensor) or not output.requires_grad:
            return made
        state = layer._buffers.get("fp8_grad_state")
        states = [] if state is None else [state]
        tap = _stats_ops.watch_grad if is_compiling() else _stats_ops.tap
        output = tap(output, self.rows[2], states, _SLOTS[2], text)
        return (output, *made[1:]) if isinstance(made, tuple) else output


class Stats:
    """A running ``octet.stats``: ``step()``, ``close()``, or a ``with`` block around the
    training. ``last`` is what the last sampled step gave, by layer and role; ``skipped`` names
    layers that are not measured, and why."""

    def __init__(self, model: torch.nn.Module, every: int, to: list[Any]) -> None:
        self.every, self.steps, self.samples = every, 0, True
        self.last: Results = {}
        self.skipped: dict[str, str] = {}
        self._to, self._watches = to, {}
        self._parameters = {id(parameter) for parameter in model.parameters()}
        self._optimizer: Any = None
        for name, layer in octet_layers(model, "octet.stats").items():
            self._watch(name, layer)
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self._after_optimizer)
        GATHERING.handles.append(self)
        self._sample()

    def _watch(self, name: str, layer: AnyLinear) -> None:
        weight = layer._whole("weight")
        if layer.tp_size > 1 or is_dtensor(weight):
            self.skipped[name] = "it is split over ranks"
            return
        if layer._watch is not None:
            for _, other in self._watches.values():
                vars(other).pop("_watch", None)
            raise ValueError(
                f"octet.stats: {name} is watched already; close() the other octet.stats first"
            )
        _stats_ops.prepare(weight.device)
        vars(layer)["_watch"] = watch = _Watch(weight.device, layer.training)
        self._watches[name] = watch, layer

    # ---- steps -----------------------------------------------------------------------------

    def _sample(self) -> None:
        """Decides whether the step that begins is sampled."""
        self.samples = self.steps % self.every == 0
        for watch, _ in self._watches.values():
            watch.samples = self.samples
        GATHERING.update()

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:  # noqa: ANN401
        """A step of the first optimizer that has parameters of the model ends a step."""
        if is_compiling():
            return
        if self._optimizer is None or self._optimizer() is None:
            groups = optimizer.param_groups
            if not any(id(p) in self._parameters for g in groups for p in g["params"]):
                return
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self.step()

    def step(self) -> None:
        """Ends a step: a sampled one is read and logged. torch's optimizers call it when they
        step; call it where none does, or where the optimizer is in compiled code."""
        if self.samples:
            self._log()
        self.steps += 1
        self._sample()

    def _log(self) -> None:
        found = self._read()
        if not found:
            return
        self.last = found
        for to in self._to:
            if callable(getattr(to, "add_scalar", None)):
                _write(to, self.steps, found)
            else:
                to(self.steps, found)

    def _read(self) -> Results:
        """Reads and resets the sums. Waits once for each device."""
        by_device: dict[torch.device, list[tuple[str, str, torch.Tensor]]] = {}
        for name, (watch, _) in self._watches.items():
            for role, row in zip(ROLES, watch.rows, strict=True):
                by_device.setdefault(row.device, []).append((name, role, row))
        found: Results = {}
        with torch.no_grad():
            for rows in by_device.values():
                read = torch.stack([row for _, _, row in rows]).tolist()
                for (name, role, row), values in zip(rows, read, strict=True):
                    if values[0]:
                        found.setdefault(name, {})[role] = _stats_of(values)
                        row[: _stats_ops.SUMS] = 0
                        row[_stats_ops.SUMS :] = -torch.inf
        return found

    # ---- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Logs what is left, and removes everything from the model."""
        if self not in GATHERING.handles:
            return
        GATHERING.handles.remove(self)
        self._hook.remove()
        for _, layer in self._watches.values():
            vars(layer).pop("_watch", None)
        try:
            if self.samples:
                self._log()
        finally:
            self.samples = False
            GATHERING.update()

    def __enter__(self) -> "Stats":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


def _write(writer: Any, step: int, found: Results) -> None:  # noqa: ANN401
    for name, roles in found.items():
        for role, stats in roles.items():
            for field in ("underflow", "saturation", "error", "nonfinite"):
                writer.add_scalar(f"octet/{field}/{name}/{role}", getattr(stats, field), step)
            for field in ("scale_min", "scale_max"):
                value = getattr(stats, field)
                if value is not None:
                    writer.add_scalar(f"octet/{field}/{name}/{role}", value, step)


def start(model: torch.nn.Module, every: int, to: Any) -> Stats:  # noqa: ANN401
    """Implements octet.stats."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"octet.stats: every is {every!r}; it is a number of steps, 1 or more")
    targets = list(to) if isinstance(to, list | tuple) else [] if to is None else [to]
    for target in targets:
        if not callable(getattr(target, "add_scalar", target)):
            raise TypeError(
                f"octet.stats: to is a {type(target).__name__}; it is a function of step and "
                "results, or a writer with add_scalar(tag, value, step)"
            )
    return Stats(model, every, targets)
