"""The registry of layers: the one place that knows all existing layers."""

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octet.state.layer import LayerState

# Counts added layers and removed state buffers. While the count stays the same, work that was
# done for all layers need not be repeated.
CHANGES = [0]
_LAYERS: "weakref.WeakValueDictionary[int, LayerState]" = weakref.WeakValueDictionary()


def register(layer: "LayerState") -> None:
    """Adds a layer. It leaves the registry when it is freed."""
    _LAYERS[id(layer)] = layer
    CHANGES[0] += 1


def all_layers() -> "list[LayerState]":
    """All existing layers; a copy, since other threads may make some meanwhile."""
    return [layer for ref in _LAYERS.valuerefs() if (layer := ref()) is not None]
