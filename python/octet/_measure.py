"""How many bytes a layer's training step saves, read from its plan."""

from typing import NamedTuple

import torch
from octet import _C, _signatures
from octet._support import text_of
from octet.linear import Linear
from octet.recipe import Recipe
from octet.state.recompute import CallRecipe
from octet.tensor import QuantizedTensor


class Bytes(NamedTuple):
    """Bytes of a forward call: what it stores for backward, what stays alive, scratch."""

    stored: int
    alive: int  # the caller's own tensors: the input, the weight
    workspace: int

    @property
    def saved(self) -> int:
        """All that backward reads, besides the gradient that arrives."""
        return self.stored + self.alive


def measure(
    layer: Linear,
    rows: int,
    recipe: Recipe | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Bytes:
    """What one training step of a layer saves for backward, for an input of so many rows.

    >>> layer = octet.Linear(64, 32, params_dtype=torch.bfloat16, device="cpu")
    >>> octet.measure(layer, 16, octet.recipe.MXFP8BlockScaling()).saved
    4096
    """
    weight, bias = layer._whole("weight"), layer._whole("bias")
    text = "none" if recipe is None else text_of(recipe, layer.name or "")
    words = _signatures.linear_words(
        (dtype, weight.dtype, None if bias is None else bias.dtype),
        (None, weight._text if isinstance(weight, QuantizedTensor) else None),
        text,
        (True, weight.requires_grad, bias is not None and bias.requires_grad),
        layer._options(CallRecipe(text), weight, None, False, False)
        + _signatures.device_options(weight.device.type, weight.device.index),
    )
    return Bytes(*_C.measure("linear", words, (rows, layer.in_features, layer.out_features)))
