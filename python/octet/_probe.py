"""Watches or replaces the calls of a model's octet layers without changing the model.
octet.explain, octet.stats and octet.advise use it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from octet._function import apply_eagerly, run_forward
from octet._linear_call import text_of
from octet._sharded import is_dtensor
from octet._signatures import (
    Dtypes,
    Options,
    backward_signature,
    buffers_of,
    device_options,
    forward_signature,
)
from octet.linear import AnyLinear
from octet.recipe import Recipe
from octet.state.active import current, entered
from octet.state.autocast import autocast, checked_recipe
from octet.state.recompute import CallRecipe
from octet.tensor import QuantizedTensor

# ---- which layers ----------------------------------------------------------------------------


def octet_layers(model: torch.nn.Module, what: str) -> dict[str, AnyLinear]:
    """The octet layers of a model by name; raises if there are none."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{what}: model is a {type(model).__name__}; it is a torch.nn.Module")
    found = {
        name.replace("_orig_mod.", "") or "the model": module
        for name, module in model.named_modules()
        if isinstance(module, AnyLinear)
    }
    if not found:
        raise ValueError(
            f"{what}: there is no octet layer in {type(model).__name__}; convert it first: "
            "octet.convert(model)"
        )
    for name, layer in found.items():
        if layer._whole("weight").is_meta:
            raise ValueError(
                f"{what}: {name} is on meta, where nothing can be measured; load the weights "
                "first (load_state_dict(..., assign=True), or to_empty and reset_parameters)"
            )
    return found


def in_recipe(recipe: Recipe | None) -> Any:  # noqa: ANN401
    """The autocast in which to run a model: the given recipe, else the autocast around the
    caller, else the default recipe."""
    region = entered()
    if recipe is None and region is not None and region.enabled:
        return contextlib.nullcontext()
    return autocast(recipe=checked_recipe(recipe))


# ---- the model stays as it was ---------------------------------------------------------------


class _ModuleState:
    """A copy of a module's attributes and buffer values."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.own = module, dict(vars(module))
        self.tables = {k: dict(v) for k, v in self.own.items() if isinstance(v, dict)}
        held = {k: b for k, b in module._buffers.items() if b is not None}
        self.buffers = [(b, b.detach().clone()) for b in held.values() if not b.is_meta]

    def restore(self) -> None:
        """Restores what changed and touches nothing else."""
        own = vars(self.module)
        for key in [key for key in own if key not in self.own]:
            del own[key]
        for key, value in self.own.items():
            if key not in own or own[key] is not value:
                own[key] = value
        for key, before in self.tables.items():
            table = own[key]
            if list(table) != list(before) or any(table[k] is not v for k, v in before.items()):
                table.clear()
                table.update(before)
        with torch.no_grad():
            for buffer, before in self.buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


def _devices(model: torch.nn.Module) -> list[int]:
    found = {p.device for p in model.parameters()}
    return sorted({d.index or 0 for d in found if d.type == "cuda"})


@contextlib.contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Restores a model and torch's generators at the end, also after an exception: attributes,
    modes, hooks, buffers. Parameters must not be changed inside."""
    states = [_ModuleState(module) for module in model.modules()]
    with torch.random.fork_rng(devices=_devices(model)):
        try:
            yield
        finally:
            for state in states:
                state.restore()


# ---- a call ----------------------------------------------------------------------------------


class LayerCall(NamedTuple):
    """A call of a layer, as its plan describes it."""

    words: str
    sizes: tuple[int, ...]  # the input's sizes except the last, then K and N
    tensors: tuple[str, ...]  # names of the tensors that it takes besides its operands
    takes_bias: bool
    recipe: CallRecipe
    wants: tuple[bool, ...]  # whether input, weight and bias get gradients
    dtypes: Dtypes
    texts: tuple[str | None, str | None]  # quantizers of input and weight, None if plain
    options: Options  # options, the device included
    dtype: torch.dtype  # dtype of the input
    device: torch.device

    @property
    def rows(self) -> int:
        """M of the call."""
        rows = 1
        for size in self.sizes[:-2]:
            rows *= size
        return rows

    @property
    def has_graph(self) -> bool:
        """Whether it has a backward."""
        return forward_signature(self.words).has_backward


Asked = tuple[bool | None, bool, bool]  # is_first_microbatch, fp8_output, fp8_grad
_ELSEWHERE = ("main_grad", "bias_main_grad", "delay_wgrad", "weight_cache")


