"""octet.advise: quantizes layers one by one and measures which of them lose most."""

import glob
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from octet._call_time import extra_tensors
from octet._probe import (
    Asked,
    answering,
    call_in,
    in_recipe,
    octet_layers,
    plain,
    run_call,
    run_model,
    untouched,
)
from octet._progress import Progress
from octet._report import Table
from octet.linear import AnyLinear
from octet.recipe import Recipe
from octet.state.active import current

KEEP_ABOVE = 4.0  # a layer that costs more than this many medians should stay in high precision
_MOST_ELEMENTS = 1 << 14  # elements of a parameter's gradient that are compared, at most


class Change(NamedTuple):
    """What quantizing changed."""

    loss: float  # loss with quantization minus loss without
    # |g - g'| / |g| of each parameter's gradient, at most 1; root mean square over the
    # parameters, so that large gradients do not count more. None if there are no gradients.
    gradient: float | None


class LayerCost(NamedTuple):
    """What quantizing one layer alone costs."""

    name: str
    cost: float  # layers are ranked by this
    loss_change: float
    gradient_change: float | None
    keep: bool  # whether the layer should stay in high precision


class Advice:
    """What ``octet.advise`` found: print it, or take ``rows``, ``to_dict()``, ``to_html()``.

    ``keep`` are the names of layers to leave in high precision. ``where`` chooses all others,
    for ``octet.convert(model, where=advice.where)`` on a model that is not converted yet;
    ``octet.unconvert(model, where=advice.keep)`` does it to the one at hand."""

    def __init__(
        self, recipe: str, loss: float, rows: list[LayerCost], whole: Change, kept: Change
    ) -> None:
        self.recipe, self.loss, self.rows = recipe, loss, rows
        self.all_quantized, self.with_kept = whole, kept
        self.keep = [glob.escape(row.name) for row in rows if row.keep]
        self.where = [glob.escape(row.name) for row in rows if not row.keep]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "recipe": self.recipe,
            "loss": self.loss,
            "rows": [row._asdict() for row in self.rows],
            "all_quantized": self.all_quantized._asdict(),
            "with_kept": self.with_kept._asdict(),
            "keep": list(self.keep),
            "where": list(self.where),
        }

    def _table(self) -> Table:
        head = ("layer", "gradient change", "loss change", "advice")
        lines = [
            (r.name, _percent(r.gradient_change), f"{r.loss_change:+.3e}", _word(r))
            for r in self.rows
        ]
        title = (
            f"recipe {self.recipe}; each layer quantized alone; loss in high precision "
            f"{self.loss:.6g}"
        )
        below = [f"all layers quantized: {_change(self.all_quantized)}"]
        if self.keep:
            below.append(f"with {len(self.keep)} kept high: {_change(self.with_kept)}")
        else:
            below.append(f"no layer costs {KEEP_ABOVE:g} times the median: quantize all")
        return Table(title, head, lines, {}, below)

    def __str__(self) -> str:
        """The table for people."""
        return self._table().text()

    __repr__ = __str__

    def to_html(self) -> str:
        """The table as HTML, for a page of yours."""
        return self._table().html()

    _repr_html_ = to_html


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3f} %"


def _word(row: LayerCost) -> str:
    return "keep high" if row.keep else "quantize"


def _change(change: Change) -> str:
    return f"gradient change {_percent(change.gradient)}, loss change {change.loss:+.3e}"


# ---- one run ---------------------------------------------------------------------------------


def _call_model(model: torch.nn.Module, batch: Any) -> Any:  # noqa: ANN401
    what = "octet.advise"
    if isinstance(batch, torch.Tensor):
        return run_model(model, (batch,), {}, what)
    if isinstance(batch, Mapping):
        return run_model(model, (), dict(batch), what)
    if isinstance(batch, tuple | list):
        return run_model(model, tuple(batch), {}, what)
    raise TypeError(
        f"octet.advise: batch is a {type(batch).__name__}; it is what the model is called "
        "with: a tensor, a tuple of arguments, or a dict of named ones"
    )


def _checked_loss(found: Any) -> torch.Tensor:  # noqa: ANN401
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        given = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise TypeError(
            f"octet.advise: loss gave {given}; it is a function of the model's output that "
            "gives a tensor of one element, as loss=lambda output: output.loss"
        )
    if not torch.isfinite(found).all():
        raise ValueError(
            f"octet.advise: the loss is {found.item()}; give a batch on which it is finite"
        )
    return found.reshape(())


