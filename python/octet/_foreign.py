"""What other libraries do to a layer: FX proxies, nested tensors, transformers' loader."""

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
    """Whether torch's pipeline stages infer shapes in a function of the known name; warns if
    not."""
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
    """Whether torch.distributed.pipelining is running a stage on uninitialized memory to learn
    its output shapes. Amaxes measured then would be garbage."""
    if _STAGES not in sys.modules or not _knows_stages():
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _STAGES and "infer" in frame.f_code.co_name:
            return True
        frame = frame.f_back
    return False


def traced_by_fx(layer: "Linear", inp: Any, *asked: Any) -> Any:  # noqa: ANN401
    """A call under torch.fx.symbolic_trace: the layer becomes a leaf, as nn.Linear does. None
    if the input is not a proxy."""
    if not isinstance(inp, torch.fx.Proxy):
        return None
    names = ("is_first_microbatch", "fp8_output", "fp8_grad")
    given = {
        n: v for n, v in zip(names, asked, strict=True) if v is not None and v is not False
    }
    target = inp.tracer.path_of_module(layer)
    return inp.tracer.create_proxy("call_module", target, (inp,), given)


def over_values(layer: "Linear", inp: torch.Tensor, *asked: Any) -> Any:  # noqa: ANN401
    """A call with a jagged nested tensor: the layer runs on its values."""
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

    def nested(values: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(
            values,
            offsets=inp.offsets(),
            lengths=inp.lengths(),
            jagged_dim=inp._ragged_idx,
            min_seqlen=inp._maybe_min_seqlen,
            max_seqlen=inp._maybe_max_seqlen,
        )

    if not isinstance(made, tuple):
        return nested(made)
    y, *others = made
    if getattr(layer, "return_layernorm_output", False):  # the last, of the same rows
        others[-1] = nested(others[-1])
    return (nested(y), *others)


# ---- transformers ----------------------------------------------------------------------------

# What transformers sets on a module once it has initialized it, and on a parameter once it has
# loaded it.
INITIALIZED = "_is_hf_initialized"


def _is_left(parameter: Any) -> bool:  # noqa: ANN401
    """Whether transformers has not loaded a parameter."""
    plain = type(parameter) is torch.nn.Parameter and not parameter.is_meta
    return plain and not getattr(parameter, INITIALIZED, False)


def _knows_parameters() -> bool:
    """Whether this transformers marks what it has loaded; before version 5 none does."""
    return "transformers.initialization" in sys.modules


def is_ones(parameter: Any) -> bool:  # noqa: ANN401
    """Whether transformers has set a parameter to 1, as the weight of a norm."""
    return _knows_parameters() and _is_left(parameter) and bool((parameter == 1).all())


def draw_what_is_left(layer: Any) -> None:  # noqa: ANN401
    """Draws the parameters that transformers says it has initialized, but has not.

    It knows an nn.Linear, and by their names norms. Of other layers, what a checkpoint lacks is
    left as uninitialized memory. And it takes every class with LayerNorm in its name for a norm
    and sets its weight to 1."""
    if not _knows_parameters():
        return
    held = layer._parameters
    left = {name for name in layer._given_memory if _is_left(held.get(name))}
    left = {name for name in left if held[name]._version == 0}
    if "LayerNorm" in type(layer).__name__ and is_ones(held.get("weight")):
        left |= {name for name in ("weight", "bias") if _is_left(held.get(name))}
    if left:
        with torch.no_grad():
            layer._reset_some(left)
