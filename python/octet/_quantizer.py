"""The base class of all quantizers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from octet import _texts
from octet._dtypes import DType, format_name
from octet._opaque import QuantizerMeta

if TYPE_CHECKING:
    from octet.tensor import QuantizedTensor

_DTYPES = {member.value: member for member in DType}


def check_out(text: str, out: "QuantizedTensor") -> None:
    """Checks that ``out`` is a tensor of this quantizer's kind."""
    found = getattr(out, "_text", None)
    if found is None:
        raise TypeError(f"out is a {type(out).__name__}; it is a QuantizedTensor of {text}")
    if _texts.kind(found) != _texts.kind(text):
        raise ValueError(
            f"out is {found}, the quantizer {text}: make one by its make_empty, or write "
            "out.quantize_(x), which quantizes as out is"
        )


def check_dtype(out: "QuantizedTensor", dtype: torch.dtype | None) -> None:
    """Checks that ``out`` has the dtype that is asked for."""
    if dtype is not None and dtype != out.dtype:
        raise ValueError(f"dtype is {dtype}, but out is a tensor of {out.dtype}")


def of_dtype(made: "QuantizedTensor", dtype: torch.dtype) -> "QuantizedTensor":
    """The same bytes with another high-precision dtype."""
    from octet.tensor import as_dtype

    return as_dtype(made, dtype)


