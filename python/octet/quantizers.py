"""Quantizers: how a tensor becomes bytes. Each is a text of the C core in a class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from octet import _ops, _texts
from octet._dtypes import DType, dtype_name, format_name
from octet._opaque import (
    QuantizerMeta,
    refuse_process_group,
    register_value_opaque_quantizer,
)

if TYPE_CHECKING:
    from octet.tensor import QuantizedTensor

_DTYPES = {member.value: member for member in DType}


def _check_out(text: str, out: "QuantizedTensor") -> None:
    """What a quantizer writes into is of its own kind, in one direction or both."""
    found = getattr(out, "_text", None)
    if found is None:
        raise TypeError(f"out is a {type(out).__name__}; it is a QuantizedTensor of {text}")
    if _texts.kind(found) != _texts.kind(text):
        raise ValueError(
            f"out is {found}, the quantizer {text}: make one by its make_empty, or write "
            "out.quantize_(x), which quantizes as out is"
        )


class Quantizer(metaclass=QuantizerMeta):
    """The base of every quantizer. Callable: ``q(x)`` is the quantized tensor.

    Octet's own are their ``text``. Yours is a subclass with a ``quantize`` of its own, which
    returns a tensor of the same shape and dtype: a QuantizedTensor, or a plain one (fake
    quantization). A CustomRecipe's factory may answer with it for any role; torch.compile
    traces it. Two of them are equal only if they are the same object, unless the class
    registers with ``register_value_opaque_quantizer``.

    >>> class Rounded(octet.Quantizer):
    ...     def quantize(self, tensor, *, out=None):
    ...         return (tensor * 16).round() / 16
    >>> recipe = octet.recipe.CustomRecipe(lambda role: Rounded())
    """

    text: str = "none"

    _is_core = True  # its bytes are the C core's, from its text alone
    _is_value = False  # set by register_value_opaque_quantizer, not inherited

    def __init_subclass__(cls) -> None:
        cls._is_core = cls._is_core and "quantize" not in vars(cls)
        cls._is_value = False

    def __init__(self, text: str = "none") -> None:
        self.text = _texts.canonical(text)

    @classmethod
    def _of(cls, text: str) -> "Quantizer":
        quantizer = cls.__new__(cls)
        Quantizer.__init__(quantizer, text)
        return quantizer

    # ---- what it is ------------------------------------------------------------------------

    @property
    def dtype(self) -> DType | None:
        """The element format; None where the text names none."""
        return _DTYPES.get(_texts.element_format(self.text))

    @property
    def rowwise_usage(self) -> bool:
        """Whether it makes rowwise bytes."""
        return _texts.usages(self.text)[0]

    @property
    def columnwise_usage(self) -> bool:
        """Whether it makes columnwise bytes."""
        return _texts.usages(self.text)[1]

    def get_usages(self) -> dict[str, bool]:
        """Which bytes it makes: ``{"rowwise": True, "columnwise": False}``."""
        return {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Replaces this quantizer's own value; copies held elsewhere keep theirs."""
        self.text = _texts.with_usage(self.text, rowwise, columnwise)

    def copy(self) -> "Quantizer":
        """Another quantizer of the same value."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    # ---- what it does ----------------------------------------------------------------------

    def _live(self, device: torch.device) -> list[torch.Tensor]:
        """The tensors that quantizing on a device reads besides the input."""
        if _texts.scheme(self.text) == "fp8-delayed":
            raise ValueError(
                f"{self!r} has no scale to quantize by: an octet.Float8Quantizer holds one"
            )
        return []

    def __call__(self, tensor: torch.Tensor) -> "QuantizedTensor":
        """The quantized tensor."""
        return self.quantize(tensor)

    def quantize(
        self, tensor: torch.Tensor, *, out: "QuantizedTensor | None" = None
    ) -> "QuantizedTensor":
        """The quantized tensor, in memory of its own or in ``out``'s."""
        from octet.tensor import quantize, quantize_into

        if out is not None:
            _check_out(self.text, out)
            return quantize_into(out, tensor, self._live(tensor.device))
        return quantize(self.text, tensor, self._live(tensor.device))

    def update_quantized(
        self, tensor: torch.Tensor, out: "QuantizedTensor"
    ) -> "QuantizedTensor":
        """Quantizes into a quantized tensor."""
        return self.quantize(tensor, out=out)

    def make_empty(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
    ) -> "QuantizedTensor":
        """A quantized tensor whose bytes are not written yet."""
        from octet.proto import TensorProto

        made = TensorProto(shape, dtype, self, device=device).create_tensor()
        return made.requires_grad_(requires_grad)

    # ---- a value ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.text == 'none' else repr(self.text)})"


