"""octet.explain of a model: one row for each call of an octet layer, measured on this
machine."""

import weakref
from typing import Any, NamedTuple

import torch
from octet import _C, _signatures
from octet._call_time import Timing, time_call
from octet._probe import (
    Asked,
    LayerCall,
    answering,
    call_in,
    in_recipe,
    octet_layers,
    plain,
    run_model,
    untouched,
)
from octet._progress import Progress
from octet._report import Table, bytes_text
from octet.linear import AnyLinear
from octet.recipe import Recipe
from octet.tensor import quantize

_RECIPES = ("current", "block", "mxfp8", "nvfp4", "mxfp4")


class LayerRow(NamedTuple):
    """What a layer's call does: from its plan, and as measured here."""

    name: str
    calls: int  # calls of this kind in one forward of the model
    m: int
    k: int
    n: int
    quantizers: dict[str, str]  # of input, weight and grad_output, as the plan casts them
    products: dict[str, str]  # fprop, dgrad, wgrad: native, folded or emulated
    saved_bytes: int  # bytes saved for backward by one call
    bf16_saved_bytes: int | None  # bytes that torch's layers save in bf16
    milliseconds: float | None  # forward and backward of one call; None if not timed
    bf16_milliseconds: float | None  # the same with nn.Linear in bf16
    share: float | None  # share of the time of all timed octet layers
    notes: tuple[str, ...]  # hints: what would make it faster or smaller

    @property
    def how(self) -> str:
        """native, folded or emulated; per product if they differ."""
        found = set(self.products.values())
        if len(found) == 1:
            return found.pop()
        return ", ".join(f"{gemm} {how}" for gemm, how in self.products.items())


class Explanation:
    """What ``octet.explain(model, *inputs)`` found: print it, or take ``rows``, ``to_dict()``
    or ``to_html()``, a fragment without scripts."""

    def __init__(
        self, recipe: str, device: str, rows: list[LayerRow], others: dict[str, int]
    ) -> None:
        self.recipe, self.device, self.rows = recipe, device, rows
        self.saved_by_recipe = others  # bytes that all rows save, for each recipe

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        rows = [
            {**row._asdict(), "how": row.how, "notes": list(row.notes)} for row in self.rows
        ]
        return {
            "recipe": self.recipe,
            "device": self.device,
            "rows": rows,
            "saved_by_recipe": dict(self.saved_by_recipe),
        }

    def _table(self) -> Table:
        head = ("layer", "m", "k", "n", "input", "weight", "grad_output", "products", "saves")
        head += ("bf16 saves", "ms", "bf16 ms", "times bf16", "share")
        lines = [_cells(row) for row in self.rows]
        notes = {row.name: list(row.notes) for row in self.rows if row.notes}
        title = f"recipe {self.recipe}, on {self.device}; ms: forward and backward of one call"
        found = self.saved_by_recipe.items()
        saved = ", ".join(f"{name} {bytes_text(count)}" for name, count in found)
        made = Table(title, head, lines, notes, [f"all rows save, by recipe: {saved}"])
        return made.without_common(("input", "weight", "grad_output", "products"))

    def __str__(self) -> str:
        """The table for people."""
        return self._table().text()

    __repr__ = __str__

    def to_html(self) -> str:
        """The table as HTML, for a page of yours."""
        return self._table().html()

    _repr_html_ = to_html


def _cells(row: LayerRow) -> tuple[str, ...]:
    name = row.name if row.calls == 1 else f"{row.name} (x{row.calls})"
    roles = tuple(row.quantizers.get(r, "-") for r in ("input", "weight", "grad_output"))
    times = ("-", "-", "-", "-")
    if row.milliseconds is not None and row.bf16_milliseconds:
        ratio = row.milliseconds / row.bf16_milliseconds
        share = f"{100 * (row.share or 0):.1f} %"
        times = (f"{row.milliseconds:.3f}", f"{row.bf16_milliseconds:.3f}", f"{ratio:.2f}")
        times += (share,)
    sizes = tuple(map(str, (row.m, row.k, row.n)))
    bf16 = "-" if row.bf16_saved_bytes is None else bytes_text(row.bf16_saved_bytes)
    saved = bytes_text(row.saved_bytes), bf16
    return (name, *sizes, *roles, row.how or "-", *saved, *times)


