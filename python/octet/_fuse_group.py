"""A candidate for fusing: a norm and the layers that read it."""

from typing import Any, NamedTuple

import torch
from octet.state.active import QUANTIZED_INIT

# transformers' activation classes -> the gated function with this activation.
ACTS = {"SiLUActivation": "swiglu", "SiLU": "swiglu"}
ACTS |= dict.fromkeys(("GELUTanh", "NewGELUActivation", "PytorchGELUTanh"), "geglu")


class Group(NamedTuple):
    """A norm and the layers that read it, in one decoder layer."""

    name: str  # name of the decoder layer
    decoder: torch.nn.Module
    family: str
    norm: str
    projections: tuple[str, ...]  # names of the layers that read the norm
    owners: dict[int, int]  # id of a parameter -> how many modules of the model hold it
    save: str = "speed"  # what the new layer saves for backward

    def label(self) -> str:
        return f"{self.name}.{self.norm}" if self.name else self.norm


def unmade(cls: type, sizes: tuple[int, int], **asked: Any) -> Any:  # noqa: ANN401
    """Makes a layer on meta, which gets its parameters later; ignores quantized_model_init."""
    init, QUANTIZED_INIT.value = QUANTIZED_INIT.value, None
    try:
        return cls(*sizes, device="meta", **asked)
    finally:
        QUANTIZED_INIT.value = init