class _Value(Quantizer):
    """A quantizer that is its text; a subclass may keep more, and is equal by all it keeps."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, _Value):
            return NotImplemented
        refuse_process_group(self)
        refuse_process_group(other)
        return vars(self) == vars(other) if self._is_value else self is other

    def __hash__(self) -> int:
        refuse_process_group(self)
        if not self._is_value:
            return id(self)
        return hash((type(self).__qualname__, self.text))

    def __fx_repr__(self) -> tuple[str, dict[str, type]]:
        refuse_process_group(self)
        self._refuse_more()
        name = type(self).__name__
        return f"{name}._of({self.text!r})", {name: type(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        refuse_process_group(self)
        made = type(self)._of, (self.text,)
        return made if vars(self).keys() == {"text"} else (*made, vars(self))

    def _refuse_more(self) -> None:
        """Text alone rebuilds a quantizer that is its text alone."""
        more = vars(self).keys() - {"text"}
        if more:
            name = type(self).__name__
            raise TypeError(
                f"{name} keeps {min(more)} besides its text: write a __fx_repr__ of its own "
                "that rebuilds it, too"
            )


@register_value_opaque_quantizer
class Float8CurrentScalingQuantizer(_Value):
    """FP8 with one scale per tensor, from the tensor's own amax.

    >>> octet.Float8CurrentScalingQuantizer(octet.DType.kFloat8E5M2, columnwise=False)
    Float8CurrentScalingQuantizer('fp8-tensor:e5m2+row')
    """

    amax_reduction_group: object = None

    def __init__(
        self,
        fp8_dtype: object,
        device: torch.device | str | None = None,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        amax_reduction_group: object = None,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
    ) -> None:
        del device  # bytes are made where the tensor is
        fields = {
            "rowwise": rowwise,
            "columnwise": columnwise,
            "pow2": force_pow_2_scales,
            "epsilon": amax_epsilon,
        }
        super().__init__(_texts.quantizer(f"fp8-tensor:{format_name(fp8_dtype)}", **fields))
        if amax_reduction_group is not None:
            self.amax_reduction_group = amax_reduction_group

    def _live(self, device: torch.device) -> list[torch.Tensor]:
        refuse_process_group(self)
        return []


@register_value_opaque_quantizer
class Float8BlockQuantizer(_Value):
    """FP8 with an fp32 scale per 1x128 or 128x128 block.

    >>> octet.Float8BlockQuantizer("e4m3", block_scaling_dim=1)
    Float8BlockQuantizer('fp8-block:e4m3/1x128+row+col')
    """

    def __init__(
        self,
        fp8_dtype: object,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ) -> None:
        if block_scaling_dim not in (1, 2):
            raise ValueError(f"block_scaling_dim is {block_scaling_dim}; it is 1 or 2")
        block = {1: "1x128", 2: "128x128"}[block_scaling_dim]
        fields = {
            "rowwise": rowwise,
            "columnwise": columnwise,
            "pow2": force_pow_2_scales,
            "epsilon": amax_epsilon,
        }
        text = f"fp8-block:{format_name(fp8_dtype)}/{block}"
        super().__init__(_texts.quantizer(text, **fields))


@register_value_opaque_quantizer
class MXFP8Quantizer(_Value):
    """FP8 with a power-of-two scale per 32 elements.

    >>> octet.MXFP8Quantizer("e4m3", columnwise=False)(torch.randn(4, 64)).dequantize().shape
    torch.Size([4, 64])
    """

    def __init__(
        self,
        fp8_dtype: object,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        block = "32x32" if with_2d_quantization else "1x32"
        fields = {"rowwise": rowwise, "columnwise": columnwise}
        text = f"mxfp8:{format_name(fp8_dtype)}/{block}"
        super().__init__(_texts.quantizer(text, **fields))


@register_value_opaque_quantizer
class NVFP4Quantizer(_Value):
    """FP4 with an E4M3 scale per 16 elements under one fp32 amax.

    Stochastic rounding takes its seed from the caller: ``q.quantize(x)`` draws one from torch's
    default generator.

    >>> octet.NVFP4Quantizer(with_rht=True)
    NVFP4Quantizer('nvfp4:e2m1/1x16+row+col+rht')
    """

    def __init__(
        self,
        fp4_dtype: object = DType.kFloat4E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        with_rht: bool = False,
        with_post_rht_amax: bool = False,
        with_2d_quantization: bool = False,
        stochastic_rounding: bool = False,
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = 448,
        nvfp4_4over6_err_mode: str = "MAE",
        with_random_sign_mask: bool = True,
    ) -> None:
        if nvfp4_e4m3_max not in (256, 448):
            raise ValueError(f"nvfp4_e4m3_max is {nvfp4_e4m3_max}; it is 256 or 448")
        del with_post_rht_amax  # the amax of transformed columns is always their own
        transform = "signed" if with_random_sign_mask else "plain"
        fields = {
            "rowwise": rowwise,
            "columnwise": columnwise,
            "hadamard": transform if with_rht else "none",
            "stochastic": stochastic_rounding,
            "row_scaled": row_scaled_nvfp4,
            "four_over_six": nvfp4_4over6_err_mode.lower() if nvfp4_use_4over6 else "none",
            "max256": nvfp4_e4m3_max == 256,
        }
        block = "16x16" if with_2d_quantization else "1x16"
        text = f"nvfp4:{format_name(fp4_dtype)}/{block}"
        super().__init__(_texts.quantizer(text, **fields))

    def _live(self, device: torch.device) -> list[torch.Tensor]:
        if not _texts.is_stochastic(self.text):
            return []
        return [torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device)]


class Float8Quantizer(Quantizer):
    """FP8 with one scale per tensor that the caller keeps: delayed scaling.

    It holds live tensors, so it is no value: two of them are equal only if they are the same.
    Quantizing reads ``scale`` and raises ``amax`` to the tensor's.

    >>> octet.Float8Quantizer(torch.ones(1), torch.zeros(1), "e4m3")
    Float8Quantizer('fp8-delayed:e4m3+row+col')
    """

    def __init__(
        self,
        scale: torch.Tensor,
        amax: torch.Tensor,
        fp8_dtype: object,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        fields = {"rowwise": rowwise, "columnwise": columnwise}
        text = f"fp8-delayed:{format_name(fp8_dtype)}"
        super().__init__(_texts.quantizer(text, **fields))
        self.scale, self.amax = scale, amax

    def quantize(
        self, tensor: torch.Tensor, *, out: "QuantizedTensor | None" = None
    ) -> "QuantizedTensor":
        """Quantizes by ``scale`` and raises ``amax``."""
        from octet.tensor import QuantizedTensor, quantize_into, straight_through

        if out is not None:
            _check_out(self.text, out)
        text = f"{dtype_name(tensor.dtype)} {self.text}"
        with torch.no_grad():
            *buffers, amax = _ops.quantize(tensor.detach(), [self.scale.reshape(1)], text)
            self.amax.copy_(torch.maximum(self.amax, amax.reshape(self.amax.shape)))
        made = QuantizedTensor(buffers, self.text, tensor.dtype, tensor.shape)
        return straight_through(tensor, made) if out is None else quantize_into(out, made)


_CLASSES: dict[str, type[Quantizer]] = {
    "fp8-tensor": Float8CurrentScalingQuantizer,
    "fp8-block": Float8BlockQuantizer,
    "mxfp8": MXFP8Quantizer,
    "nvfp4": NVFP4Quantizer,
}


def from_text(text: str) -> Quantizer | None:
    """The quantizer that a text means; None for "none".

    >>> octet.quantizers.from_text("mxfp8:e4m3+row")
    MXFP8Quantizer('mxfp8:e4m3/1x32+row')
    """
    scheme = _texts.scheme(text)
    if scheme == "none":
        return None
    return _CLASSES.get(scheme, Quantizer)._of(text)