def before_write(
    noop_flag: torch.Tensor, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Copies of the buffers that a write may have to restore; see put_back."""
    if noop_flag.numel() != 1:
        raise ValueError(f"noop_flag is {tuple(noop_flag.shape)}; it has one element")
    with torch.no_grad():
        return [tensor.clone() for tensor in tensors]


def put_back(
    noop_flag: torch.Tensor, tensors: Sequence[torch.Tensor], before: list[torch.Tensor]
) -> None:
    """Undoes a write if the flag is not zero. The device decides; the host does not wait."""
    with torch.no_grad():
        for tensor, old in zip(tensors, before, strict=True):
            flag = noop_flag.detach().to(tensor.device, non_blocking=True).reshape(())
            tensor.copy_(torch.where(flag != 0, old, tensor))


class Quantizer(metaclass=QuantizerMeta):
    """The base of every quantizer. Callable: ``q(x)`` is the quantized tensor.

    Octet's own are their ``text``. Yours is a subclass with a ``quantize`` of its own, or with
    a ``quantize_impl(tensor)``, which need not know of ``out`` and gradients. It returns a
    tensor of the same shape and dtype: a QuantizedTensor, or a plain one (fake quantization).

    A CustomRecipe's factory may answer with it for any role; torch.compile traces it. Two of
    them are equal only if they are the same object, unless the class registers with
    ``register_value_opaque_quantizer``. One without a text has the usages and the dtype that
    were set on it, for its own ``quantize`` to read.

    >>> class Rounded(octet.Quantizer):
    ...     def quantize(self, tensor, *, out=None):
    ...         return (tensor * 16).round() / 16
    >>> recipe = octet.recipe.CustomRecipe(lambda role: Rounded())
    """

    text: str = "none"

    _is_core = True  # the C core quantizes, from the text alone
    _has_impl = False  # the class has its own quantize_impl
    _is_value = False  # set by register_value_opaque_quantizer; not inherited

    def __init_subclass__(cls) -> None:
        own = vars(cls).keys() & {"quantize", "quantize_impl"}
        cls._is_core = cls._is_core and not own
        cls._has_impl = cls._has_impl or "quantize_impl" in own
        cls._is_value = False

    # Values set on a quantizer without a text.
    _own_usages: tuple[bool, bool] = (False, False)
    _own_dtype: Any = None

    def __init__(
        self,
        text: str = "none",
        *,
        rowwise: bool | None = None,
        columnwise: bool | None = None,
    ) -> None:
        self.text = _texts.canonical(text)
        if rowwise is not None or columnwise is not None:
            self.set_usage(rowwise=rowwise, columnwise=columnwise)

    @classmethod
    def _of(cls, text: str) -> "Quantizer":
        quantizer = cls.__new__(cls)
        Quantizer.__init__(quantizer, text)
        return quantizer

    # ---- what it is ------------------------------------------------------------------------

    @property
    def dtype(self) -> Any:  # noqa: ANN401
        """The element format; None where the text names none."""
        if self.text == "none":
            return self._own_dtype
        return _DTYPES.get(_texts.element_format(self.text))

    @dtype.setter
    def dtype(self, dtype: object) -> None:
        if self.text == "none":
            self._own_dtype = dtype
            return
        try:
            self.text = _texts.quantizer(self.text, format=format_name(dtype))
        except ValueError as error:
            raise AttributeError(f"{self!r}: dtype cannot become {dtype}: {error}") from None

    @property
    def rowwise_usage(self) -> bool:
        """Whether it makes rowwise bytes."""
        return self._usages()[0]

    @rowwise_usage.setter
    def rowwise_usage(self, usage: bool) -> None:
        self._assign_usage("rowwise", usage)

    @property
    def columnwise_usage(self) -> bool:
        """Whether it makes columnwise bytes."""
        return self._usages()[1]

    @columnwise_usage.setter
    def columnwise_usage(self, usage: bool) -> None:
        self._assign_usage("columnwise", usage)

    def _usages(self) -> tuple[bool, bool]:
        return self._own_usages if self.text == "none" else _texts.usages(self.text)

    def _assign_usage(self, name: str, usage: bool) -> None:
        try:
            self.set_usage(**{name: usage})
        except ValueError as error:
            raise AttributeError(
                f"{self!r}: {name}_usage cannot become {usage}: {error}; give both at once: "
                "set_usage(rowwise=..., columnwise=...)"
            ) from None

    @property
    def internal(self) -> bool:
        """False: every quantized tensor is a torch tensor. Assigning it changes nothing."""
        return False

    @internal.setter
    def internal(self, value: bool) -> None:
        del value

    @property
    def optimize_for_gemm(self) -> bool:
        """False: layers choose the layout. Assigning it changes nothing."""
        return False

    @optimize_for_gemm.setter
    def optimize_for_gemm(self, value: bool) -> None:
        del value

    def get_usages(self) -> dict[str, bool]:
        """Which bytes it makes: ``{"rowwise": True, "columnwise": False}``."""
        return {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Changes this quantizer; copies elsewhere keep their value."""
        if self.text != "none":
            self.text = _texts.with_usage(self.text, rowwise, columnwise)
            return
        row, col = self._own_usages
        self._own_usages = (
            row if rowwise is None else rowwise,
            col if columnwise is None else columnwise,
        )

    def copy(self) -> "Quantizer":
        """Another quantizer of the same value."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    # ---- what it does ----------------------------------------------------------------------

    def _live(self, device: torch.device) -> list[torch.Tensor]:
        """The tensors that quantizing reads besides the input."""
        if _texts.takes_scale(self.text):
            raise ValueError(
                f"{self!r} has no scale to quantize by: an octet.Float8Quantizer holds one"
            )
        return []

    def __call__(self, tensor: torch.Tensor) -> "QuantizedTensor":
        """The quantized tensor."""
        return self.quantize(tensor)

    def quantize(
        self,
        tensor: torch.Tensor,
        *,
        out: "QuantizedTensor | None" = None,
        dtype: torch.dtype | None = None,
    ) -> "QuantizedTensor":
        """The quantized tensor, in new memory or in ``out``'s. Its dtype is ``dtype``, by
        default the tensor's."""
        from octet.tensor import quantize, quantize_into, straight_through

        if out is not None:
            check_dtype(out, dtype)
            if self.text != "none":
                check_out(self.text, out)
        if self._has_impl:
            with torch.no_grad():
                made = self.quantize_impl(tensor.detach())
            if out is not None:
                return quantize_into(out, made)
            made = straight_through(tensor, made)
        elif out is not None:
            return quantize_into(out, tensor, self._live(tensor.device))
        else:
            made = quantize(self.text, tensor, self._live(tensor.device))
        return made if dtype is None else of_dtype(made, dtype)

    def quantize_impl(self, tensor: torch.Tensor) -> "QuantizedTensor":
        """Quantizes without a graph; a subclass may override it."""
        from octet.tensor import quantize

        return quantize(self.text, tensor, self._live(tensor.device))

    def update_quantized(
        self,
        src: torch.Tensor,
        dst: "QuantizedTensor",
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> "QuantizedTensor":
        """Quantizes into a quantized tensor. If the one element of ``noop_flag`` is not zero,
        that tensor stays as it is; the device reads the flag."""
        if noop_flag is None:
            return self.quantize(src, out=dst)
        buffers = dst.buffers()
        before = before_write(noop_flag, buffers)
        self.quantize(src, out=dst)
        put_back(noop_flag, buffers, before)
        return dst

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Measures a tensor without quantizing it. Does nothing unless the quantizer has a
        scale."""
        del tensor

    def make_empty(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> "QuantizedTensor":
        """A quantized tensor with uninitialized bytes."""
        from octet.proto import TensorProto
        from octet.tensor import QuantizedTensor

        made = TensorProto(shape, dtype, self, device=device).create_tensor()
        if pin_memory and isinstance(made, QuantizedTensor):
            buffers = [buffer.pin_memory() for buffer in made.buffers()]
            made = QuantizedTensor(buffers, self.text, dtype, made.shape)
        elif pin_memory:
            made = made.pin_memory()
        return made.requires_grad_(requires_grad)

    # ---- a value ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.text == 'none' else repr(self.text)})"
