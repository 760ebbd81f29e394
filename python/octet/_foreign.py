"""What other libraries hand to a layer: FX's proxies, nested tensors."""

import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch

_STAGES = "torch.distributed.pipelining.stage"

if TYPE_CHECKING:
    from octet.linear import Linear


@functools.cache
def _knows_stages() -> bool:
    """Whether torch's stages, which have been imported, infer shapes by a function that is
    known here by its name; a warning where they do not."""
    kinds = vars(sys.modules[_STAGES]).values()
    found = [name for kind in kinds if isinstance(kind, type) for name in vars(kind)]
    if any("infer" in name for name in found):
        return True
    warnings.warn(
        f"octet does not know the pipeline stages of torch {torch.__version__}: delayed "
        "scaling measures their runs on uninitialized memory; give input_args and output_args",
        stacklevel=2,
    )
    return False


def infers_shapes() -> bool:
    """Whether torch.distributed.pipelining runs a stage on uninitialized memory, to learn the
    shapes that it makes. Nothing that a layer measures there is of the model."""
    if _STAGES not in sys.modules or not _knows_stages():
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _STAGES and "infer" in frame.f_code.co_name:
            return True
        frame = frame.f_back
    return False


def traced_by_fx(layer: "Linear", inp: Any, *asked: Any) -> Any:  # noqa: ANN401
    """A call under torch.fx.symbolic_trace: the layer is a leaf, as nn.Linear is. None where
    the input is no proxy."""
    if not isinstance(inp, torch.fx.Proxy):
        return None
    names = ("is_first_microbatch", "fp8_output", "fp8_grad")
    given = {
        n: v for n, v in zip(names, asked, strict=True) if v is not None and v is not False
    }
    target = inp.tracer.path_of_module(layer)
    return inp.tracer.create_proxy("call_module", target, (inp,), given)


def over_values(layer: "Linear", inp: torch.Tensor, *asked: Any) -> Any:  # noqa: ANN401
    """A jagged nested tensor: a linear layer acts on each of its rows."""
    if inp.layout is not torch.jagged:
        raise ValueError(
            f"{layer._label()}: input is a nested tensor of layout {inp.layout}; make it with "
            "layout=torch.jagged"
        )
    if inp._ragged_idx == inp.dim() - 1:
        raise ValueError(
            f"{layer._label()}: the last axis of the nested input is ragged; it must be "
            f"{layer.in_features}"
        )
    made = layer(inp.values(), *asked)
    y, *bias = made if isinstance(made, tuple) else (made,)
    nested = torch.nested.nested_tensor_from_jagged(
        y,
        offsets=inp.offsets(),
        lengths=inp.lengths(),
        jagged_dim=inp._ragged_idx,
        min_seqlen=inp._maybe_min_seqlen,
        max_seqlen=inp._maybe_max_seqlen,
    )
    return (nested, *bias) if bias else nested
