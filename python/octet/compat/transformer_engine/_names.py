"""Which module of TransformerEngine has which names, and what to use for those missing here."""

from typing import Any

import octet
from octet import recipe
from octet._instead import INSTEAD
from octet.compat.transformer_engine import pytorch

# The version whose names are answered to; libraries compare it. "octet" says who answers.
VERSION = "2.20.0+octet"

_LAYERS = (
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "RMSNorm",
)
_CHECKS = (
    "FP8GlobalStateManager",
    "check_fp8_block_scaling_support",
    "check_fp8_support",
    "check_mxfp8_support",
    "check_nvfp4_support",
)
_REGIONS = (
    "QuantizerRole",
    "autocast",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_recipe",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "quantized_model_init",
)
_QUANTIZERS = (
    "Float8BlockQuantizer",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "MXFP8Quantizer",
    "NVFP4Quantizer",
    "QuantizedTensor",
    "Quantizer",
)
_RECIPES = (
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "Recipe",
)


def _of(module: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401
    return {name: getattr(module, name) for name in names}


def modules() -> dict[str, dict[str, Any]]:
    """The modules that Octet stands in for, parents first, and what is in each."""
    states = {**_of(octet, *_REGIONS), **_of(pytorch, *_CHECKS)}
    layers = _of(pytorch, *_LAYERS)
    quantizers = _of(octet, *_QUANTIZERS)
    more = _of(octet, "DType", "checkpoint")
    whole = _of(pytorch, "TransformerLayer", "is_bf16_available")
    return {
        "transformer_engine": {"__version__": VERSION},
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": _of(recipe, *_RECIPES),
        "transformer_engine.pytorch": {
            **_of(octet, *_REGIONS),
            **layers,
            **quantizers,
            **more,
            **whole,
            "__version__": VERSION,
        },
        "transformer_engine.pytorch.constants": _of(octet, "DType"),
        "transformer_engine.pytorch.distributed": _of(octet, "checkpoint"),
        "transformer_engine.pytorch.fp8": states,
        "transformer_engine.pytorch.module": layers,
        "transformer_engine.pytorch.quantization": states,
        "transformer_engine.pytorch.quantized_tensor": _of(
            octet, "QuantizedTensor", "Quantizer"
        ),
        "transformer_engine.pytorch.tensor": quantizers,
        "transformer_engine.pytorch.transformer": _of(pytorch, "TransformerLayer"),
        "transformer_engine_torch": _of(octet, "DType"),
    }


def missing(module: str, name: str) -> str:
    """Why a name is not there, and what to use."""
    fix = INSTEAD.get(name)
    use = f"use {fix}" if fix else "docs/from-transformer-engine.md lists what it has"
    return f"{module}.{name}: Octet stands in for TransformerEngine and has no {name}; {use}"
