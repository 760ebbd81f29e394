"""FP8 and FP4 linear layers that compile whole.

>>> layer = octet.Linear(64, 32, device="cpu")
>>> with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
...     y = layer(torch.randn(8, 64))
"""

import gc as _gc
import sys as _sys
import typing as _typing

# Importing makes no garbage. Collecting it meanwhile would cost more than the rest of the
# import, since the collector walks through all of torch's objects.
_collects = _gc.isenabled()
_gc.disable()
try:
    from octet import _flops, _shard, _tensor_ops, recipe
    from octet._aliases import fp8_model_init, get_default_recipe
    from octet._C import version as _version
    from octet._caches import cache_info
    from octet._convert import convert, unconvert
    from octet._dtypes import DType
    from octet._flat import flatten_state_dict, unflatten_state_dict
    from octet._gather import fsdp_gather_quantized
    from octet._inside import advise, stats
    from octet._linear_protos import LinearProtos
    from octet._measure import measure
    from octet._opaque import is_value_opaque_quantizer, register_value_opaque_quantizer
    from octet._support import (
        explain,
        is_fp8_available,
        is_fp8_block_scaling_available,
        is_mxfp4_available,
        is_mxfp8_available,
        is_nvfp4_available,
        support,
    )
    from octet.linear import Linear
    from octet.norm_linear import LayerNormLinear
    from octet.norm_mlp import LayerNormMLP
    from octet.norms import LayerNorm, RMSNorm
    from octet.proto import TensorProto, to_tensor_proto
    from octet.quantizers import (
        Float8BlockQuantizer,
        Float8CurrentScalingQuantizer,
        Float8Quantizer,
        MXFP4Quantizer,
        MXFP8Quantizer,
        NVFP4Quantizer,
        Quantizer,
    )
    from octet.recipe import QuantizerRole
    from octet.state.autocast import (
        autocast,
        default_recipe,
        fp8_autocast,
        quantized_model_init,
    )
    from octet.state.checkpoint import checkpoint
    from octet.state.scaling import prepare, reset_state
    from octet.state.weights import constant_weights
    from octet.tensor import QuantizedTensor
finally:
    if _collects:
        _gc.enable()

# imported because they register things with torch and QuantizedTensor
del _flops, _shard, _tensor_ops

__version__ = _version()
__all__ = [
    "DType",
    "Float8BlockQuantizer",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "LinearProtos",
    "MXFP4Quantizer",
    "MXFP8Quantizer",
    "NVFP4Quantizer",
    "QuantizedTensor",
    "Quantizer",
    "QuantizerRole",
    "RMSNorm",
    "TensorProto",
    "advise",
    "autocast",
    "cache_info",
    "checkpoint",
    "constant_weights",
    "convert",
    "default_recipe",
    "explain",
    "flatten_state_dict",
    "fp8_autocast",
    "fp8_model_init",
    "fsdp_gather_quantized",
    "get_default_recipe",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp4_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "is_value_opaque_quantizer",
    "measure",
    "prepare",
    "quantized_model_init",
    "recipe",
    "register_value_opaque_quantizer",
    "reset_state",
    "stats",
    "support",
    "to_tensor_proto",
    "unconvert",
    "unflatten_state_dict",
]

if not _typing.TYPE_CHECKING:  # else a type checker would take every name for one of octet's

    def __getattr__(name: str) -> object:
        from octet._instead import no_attribute

        raise AttributeError(no_attribute(name), name=name, obj=_sys.modules[__name__])
