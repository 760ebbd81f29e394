"""The cached weight's memory, made before compiled code writes it.

What a graph makes and hands out is overwritten when a CUDA graph of it runs again; memory that
a graph is given and writes in place stays. So a layer's cached weight is made, once, while the
graph of a first microbatch is traced.
"""

import itertools
import weakref
from typing import TYPE_CHECKING

import torch
from octet.quantizers import from_text
from octet.tensor import QuantizedTensor

if TYPE_CHECKING:
    from octet.linear import Linear

_numbers = itertools.count(1)
_layers: "weakref.WeakValueDictionary[int, Linear]" = weakref.WeakValueDictionary()


def number(layer: "Linear") -> int:
    """A number by which traced code names a layer to code that is not traced."""
    found = next(_numbers)
    _layers[found] = layer
    return found


def make(layer_number: int, text: str) -> bool:
    """Makes the memory of a layer's cached weight, unless it is there; runs while tracing."""
    layer = _layers[layer_number]
    weight, kept = layer._whole("weight"), layer._cache
    if kept is not None and kept._text == text and kept.device == weight.device:
        return True
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        made = from_text(text).make_empty(
            weight.shape, dtype=weight.dtype, device=weight.device
        )
    layer._cache, layer._cache_memory = made, made.buffers()
    return True


make._dynamo_marked_constant = True  # type: ignore[attr-defined]


def keep(layer: "Linear", buffers: list[torch.Tensor], text: str, is_first: bool) -> None:
    """Takes a quantized weight: as it is, or in compiled code into the memory made for it.

    A later microbatch has looked at the cache that did not serve it, so it makes another."""
    if is_first and torch.compiler.is_compiling() and make(layer._number, text):
        for kept, made in zip(layer._cache_memory, buffers, strict=True):
            kept.copy_(made)
        return
    weight = layer._whole("weight")
    layer._cache = QuantizedTensor(buffers, text, weight.dtype, weight.shape)
