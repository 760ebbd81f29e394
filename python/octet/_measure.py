"""How many bytes a layer's training step saves, read from its plan."""

from typing import Any, NamedTuple

import torch
from octet import _C, _signatures
from octet._support import text_of
from octet.linear import AnyLinear, checked_save
from octet.norm_mlp import LayerNormMLP
from octet.recipe import Recipe
from octet.state.recompute import CallRecipe
from octet.tensor import QuantizedTensor


class Bytes(NamedTuple):
    """The bytes of a forward call: saved for backward, kept alive, and workspace."""

    stored: int
    alive: int  # the caller's tensors that backward needs: input, weight
    workspace: int
    # Part of `stored`: an activation's input in 8 bits. If there is any, gradients are computed
    # at its decoded values, not at the input itself.
    packed: int = 0

    @property
    def saved(self) -> int:
        """All that backward reads besides the incoming gradient."""
        return self.stored + self.alive


def _of_linear(
    layer: AnyLinear, rows: int, text: str, dtype: torch.dtype, save: str | None
) -> Bytes:
    weight, bias = layer._whole("weight"), layer._whole("bias")
    options = layer._options(CallRecipe(text), weight, None, False, False)
    if save is not None:
        options = (*(each for each in options if each[0] != "save"), ("save", save))
    words = _signatures.linear_words(
        layer._dtypes(dtype, weight, bias),
        (None, weight._text if isinstance(weight, QuantizedTensor) else None),
        text,
        (True, weight.requires_grad, bias is not None and bias.requires_grad),
        options + _signatures.device_options(weight.device.type, weight.device.index),
    )
    return Bytes(*_C.measure("linear", words, (rows, layer.in_features, layer.out_features)))


def measure(
    layer: AnyLinear | LayerNormMLP,
    rows: int,
    recipe: Recipe | None = None,
    dtype: torch.dtype = torch.bfloat16,
    save: str | None = None,
) -> Bytes:
    """How many bytes one training step of a layer saves for backward, with ``rows`` rows.

    ``layer`` is an octet.Linear, LayerNormLinear or LayerNormMLP. For a LayerNormMLP the bytes
    of its two products are added; ``workspace`` is the larger one's. ``save`` ("speed" or
    "memory") asks what it would be with that setting, whatever the layer's own is.

    >>> layer = octet.Linear(64, 32, params_dtype=torch.bfloat16, device="cpu")
    >>> octet.measure(layer, 16, octet.recipe.MXFP8BlockScaling()).saved
    4096
    >>> mlp = octet.LayerNormMLP(64, 128, activation="swiglu", device="cpu")
    >>> mxfp8 = octet.recipe.MXFP8BlockScaling()
    >>> speed = octet.measure(mlp, 4096, mxfp8, save="speed")
    >>> memory = octet.measure(mlp, 4096, mxfp8, save="memory")
    >>> memory.saved < speed.saved, speed.packed, memory.packed
    (True, 0, 1081344)
    """
    halves: tuple[Any, ...] = layer._halves() if isinstance(layer, LayerNormMLP) else (layer,)
    if not isinstance(halves[0], AnyLinear):
        raise TypeError(
            f"measure: it is a {type(layer).__name__}; it must be an octet.Linear, "
            "LayerNormLinear or LayerNormMLP"
        )
    if save is not None:
        checked_save("measure", save)
    text = "none" if recipe is None else text_of(recipe, layer.name or "")
    found = [_of_linear(half, rows, text, dtype, save) for half in halves]
    return Bytes(
        sum(each.stored for each in found),
        sum(each.alive for each in found),
        max(each.workspace for each in found),
        sum(each.packed for each in found),
    )
