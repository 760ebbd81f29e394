"""The registry of layers: the one place that knows which layers there are."""

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octet.state.layer import LayerState

# Counts layers that were added, and buffers of live state that were removed: what was done to
# all layers needs no repetition while the count is the same.
CHANGES = [0]
_LAYERS: "weakref.WeakValueDictionary[int, LayerState]" = weakref.WeakValueDictionary()


def register(layer: "LayerState") -> None:
    """Adds a layer; it leaves by itself when nobody holds it any more."""
    _LAYERS[id(layer)] = layer
    CHANGES[0] += 1


def all_layers() -> "list[LayerState]":
    """The layers that there are; other threads may make some meanwhile."""
    return [layer for ref in _LAYERS.valuerefs() if (layer := ref()) is not None]