def call_in(
    layer: AnyLinear, inp: torch.Tensor, asked: Asked, alone: bool = False
) -> LayerCall | None:
    """The call that a layer would make now. None if it is not quantized, or by a user's
    quantizer. `alone`: without main_grad, delayed wgrad and cached weight."""
    recipe = layer._recipe_in(current())
    if recipe.text == "none" or recipe.custom is not None or recipe.options:
        return None
    weight, bias = layer._whole("weight"), layer._whole("bias")
    if is_dtensor(weight):
        return None
    inp = layer._checked(inp)
    options = layer._options(recipe, weight, *asked)
    if alone:
        options = tuple(o for o in options if o[0].removesuffix("_dtype") not in _ELSEWHERE)
        records = False
    else:
        records = layer._records()
    call = layer._call((inp, weight, bias), recipe.text, options, records)
    sizes = (*inp.shape[:-1], *layer._ends())
    wants = layer._wants(inp, weight, bias)
    return LayerCall(
        call.words,
        sizes,
        call.tensors,
        call.takes_bias,
        recipe,
        wants,
        layer._dtypes(inp.dtype, weight, bias),
        (text_of(inp), text_of(weight)),
        options + device_options(inp.device.type, inp.device.index),
        inp.dtype,
        inp.device,
    )


def run_call(
    call: LayerCall, operands: Sequence[torch.Tensor], extra: dict[str, list[torch.Tensor]]
) -> torch.Tensor:
    """Runs a call with its graph. `operands` are input, weight, bias, gamma, beta; `extra` are
    the other tensors by name. No layer's state is read or written."""
    weight, text = operands[1], text_of(operands[1])
    flat = text is not None or "cache" in call.tensors
    buffers = [weight]
    if text is not None:
        buffers = [getattr(weight, n) for n in buffers_of(call.words, "weight", text)]
    back = backward_signature(call.words, call.dtype, flat) if call.has_graph else None
    task = call.words, forward_signature(call.words, flat), back
    tensors = [operands[0], *buffers, *operands[2:]]
    for name in call.tensors:
        tensors.extend(extra[name])
    if back is None:
        return run_forward(task, list(call.sizes), tensors)[0]
    made = apply_eagerly((task, None), list(call.sizes), tensors, *operands)
    return made[0] if isinstance(made, tuple) else made


def plain(layer: AnyLinear, inp: torch.Tensor) -> Any:  # noqa: ANN401
    """The result of a call without quantization."""
    if layer.tp_size > 1 or is_dtensor(layer._parameters.get("weight")):
        last = layer._calls.last
        try:
            with autocast(enabled=False):
                return type(layer)._run_or_undo(layer, inp, None, False, False)
        finally:
            layer._calls.last = last
    weight, bias = layer._whole("weight"), layer._whole("bias")
    inp = layer._checked(inp)
    if isinstance(inp, QuantizedTensor):
        inp = inp.dequantize()
    if isinstance(weight, QuantizedTensor):
        weight = weight.dequantize()
    added = None if bias is None else bias.to(inp.dtype)
    y = layer._torchs(inp, weight.to(inp.dtype), added)
    return (y, bias) if layer.return_bias else y


Answer = Callable[[str, AnyLinear, torch.Tensor, Asked], Any]


@contextlib.contextmanager
def answering(layers: dict[str, AnyLinear], answer: Answer) -> Iterator[None]:
    """Replaces the calls of layers by ``answer(name, layer, input, asked)``. Compiled code runs
    eagerly meanwhile, and octet.stats does not count these calls."""

    def as_method(name: str, layer: AnyLinear) -> Callable[..., Any]:
        def run(inp: torch.Tensor, *asked: Any) -> Any:  # noqa: ANN401
            return answer(name, layer, inp, asked)

        return run

    watches = {name: layer._watch for name, layer in layers.items()}
    try:
        for name, layer in layers.items():
            vars(layer).pop("_watch", None)
            vars(layer)["_run_or_undo"] = as_method(name, layer)
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for name, layer in layers.items():
            vars(layer).pop("_run_or_undo", None)
            if watches[name] is not None:
                vars(layer)["_watch"] = watches[name]


def run_model(
    model: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], what: str
) -> Any:  # noqa: ANN401
    """Calls a model; where it does not take that, the error says what was given."""
    try:
        return model(*inputs, **named)
    except TypeError as error:
        given = ", ".join([*(type(i).__name__ for i in inputs), *named]) or "nothing"
        raise TypeError(
            f"{what}: {type(model).__name__} does not take what it was given ({given}): "
            f"{error}; give what the model itself is called with"
        ) from error