# ---- recording calls
# ---------------------------------------------------------------------------


class _Seen:
    """The calls of one forward, in order; calls of one kind appear once."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, LayerCall], int] = {}
        self.layers: dict[str, AnyLinear] = {}
        self.unplanned: dict[str, str] = {}
        # id of an input -> the tensor (kept alive) and the layers that read it.
        self.readers: dict[int, tuple[Any, list[str]]] = {}

    def answer(self, name: str, layer: AnyLinear, inp: torch.Tensor, asked: Asked) -> Any:  # noqa: ANN401
        """Records a call, and computes it in high precision."""
        call = call_in(layer, inp, asked)
        self.layers[name] = layer
        if call is None:
            self.unplanned[name] = _why_unplanned(layer)
        else:
            key = name, call
            self.calls[key] = self.calls.get(key, 0) + 1
            self._note_reader(name, inp)
        made = plain(layer, inp)
        if call is None or not asked[1] or isinstance(made, tuple):
            return made
        return _quantized_output(call, made)

    def _note_reader(self, name: str, inp: torch.Tensor) -> None:
        held, names = self.readers.get(id(inp), (None, []))
        if held is None or held() is not inp:
            held, names = weakref.ref(inp), []
            self.readers[id(inp)] = held, names
        names.append(name)

    def siblings(self, name: str) -> list[str]:
        """The other layers that read the same input tensor."""
        for _, names in self.readers.values():
            if name in names and len(set(names)) > 1:
                return list(dict.fromkeys(names))
        return []


def _why_unplanned(layer: AnyLinear) -> str:
    if layer._parameters.get("weight") is not None and type(layer._whole("weight")) is not (
        torch.nn.Parameter
    ):
        return f"its weight is a {type(layer._whole('weight')).__name__}: not looked into"
    return "it is not quantized, or by a quantizer of your own: nothing is planned"


def _quantized_output(call: LayerCall, made: torch.Tensor) -> torch.Tensor:
    """The output as the next layer gets it with fp8_output. The values of its bytes do not
    matter here."""
    text = _signatures.forward_signature(call.words).output.quantizer
    if text == "none":
        return made
    live = [made.new_ones(1, dtype=torch.float32)] if _C.takes_scale(text) else []
    with torch.no_grad():
        return quantize(text, made.detach(), live)


# ---- rows ------------------------------------------------------------------------------------


def plan_facts(call: LayerCall) -> tuple[dict[str, str], dict[str, str], bool]:
    """From a call's plans: the quantizer of each role, how each product is multiplied, and
    whether any product is padded."""
    sizes = (call.rows, *call.sizes[-2:])
    found = list(_C.product_facts("linear", call.words, sizes))
    if call.has_graph:
        back = _signatures.gradient_words(call.words, call.dtype, None)
        found += _C.product_facts("linear_backward", back, sizes)
        if _signatures.forward_signature(call.words).delays:
            found += _C.product_facts("linear_wgrad", back, sizes)
    roles: dict[str, str] = {}
    for _, _, _, a, of_a, b, of_b in found:
        for role, text in ((a, of_a), (b, of_b)):
            roles.setdefault(role, text)
    return roles, {row[0]: row[1] for row in found}, any(row[2] for row in found)


def saved_bytes(call: LayerCall, recipe: str | None = None) -> int | None:
    """The bytes that a call saves for backward. With another recipe: None if that recipe
    refuses the call."""
    sizes, words = (call.rows, *call.sizes[-2:]), call.words
    if recipe is not None:
        try:
            words = _signatures.linear_words(
                call.dtypes, call.texts, recipe, call.wants, call.options
            )
        except ValueError:
            return None
    stored, alive, *_ = _C.measure("linear", words, sizes)
    return stored + alive


def _notes(seen: _Seen, name: str, call: LayerCall, timing: Timing) -> list[str]:
    roles, products, padded = plan_facts(call)
    layer, notes = seen.layers[name], []
    device = dict(call.options).get("device", "cpu")
    if "emulated" in products.values():
        kinds = {t: _C.support(t, device) for t in roles.values() if t != "none"}
        slow = ", ".join(t for t, how in kinds.items() if how == "emulated")
        notes.append(
            f"emulated: this device does not multiply {slow or 'these operands'}; "
            "octet.support() names the recipes that are native here"
        )
    if padded:
        sizes = f"m={call.rows} k={call.sizes[-2]} n={call.sizes[-1]}"
        notes.append(f"rows are padded at {sizes}: multiples of 16 need no copies")
    siblings = seen.siblings(name)
    if siblings and call.has_graph:
        notes.append(
            f"{', '.join(siblings)} read one tensor: torch.compile casts and saves it once for "
            "all; so does octet.convert(fuse=True) where it knows the model"
        )
    holds_cast = any(option[0] == "weight_cache" for option in call.options)
    if not call.has_graph and call.texts[1] is None and not holds_cast:
        notes.append(
            "its weight is cast at each call: octet.constant_weights() casts it once, "
            "octet.convert(weights=recipe) stores it so"
        )
    if layer.save_original_input and call.has_graph:
        notes.append("save_original_input=True saves the input in high precision")
    if timing.why:
        notes.append(timing.why)
    elif timing.busy:
        notes.append("other programs kept the processor busy: its times say little; try again")
    elif timing.octet > 1.05 * timing.bf16:
        notes.append(
            "slower than bf16 at these sizes: leave it out by octet.convert(where=...), or "
            "give it more rows"
        )
    return notes


def _row(seen: _Seen, key: tuple[str, LayerCall], timing: Timing, total: float) -> LayerRow:
    name, call = key
    count = seen.calls[key]
    roles, products, _ = plan_facts(call)
    timed = not timing.why
    return LayerRow(
        name,
        count,
        call.rows,
        *call.sizes[-2:],
        {role: roles[role] for role in ("input", "weight", "grad_output") if role in roles},
        products,
        saved_bytes(call),
        timing.bf16_saved if timed else None,
        1e3 * timing.octet if timed else None,
        1e3 * timing.bf16 if timed else None,
        count * timing.octet / total if timed and total else None,
        tuple(_notes(seen, name, call, timing)),
    )


def _unplanned_rows(seen: _Seen, layers: dict[str, AnyLinear]) -> list[LayerRow]:
    rows = []
    for name, layer in layers.items():
        why = seen.unplanned.get(name)
        if name not in seen.layers:
            why = "this forward does not call it"
        if why:
            k, n = layer._ends()
            rows.append(LayerRow(name, 0, 0, k, n, {}, {}, 0, None, None, None, None, (why,)))
    return rows


def _saved_by_recipe(seen: _Seen, active: str) -> dict[str, int]:
    found = {active: sum(saved_bytes(call) * n for (_, call), n in seen.calls.items())}
    for recipe in _RECIPES:
        each = [(saved_bytes(call, recipe), n) for (_, call), n in seen.calls.items()]
        if recipe != active and all(count is not None for count, _ in each):
            found[recipe] = sum(count * n for count, n in each)
    return found


def explain_model(
    model: torch.nn.Module,
    inputs: tuple[Any, ...],
    recipe: Recipe | None,
    named: dict[str, Any],
) -> Explanation:
    """Implements octet.explain for a model."""
    layers, seen = octet_layers(model, "octet.explain"), _Seen()
    with untouched(model), in_recipe(recipe):
        with answering(layers, seen.answer):
            run_model(model, inputs, named, "octet.explain")
        progress, timings = Progress("octet.explain", len(seen.calls)), {}
        memo: dict[Any, Timing] = {}
        try:
            for name, call in seen.calls:
                timings[name, call] = time_call(seen.layers[name], call, memo)
                progress.step()
        finally:
            progress.end()
    total = sum(t.octet * seen.calls[key] for key, t in timings.items() if not t.why)
    rows = [_row(seen, key, timing, total) for key, timing in timings.items()]
    rows += _unplanned_rows(seen, layers)
    texts = {call.recipe.text for _, call in seen.calls}
    active = texts.pop() if len(texts) == 1 else "by layer" if texts else "none"
    devices = sorted({str(layer._whole("weight").device) for layer in layers.values()})
    return Explanation(active, ", ".join(devices), rows, _saved_by_recipe(seen, active))
