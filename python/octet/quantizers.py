"""Quantizers: how a tensor becomes bytes. Each is a class around a text of the C core."""

from typing import TYPE_CHECKING, Any

import torch
from octet import _ops, _options, _texts
from octet._dtypes import DType, dtype_name, format_name
from octet._opaque import refuse_process_group, register_value_opaque_quantizer
from octet._quantizer import Quantizer, before_write, put_back

if TYPE_CHECKING:
    from octet.tensor import QuantizedTensor


def _refuse_reduction(name: str, with_amax_reduction: bool) -> None:
    if with_amax_reduction:
        raise NotImplementedError(
            f"{name}(with_amax_reduction=True): amaxes are not reduced over process groups"
        )


def _seed(text: str, device: torch.device) -> list[torch.Tensor]:
    """The seed for one stochastic quantize, from torch's generator."""
    if not _texts.is_stochastic(text):
        return []
    return [torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device)]


class _Value(Quantizer):
    """A quantizer whose value is its text. A subclass may add attributes; equality then
    includes them."""

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
        """Raises if a subclass holds more than its text: the text alone must rebuild the
        quantizer."""
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
    with_amax_reduction = _options.NO_REDUCTION
    force_pow_2_scales = _options.POW2
    amax_epsilon = _options.EPSILON

    def __init__(
        self,
        fp8_dtype: object,
        device: torch.device | str | None = None,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        use_existing_amax: bool = False,
        with_amax_reduction: bool = False,
        amax_reduction_group: object = None,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
        scale: torch.Tensor | None = None,
        amax: torch.Tensor | None = None,
    ) -> None:
        # device, scale and amax are accepted for TransformerEngine's sake and not used.
        del device, scale, amax
        _refuse_reduction(type(self).__name__, with_amax_reduction)
        if use_existing_amax:
            raise NotImplementedError(
                f"{type(self).__name__}(use_existing_amax=True): the amax is the tensor's own; "
                "octet.Float8Quantizer quantizes by a scale that you keep"
            )
        fields = {
            "format": format_name(fp8_dtype),
            "rowwise": rowwise,
            "columnwise": columnwise,
            "pow2": force_pow_2_scales,
            "epsilon": amax_epsilon,
        }
        super().__init__(_texts.quantizer("fp8-tensor:e4m3", **fields))
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

    block_len = _options.BLOCK_LEN
    block_scaling_dim = _options.BLOCK_DIM
    force_pow_2_scales = _options.POW2
    amax_epsilon = _options.EPSILON

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
        fields = {
            "format": format_name(fp8_dtype),
            "block_rows": {1: 1, 2: 128}[block_scaling_dim],
            "rowwise": rowwise,
            "columnwise": columnwise,
            "pow2": force_pow_2_scales,
            "epsilon": amax_epsilon,
        }
        super().__init__(_texts.quantizer("fp8-block:e4m3", **fields))


