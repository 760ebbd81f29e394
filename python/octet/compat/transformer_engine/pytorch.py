"""What transformer_engine.pytorch is while Octet stands in for it: layers, states, checks.

Layers are classes of their own, because libraries tell TransformerEngine's layers by two signs:
"transformer_engine.pytorch" is in the name of their module, and none is an ``nn.Linear``.
"""

from typing import Any

import octet
import torch
from octet.linear import AnyLinear
from octet.recipe import Recipe
from octet.state.active import QUANTIZED_INIT, current


class Linear(AnyLinear):
    """octet.Linear as TransformerEngine has it: all the same, but no ``nn.Linear``.

    >>> from octet.compat.transformer_engine import pytorch as te
    >>> te.Linear(64, 32, device="cpu")
    Linear(64, 32, bias=True)
    >>> isinstance(te.Linear(64, 32, device="cpu"), torch.nn.Linear)
    False
    """

    _is_linear_alone = True  # octet.unconvert makes an nn.Linear of it


class LayerNormLinear(octet.LayerNormLinear):
    """octet.LayerNormLinear by TransformerEngine's name."""


class LayerNormMLP(octet.LayerNormMLP):
    """octet.LayerNormMLP by TransformerEngine's name."""


class LayerNorm(octet.LayerNorm):
    """octet.LayerNorm by TransformerEngine's name."""


class RMSNorm(octet.RMSNorm):
    """octet.RMSNorm by TransformerEngine's name."""


class TransformerLayer(torch.nn.Module):
    """A class without objects: libraries ask whether a module is one, and Octet has none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        raise NotImplementedError(
            "transformer_engine.pytorch.TransformerLayer: Octet has none. Write the layer with "
            "LayerNormLinear, torch's scaled_dot_product_attention, Linear and LayerNormMLP"
        )


def check_fp8_support() -> tuple[bool, str]:
    """Whether FP8 with a scale per tensor runs here, and why not."""
    return octet.is_fp8_available(return_reason=True)


def check_mxfp8_support() -> tuple[bool, str]:
    """Whether MXFP8 runs here, and why not."""
    return octet.is_mxfp8_available(return_reason=True)


def check_fp8_block_scaling_support() -> tuple[bool, str]:
    """Whether FP8 with a scale per block runs here, and why not."""
    return octet.is_fp8_block_scaling_available(return_reason=True)


def check_nvfp4_support() -> tuple[bool, str]:
    """Whether NVFP4 runs here, and why not."""
    return octet.is_nvfp4_available(return_reason=True)


def is_bf16_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Layers take bfloat16 on every device."""
    return (True, "") if return_reason else True


class FP8GlobalStateManager:
    """What the autocast here asks of layers. Octet keeps no state of that kind elsewhere."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Whether layers quantize here."""
        return current().enabled

    @staticmethod
    def is_fp8_calibration() -> bool:
        """Whether layers record amaxes here without quantizing."""
        return current().calibrating

    @staticmethod
    def get_fp8_recipe() -> Recipe:
        """The recipe that layers quantize by here, or the one that None stands for."""
        return current().recipe or octet.default_recipe()

    @staticmethod
    def with_fp8_parameters() -> bool:
        """Whether layers that are made here hold quantized weights."""
        asked = QUANTIZED_INIT.value
        return asked is not None and asked.enabled

    is_fp8_available = staticmethod(check_fp8_support)
    is_mxfp8_available = staticmethod(check_mxfp8_support)
    is_fp8_block_scaling_available = staticmethod(check_fp8_block_scaling_support)
    is_nvfp4_available = staticmethod(check_nvfp4_support)
