"""What a layer does to its input before the product, and the same by torch's own functions."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch.nn import functional

import torch
from octet._signatures import Options, input_factor

NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}  # TransformerEngine's word: the plan's


class Prologue(NamedTuple):
    """A function of a layer's input, as the C core knows it."""

    word: str
    eps: float = 0.0
    zero_centered: bool = False
    vectors: tuple[str, ...] = ()  # the names of its parameters: gamma, and beta where it has

    @property
    def options(self) -> Options:
        """What the C core is told of it."""
        found: Options = (("prologue", self.word),)
        if self.vectors:
            found += (("eps", self.eps),)
        return (*found, ("zero_centered", True)) if self.zero_centered else found

    @property
    def factor(self) -> int:
        """The input's columns for each of the weight's."""
        return 1 if self.vectors else input_factor(self.word)


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the precision that functions are computed in."""
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
