"""Names of TransformerEngine that Octet has not."""

_ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
_TENSOR = "octet.QuantizedTensor, the one class; its quantizer tells the scheme"

# What TransformerEngine has and Octet has not, and what to use.
INSTEAD = {
    "CudaRNGStatesTracker": "torch's own generators, which Octet draws from",
    "DelayedScalingRequest": "an octet.Float8Quantizer whose scale and amax you keep",
    "DotProductAttention": _ATTENTION,
    "Float8BlockwiseQTensor": _TENSOR,
    "Float8Tensor": _TENSOR,
    "Fp8Padding": "nothing: layers take any number of rows",
    "Fp8Unpadding": "nothing: layers take any number of rows",
    "GroupedLinear": "an octet.Linear for each group",
    "IdentityQuantizer": "None as a custom recipe's answer",
    "MXFP8Tensor": _TENSOR,
    "MultiheadAttention": f"octet.Linear around {_ATTENTION}",
    "NVFP4Tensor": _TENSOR,
    "QuantizedTensorStorage": _TENSOR,
    "destroy_ub": "nothing: layers overlap collectives without it",
    "get_cpu_offload_context": "torch.autograd.graph.save_on_cpu",
    "initialize_ub": "nothing: layers overlap collectives without it",
    "make_graphed_callables": "torch.compile(mode='reduce-overhead')",
    "onnx_export": "torch.export",
    "optimizers": "torch.optim",
    "parallel_cross_entropy": "torch.distributed.tensor.parallel.loss_parallel",
}

_LAYER = (
    "octet.LayerNormLinear, torch's scaled_dot_product_attention, octet.Linear and "
    "octet.LayerNormMLP"
)


def no_attribute(name: str) -> str:
    """Why ``octet.<name>`` is not there, for who wrote ``import octet as te``."""
    fix = _LAYER if name == "TransformerLayer" else INSTEAD.get(name)
    return f"module 'octet' has no attribute {name!r}" + (f"; use {fix}" if fix else "")
