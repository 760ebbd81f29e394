"""RMSNorm and LayerNorm by themselves, with TransformerEngine's arguments."""

from collections.abc import Iterable
from typing import Any

import torch
from octet import _foreign
from octet._dtypes import HIGH_PRECISION
from octet._parameters import default_device
from octet._prologue import NORMS, Prologue, normalized


def check_eps(label: str, eps: float) -> None:
    """Raises unless eps is a number above 0."""
    if not isinstance(eps, int | float) or isinstance(eps, bool) or not eps > 0:
        raise ValueError(f"{label}: eps is {eps!r}; it is a number above 0")


class _Norm(torch.nn.Module):
    """A norm of the last axes, computed in float32 and rounded once to the input's dtype."""

    _kind: str
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        normalized_shape: Iterable[int] | int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        label = f"octet.{self._kind}"
        given = hidden_size if normalized_shape is None else normalized_shape
        if given is None or (normalized_shape is not None and hidden_size is not None):
            raise ValueError(f"{label}: give normalized_shape, or hidden_size, one of the two")
        if params_dtype is not None and dtype is not None and params_dtype != dtype:
            raise ValueError(
                f"{label}: params_dtype is {params_dtype}, but dtype {dtype}; give one"
            )
        check_eps(label, eps)
        dtype = params_dtype or dtype or torch.get_default_dtype()
        if dtype not in HIGH_PRECISION:
            raise ValueError(
                f"{label}: params_dtype is {dtype}; it is float32, bfloat16 or float16"
            )
        self.normalized_shape = (given,) if isinstance(given, int) else tuple(given)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        device = default_device(device)
        for name in ("weight", "bias"):
            made = torch.empty(self.normalized_shape, dtype=dtype, device=device)
            has = name == "weight" or self._kind == "LayerNorm"
            self.register_parameter(name, torch.nn.Parameter(made) if has else None)
            if has and sequence_parallel is not None:
                getattr(self, name).sequence_parallel = sequence_parallel
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1, or with zero_centered_gamma to 0, and the bias to 0."""
        with torch.no_grad():
            self.weight.fill_(0.0 if self.zero_centered_gamma else 1.0)
            if self.bias is not None:
                self.bias.zero_()

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Sets an attribute. transformers sets the weight of every norm to 1; one that is
        centered at zero begins with 0."""
        super().__setattr__(name, value)
        is_told = name == _foreign.INITIALIZED and value
        if is_told and self.zero_centered_gamma and _foreign.is_ones(self.weight):
            self.reset_parameters()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The norm of the last axes of the input."""
        shape = self.normalized_shape
        if tuple(input.shape[max(0, input.dim() - len(shape)) :]) != shape:
            raise ValueError(
                f"octet.{self._kind}({shape}): input is {tuple(input.shape)}; its last axes "
                f"must be {shape}"
            )
        held = (self.weight,) if self.bias is None else (self.weight, self.bias)
        word = NORMS[self._kind]
        return normalized(input, Prologue(word, self.eps, self.zero_centered_gamma), held)

    def extra_repr(self) -> str:
        """What print shows."""
        zero = ", zero_centered_gamma=True" if self.zero_centered_gamma else ""
        return f"{self.normalized_shape}, eps={self.eps}{zero}"


class RMSNorm(_Norm):
    """x / sqrt(mean(x^2) + eps) * weight, or * (1 + weight) with ``zero_centered_gamma``.

    >>> octet.RMSNorm(64, device="cpu")(torch.ones(2, 64)).shape
    torch.Size([2, 64])
    """

    _kind = "RMSNorm"


class LayerNorm(_Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias; with ``zero_centered_gamma`` it
    multiplies by 1 + weight.

    >>> octet.LayerNorm(64, device="cpu")(torch.ones(2, 64)).abs().max()
    tensor(0., grad_fn=<MaxBackward1>)
    """

    _kind = "LayerNorm"
