"""The norm or activation before a product, and the same computed by torch's functions."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch.nn import functional

import torch
from octet._signatures import Options, input_factor

# TransformerEngine's name -> the plan's name
NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}


class Prologue(NamedTuple):
    """A norm or an activation, as the C core describes it."""

    word: str
    eps: float = 0.0
    zero_centered: bool = False
    vectors: tuple[str, ...] = ()  # names of its parameters: gamma, and beta if there is one

    @property
    def options(self) -> Options:
        """The options of a call with this prologue."""
        found: Options = (("prologue", self.word),)
        if self.vectors:
            found += (("eps", self.eps),)
        return (*found, ("zero_centered", True)) if self.zero_centered else found

    @property
    def factor(self) -> int:
        """Columns of the input for each column of the weight."""
        return 1 if self.vectors else input_factor(self.word)


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32 (float64 stays), the precision in which norms and activations are
    computed."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def normalized(
    x: torch.Tensor, prologue: Prologue, vectors: Sequence[torch.Tensor]
) -> torch.Tensor:
    """A norm by torch's functions, in float32, rounded once to the input's dtype."""
    wide = in_float32(x)
    gamma = vectors[0].to(wide.dtype)
    gamma = gamma + 1 if prologue.zero_centered else gamma
    shape = tuple(gamma.shape)
    if prologue.word == "rmsnorm":
        return functional.rms_norm(wide, shape, gamma, prologue.eps).to(x.dtype)
    beta = vectors[1].to(wide.dtype) if len(vectors) > 1 else None
    return functional.layer_norm(wide, shape, gamma, beta, prologue.eps).to(x.dtype)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def _qgelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def _srelu(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x) ** 2


_PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": _gelu,
    "qgelu": _qgelu,
    "relu": functional.relu,
    "srelu": _srelu,
    "silu": functional.silu,
}
_GATES = {
    "glu": torch.sigmoid,
    "geglu": _gelu,
    "qgeglu": _qgelu,
    "reglu": functional.relu,
    "sreglu": _srelu,
    "swiglu": functional.silu,
}
ACTIVATIONS = (*_PLAIN, *_GATES)


def activated(x: torch.Tensor, word: str) -> torch.Tensor:
    """An activation by torch's functions, computed in float32 and rounded once."""
    wide = in_float32(x)
    if word in _PLAIN:
        return _PLAIN[word](wide).to(x.dtype)
    gate, value = wide.chunk(2, -1)
    return (_GATES[word](gate) * value).to(x.dtype)


def applied(
    x: torch.Tensor, prologue: Prologue, vectors: Sequence[torch.Tensor]
) -> torch.Tensor:
    """A prologue by torch's functions."""
    return normalized(x, prologue, vectors) if vectors else activated(x, prologue.word)
