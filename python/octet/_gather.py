"""fsdp_gather_quantized: weights stay in high precision and travel quantized."""

import torch
from octet import _shard, _texts
from octet._layer_swap import replace_parameters
from octet._parameters import stored_text
from octet._row_form import form_of
from octet._shard_memory import Memory, new_number
from octet._sharded import is_dtensor
from octet.linear import Linear
from octet.recipe import Recipe
from octet.tensor import QuantizedTensor


def _travelling(weight: torch.nn.Parameter, recipe: Recipe) -> torch.nn.Parameter:
    text = stored_text(weight, recipe)
    if _texts.scheme(text) == "none":
        return weight
    _shard.check_sharded(text, weight.shape, weight.shape[0])
    form = form_of(_shard.stored_form(text), tuple(weight.shape))
    memory = Memory(form, weight.dtype, weight.shape[0], True)
    memory.values, memory.start, memory.number = weight.detach(), 0, new_number()
    shard = _shard.QuantizedShard(memory, 0, weight.shape)
    return torch.nn.Parameter(shard, weight.requires_grad)


def _check(layer: Linear) -> None:
    """Refuses a layer whose weight is no plain parameter."""
    label = f"fsdp_gather_quantized: {layer._label()}"
    if len(layer._parts) > 1:
        raise ValueError(
            f"{label}: parameters_split joins weights, which are quantized as one; leave out "
            "one of the two"
        )
    weight = layer._parameters["weight"]
    if is_dtensor(weight):
        raise ValueError(
            f"{label}: its weight is a DTensor; call it before fully_shard, and split layers "
            "by parallel_mode instead of parallelize_module"
        )
    if isinstance(weight, QuantizedTensor) or type(weight) is not torch.nn.Parameter:
        raise ValueError(
            f"{label}: its weight is a {type(weight).__name__}; call it on plain weights (a "
            "quantized weight travels quantized without it)"
        )


def fsdp_gather_quantized(model: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
    """Has ``fully_shard`` gather the weights of octet layers quantized; returns the model.

    To be called before ``fully_shard``. Weights, gradients and checkpoints stay in high
    precision: each rank quantizes its rows by the recipe, and their bytes travel. A layer
    multiplies by what was gathered, whichever autocast is active. Weights are new parameters:
    make the optimizer afterwards.

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
    layers = [module for module in model.modules() if isinstance(module, Linear)]
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