def _quantized(layer: AnyLinear, name: str, inp: torch.Tensor, asked: Asked) -> Any:  # noqa: ANN401
    """A layer's call by the recipe, on a copy of its state. The layer itself does not
    change."""
    asked = (None, *asked[1:])
    call = call_in(layer, inp, asked, alone=True)
    if call is None or layer.tp_size > 1:
        raise NotImplementedError(
            f"octet.advise: {name} is split over ranks, or quantized by a quantizer of your "
            "own; take a recipe of octet.recipe, and a model on one device"
        )
    scaled = call.recipe.rule is not None
    if scaled and "fp8_state" not in layer._buffers:
        raise ValueError(
            f"octet.advise: {name} has no scales of delayed scaling yet; train some steps by "
            "that recipe before, or ask for recipe=octet.recipe.Float8CurrentScaling()"
        )
    bias = layer._whole("bias")
    operands = [layer._checked(inp), layer._whole("weight")]
    operands += [bias] if call.takes_bias else []
    y = run_call(
        call, [*operands, *layer._vectors()], extra_tensors(layer, call, layer._buffers)
    )
    return (y, bias) if layer.return_bias else y


class _Runs:
    """Runs of a model on one batch, each with some layers quantized."""

    def __init__(self, model: torch.nn.Module, batch: Any, loss: Callable[..., Any]) -> None:  # noqa: ANN401
        self.model, self.batch, self.loss_of = model, batch, loss
        self.layers = octet_layers(model, "octet.advise")
        self.called: dict[str, None] = {}
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.loss, self.gradients = self._run(())

    def _run(self, names: Iterable[str]) -> tuple[float, list[torch.Tensor]]:
        chosen = set(names)

        def answer(name: str, layer: AnyLinear, inp: torch.Tensor, asked: Asked) -> Any:  # noqa: ANN401
            self.called[name] = None
            if name in chosen:
                return _quantized(layer, name, inp, asked)
            return plain(layer, inp)

        with untouched(self.model), answering(self.layers, answer):
            loss = _checked_loss(self.loss_of(_call_model(self.model, self.batch)))
            gradients: Any = ()
            if loss.requires_grad and self.parameters:
                gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            return float(loss.detach()), [_some(g) for g in gradients if g is not None]

    def change(self, names: Iterable[str]) -> Change:
        """What quantizing these layers changes."""
        loss, gradients = self._run(names)
        if not gradients:
            return Change(loss - self.loss, None)
        found = []
        for moved, high in zip(gradients, self.gradients, strict=True):
            power = float(high.square().sum())
            if power:
                found.append(min(1.0, float((moved - high).square().sum()) / power))
        return Change(loss - self.loss, statistics.fmean(found) ** 0.5 if found else 0.0)


def _some(gradient: torch.Tensor) -> torch.Tensor:
    """A sample of a tensor's elements, evenly spaced."""
    flat = gradient.detach().reshape(-1)
    step = max(1, -(-flat.numel() // _MOST_ELEMENTS))
    return flat[::step].float()


# ---- the advice ------------------------------------------------------------------------------


def _ranked(changes: dict[str, Change]) -> list[LayerCost]:
    """The rows, costliest first: by the change of gradients, or of the loss if there are no
    gradients."""
    costs = {
        name: abs(c.loss) if c.gradient is None else c.gradient for name, c in changes.items()
    }
    limit = KEEP_ABOVE * statistics.median(costs.values())
    rows = [
        LayerCost(name, costs[name], c.loss, c.gradient, costs[name] > limit)
        for name, c in changes.items()
    ]
    return sorted(rows, key=lambda row: -row.cost)


def _cost(change: Change) -> float:
    return abs(change.loss) if change.gradient is None else change.gradient


def advise(
    model: torch.nn.Module,
    batch: Any,  # noqa: ANN401
    loss: Callable[[Any], torch.Tensor],
    recipe: Recipe | None,
) -> Advice:
    """Implements octet.advise."""
    if not callable(loss):
        raise TypeError(
            f"octet.advise: loss is a {type(loss).__name__}; it is a function of the model's "
            "output, as loss=lambda output: output.loss"
        )
    with in_recipe(recipe):
        text = current().text or "custom"
        runs = _Runs(model, batch, loss)
        names = list(runs.called)
        if not names:
            raise ValueError(
                f"octet.advise: {type(model).__name__} calls none of its octet layers on this "
                "batch; give one that reaches them"
            )
        progress, changes = Progress("octet.advise", len(names)), {}
        try:
            for name in names:
                changes[name] = runs.change([name])
                progress.step()
        finally:
            progress.end()
        rows = _ranked(changes)
        whole = kept = runs.change(names)
        if any(row.keep for row in rows):
            kept = runs.change([row.name for row in rows if not row.keep])
            if _cost(kept) >= _cost(whole):  # the measured result decides, not the estimate
                rows, kept = [row._replace(keep=False) for row in rows], whole
    return Advice(text, runs.loss, rows, whole, kept)