@register_value_opaque_quantizer
class MXFP8Quantizer(_Value):
    """FP8 with a power-of-two scale per 32 elements.

    >>> octet.MXFP8Quantizer("e4m3", columnwise=False)(torch.randn(4, 64)).dequantize().shape
    torch.Size([4, 64])
    """

    with_2d_quantization = _options.square(32)

    def __init__(
        self,
        fp8_dtype: object,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        fields = {
            "format": format_name(fp8_dtype),
            "block_rows": 32 if with_2d_quantization else 1,
            "rowwise": rowwise,
            "columnwise": columnwise,
        }
        super().__init__(_texts.quantizer("mxfp8:e4m3", **fields))


def _transform(with_rht: bool, with_random_sign_mask: bool) -> str:
    """The C core's word for a Hadamard transform, or "none"."""
    if not with_rht:
        return "none"
    return "signed" if with_random_sign_mask else "plain"


@register_value_opaque_quantizer
class NVFP4Quantizer(_Value):
    """FP4 with an E4M3 scale per 16 elements under one fp32 amax.

    Stochastic rounding takes its seed from the caller: ``q.quantize(x)`` draws one from torch's
    default generator.

    >>> octet.NVFP4Quantizer(with_rht=True)
    NVFP4Quantizer('nvfp4:e2m1/1x16+row+col+rht')
    """

    amax_reduction_group: object = None
    with_amax_reduction = _options.NO_REDUCTION
    with_rht = _options.RHT
    with_post_rht_amax = _options.POST_RHT_AMAX
    with_2d_quantization = _options.square(16)
    stochastic_rounding = _options.STOCHASTIC
    row_scaled_nvfp4 = _options.ROW_SCALED
    nvfp4_use_4over6 = _options.FOUR_OVER_SIX
    nvfp4_e4m3_max = _options.E4M3_MAX
    nvfp4_4over6_err_mode = _options.ERROR_MODE
    with_random_sign_mask = _options.SIGNS

    def __init__(
        self,
        fp4_dtype: object = DType.kFloat4E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        with_amax_reduction: bool = False,
        amax_reduction_group: object = None,
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
        _refuse_reduction(type(self).__name__, with_amax_reduction)
        if nvfp4_e4m3_max not in (256, 448):
            raise ValueError(f"nvfp4_e4m3_max is {nvfp4_e4m3_max}; it is 256 or 448")
        if nvfp4_4over6_err_mode.upper() not in ("MAE", "MSE"):
            raise ValueError(
                f"nvfp4_4over6_err_mode is {nvfp4_4over6_err_mode!r}; it is 'MAE' or 'MSE'"
            )
        # the amax of transformed columns is always computed after the transform
        del with_post_rht_amax
        fields = {
            "format": format_name(fp4_dtype),
            "block_rows": 16 if with_2d_quantization else 1,
            "rowwise": rowwise,
            "columnwise": columnwise,
            "hadamard": _transform(with_rht, with_random_sign_mask),
            "stochastic": stochastic_rounding,
            "row_scaled": row_scaled_nvfp4,
            "four_over_six": nvfp4_4over6_err_mode.lower() if nvfp4_use_4over6 else "none",
            "max256": nvfp4_use_4over6 and nvfp4_e4m3_max == 256,
        }
        super().__init__(_texts.quantizer("nvfp4:e2m1", **fields))
        if amax_reduction_group is not None:
            self.amax_reduction_group = amax_reduction_group

    def _live(self, device: torch.device) -> list[torch.Tensor]:
        if getattr(self, "amax_reduction_group", None) is not None:
            refuse_process_group(self)
        return _seed(self.text, device)


@register_value_opaque_quantizer
class MXFP4Quantizer(_Value):
    """FP4 with a power-of-two scale per 32 elements.

    Stochastic rounding takes its seed from the caller: ``q.quantize(x)`` draws one from torch's
    default generator.

    >>> octet.MXFP4Quantizer(with_2d_quantization=True)
    MXFP4Quantizer('mxfp4:e2m1/32x32+row+col')
    """

    with_rht = _options.RHT
    with_2d_quantization = _options.square(32)
    stochastic_rounding = _options.STOCHASTIC
    with_random_sign_mask = _options.SIGNS

    def __init__(
        self,
        fp4_dtype: object = DType.kFloat4E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        with_rht: bool = False,
        with_2d_quantization: bool = False,
        stochastic_rounding: bool = False,
        with_random_sign_mask: bool = True,
    ) -> None:
        fields = {
            "format": format_name(fp4_dtype),
            "block_rows": 32 if with_2d_quantization else 1,
            "rowwise": rowwise,
            "columnwise": columnwise,
            "hadamard": _transform(with_rht, with_random_sign_mask),
            "stochastic": stochastic_rounding,
        }
        super().__init__(_texts.quantizer("mxfp4:e2m1", **fields))

    def _live(self, device: torch.device) -> list[torch.Tensor]:
        return _seed(self.text, device)


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
        fields = {
            "format": format_name(fp8_dtype),
            "rowwise": rowwise,
            "columnwise": columnwise,
        }
        super().__init__(_texts.quantizer("fp8-delayed:e4m3", **fields))
        self.scale, self.amax = scale, amax

    def quantize_impl(self, tensor: torch.Tensor) -> "QuantizedTensor":
        """Quantizes by ``scale`` and raises ``amax``."""
        from octet.tensor import QuantizedTensor

        text = _texts.tensor_words(dtype_name(tensor.dtype), self.text)
        with torch.no_grad():
            *buffers, amax = _ops.quantize(tensor.detach(), [self.scale.reshape(1)], text)
            self.amax.copy_(torch.maximum(self.amax, amax.reshape(self.amax.shape)))
        return QuantizedTensor(buffers, self.text, tensor.dtype, tensor.shape)

    def update_quantized(
        self,
        src: torch.Tensor,
        dst: "QuantizedTensor",
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> "QuantizedTensor":
        """As in every quantizer. If the flag is not zero, ``amax`` stays as it is, too."""
        if noop_flag is None:
            return self.quantize(src, out=dst)
        before = before_write(noop_flag, [self.amax])
        super().update_quantized(src, dst, noop_flag=noop_flag)
        put_back(noop_flag, [self.amax], before)
        return dst

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Raises ``amax`` to the tensor's."""
        self.quantize_impl(tensor)


_CLASSES: dict[str, type[Quantizer]] = {
    "fp8-tensor": Float8CurrentScalingQuantizer,
    "fp8-block": Float8BlockQuantizer,
    "mxfp8": MXFP8Quantizer,
    "nvfp4": NVFP4Quantizer,
    "mxfp4": MXFP4Quantizer,
}


def from_text(text: str) -> Quantizer | None:
    """The quantizer of a text; None for "none".

    >>> octet.quantizers.from_text("mxfp8:e4m3+row")
    MXFP8Quantizer('mxfp8:e4m3/1x32+row')
    """
    scheme = _texts.scheme(text)
    if scheme == "none":
        return None
    return _CLASSES.get(scheme, Quantizer)._of(text)
