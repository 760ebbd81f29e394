"""fsdp_gather_quantized: weights are stored in high precision and gathered quantized."""

from typing import Any

import torch
from octet import _distribute, _shard, _texts
from octet._layer_swap import replace_parameters
from octet._parameters import stored_text
from octet._row_form import form_of
from octet._shard_memory import Memory, new_number
from octet._sharded import is_dtensor
from octet.linear import AnyLinear
from octet.recipe import Recipe
from octet.tensor import QuantizedTensor


def _shard_of(values: torch.Tensor, text: str) -> _shard.QuantizedShard:
    """A QuantizedShard with all rows, before fully_shard cuts them."""
    _shard.check_sharded(text, values.shape, values.shape[0])
    form = form_of(_shard.stored_form(text), tuple(values.shape))
    memory = Memory(form, values.dtype, values.shape[0], True)
    memory.values, memory.start, memory.number = values, 0, new_number()
    return _shard.QuantizedShard(memory, 0, values.shape)


def _travelling(weight: torch.nn.Parameter, recipe: Recipe) -> torch.nn.Parameter:
    """The parameter that replaces a weight. For a DTensor (parallelize_module) each rank
    quantizes its part, as a call would."""
    text = stored_text(weight, recipe)
    if _texts.scheme(text) == "none":
        return weight
    return _distribute.changed(weight, lambda values: _shard_of(values, text))


def _check(layer: AnyLinear) -> None:
    """Raises if a layer's weight is not a plain parameter."""
    label = f"fsdp_gather_quantized: {layer._label()}"
    if len(layer._parts) > 1:
        raise ValueError(
            f"{label}: parameters_split joins weights, which are quantized as one; leave out "
            "one of the two"
        )
    weight: Any = layer._parameters["weight"]
    if is_dtensor(weight) and layer._is_sharded():
        raise ValueError(f"{label}: fully_shard has cut its weight; call it before")
    weight = _distribute.local_of(weight)
    if type(weight) is torch.Tensor:  # the local part of a DTensor
        return
    if isinstance(weight, QuantizedTensor) or type(weight) is not torch.nn.Parameter:
        raise ValueError(
            f"{label}: its weight is a {type(weight).__name__}; call it on plain weights (a "
            "quantized weight travels quantized without it)"
        )


def fsdp_gather_quantized(model: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
    """Makes ``fully_shard`` gather the weights of octet layers quantized; returns the model.

    Call it before ``fully_shard``, and after ``parallelize_module``. Weights, gradients and
    checkpoints stay in high precision: each rank quantizes its rows by the recipe, and only the
    bytes are sent. A layer multiplies by the gathered bytes, whichever autocast is active.
    Weights become new parameters: make the optimizer afterwards.

    >>> octet.fsdp_gather_quantized(model, octet.recipe.MXFP8BlockScaling())  # doctest: +SKIP
    >>> torch.distributed.fsdp.fully_shard(model)  # doctest: +SKIP
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(
            f"fsdp_gather_quantized: recipe is {recipe!r}; name the one of training"
        )
    if getattr(recipe, "backward_override", None) == "high_precision":
        raise ValueError(
            "fsdp_gather_quantized: backward_override='high_precision' multiplies by weights "
            "in high precision, which do not travel; leave out one of the two"
        )
    layers = [module for module in model.modules() if isinstance(module, AnyLinear)]
    if not layers:
        raise ValueError(
            f"fsdp_gather_quantized: there is no octet layer in {type(model).__name__}; call "
            "octet.convert(model) first"
        )
    for layer in layers:
        _check(layer)
    weights = [layer._parameters[name] for layer in layers for name in layer._weight_names()]
    replace_parameters(model, weights, lambda weight: _travelling(weight, recipe))
    return model
