"""TensorProto: everything a tensor can be asked without its data."""

from collections.abc import Sequence
from typing import Any

import torch
from octet import _plans, _texts
from octet._dtypes import TORCH_DTYPES, dtype_name
from octet.quantizers import Quantizer, from_text
from octet.tensor import QuantizedTensor


class TensorProto:
    """A description of a tensor without data: shape, dtype, device, requires_grad, and a
    quantizer or None.

    >>> proto = octet.TensorProto((4, 64), torch.bfloat16, octet.MXFP8Quantizer("e4m3"))
    >>> proto.inner_names()[0]
    '_rowwise_data'
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        quantizer: Quantizer | None = None,
        requires_grad: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        plain = quantizer is None or quantizer.text == "none"
        self._text = None if plain else quantizer.text
        if not plain:
            dtype_name(dtype)  # raises for dtypes that cannot be quantized
        self.requires_grad = requires_grad
        self._device = device

    @property
    def is_quantized(self) -> bool:
        """Whether the tensor is stored quantized."""
        return self._text is not None

    @property
    def device(self) -> torch.device:
        """The device; torch's default device if none was given."""
        return (
            torch.get_default_device() if self._device is None else torch.device(self._device)
        )

    @property
    def quantizer(self) -> Quantizer | None:
        """A copy of the quantizer."""
        return None if self._text is None else from_text(self._text)

    def inner_names(self) -> list[str]:
        """The names of the buffers in flatten order; none for a plain tensor."""
        return [] if self._text is None else [row[0] for row in _texts.layout(self._text)]

    def to(self, dtype: torch.dtype) -> "TensorProto":
        """The same tensor in another dtype."""
        return TensorProto(self.shape, dtype, self.quantizer, self.requires_grad, self._device)

    def create_metadata(self) -> tuple[str, torch.dtype]:
        """What ``__tensor_unflatten__`` takes besides the buffers."""
        if self._text is None:
            raise ValueError("a plain tensor has no buffers to make it from")
        return self._text, self.dtype

    def create_tensor(self) -> torch.Tensor:
        """A tensor like this, uninitialized; traceable."""
        if self._text is None:
            return torch.empty(
                self.shape,
                dtype=self.dtype,
                device=self._device,
                requires_grad=self.requires_grad,
            )
        at = _plans.axes("dequantize", self.shape)
        buffers = [
            torch.empty(_plans.shape(dims, at), dtype=TORCH_DTYPES[dtype], device=self._device)
            for _, _, dtype, dims in _texts.layout(self._text)
        ]
        made = QuantizedTensor(buffers, self._text, self.dtype, self.shape)
        return made.requires_grad_() if self.requires_grad else made

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Changes which bytes the tensor has; the quantizer it was made from does not
        change."""
        if self._text is None:
            raise ValueError("a plain tensor has no usages")
        self._text = _texts.with_usage(self._text, rowwise_usage, columnwise_usage)

    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.dtype, self._text, self.requires_grad, self.device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorProto) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        quantizer = f", {self._text!r}" if self._text else ""
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"TensorProto({self.shape}, {self.dtype}{quantizer}{grad}, device={self.device})"


def to_tensor_proto(tensor: torch.Tensor) -> TensorProto:
    """The description of a tensor, without its data.

    >>> octet.to_tensor_proto(torch.zeros(2, 3))
    TensorProto((2, 3), torch.float32, device=cpu)
    """
    quantizer = tensor.quantizer if isinstance(tensor, QuantizedTensor) else None
    return TensorProto(
        tensor.shape, tensor.dtype, quantizer, tensor.requires_grad, tensor.device
    )
