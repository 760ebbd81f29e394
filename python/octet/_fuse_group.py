"""Layers that one fused layer is to stand for."""

from typing import Any, NamedTuple

import torch
from octet.state.active import QUANTIZED_INIT

# transformers' activations by their classes, and the gated functions that they make.
ACTS = {"SiLUActivation": "swiglu", "SiLU": "swiglu"}
ACTS |= dict.fromkeys(("GELUTanh", "NewGELUActivation", "PytorchGELUTanh"), "geglu")


class Group(NamedTuple):
    """Layers that one layer is to stand for."""

    name: str  # the decoder layer's
    decoder: torch.nn.Module
    family: str
    norm: str
    projections: tuple[str, ...]  # those that read the norm
    owners: dict[int, int]  # how many modules of the model have a parameter, by its id
    save: str = "speed"  # what the layer is to save for backward

    def label(self) -> str:
        return f"{self.name}.{self.norm}" if self.name else self.norm


def unmade(cls: type, sizes: tuple[int, int], **asked: Any) -> Any:  # noqa: ANN401
    """A layer whose parameters are to come, whatever quantized_model_init says."""
    init, QUANTIZED_INIT.value = QUANTIZED_INIT.value, None
    try:
        return cls(*sizes, device="meta", **asked)
    finally:
        QUANTIZED_INIT.value = init
