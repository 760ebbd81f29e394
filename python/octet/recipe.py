"""Recipes: which quantizer each role of a layer gets. Values: equal by content, hashable.

>>> octet.recipe.MXFP8BlockScaling()
MXFP8BlockScaling('mxfp8')
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octet import _C
from octet._constant import constant

if TYPE_CHECKING:
    import torch
    from octet.quantizers import Quantizer

__all__ = [
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "QuantizerRole",
    "Recipe",
]


class Format(enum.Enum):
    """Element formats of a recipe. HYBRID is E4M3 forward and E5M2 for gradients."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    HYBRID = "hybrid"
    E2M1 = "e2m1"


@dataclass(frozen=True)
class QParams:
    """How one group of tensors (inputs, weights or gradients) is quantized."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False

    def _fields(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("pow2", self.power_2_scale),
            ("epsilon", self.amax_epsilon),
            ("hadamard", "signed" if self.random_hadamard_transform else "none"),
            ("stochastic", self.stochastic_rounding),
            ("two_d", self.fp4_2d_quantization),
        )


@dataclass(frozen=True)
class MMParams:
    """How one product accumulates."""

    use_split_accumulator: bool = True


def _word(params: MMParams | None, split: bool = True) -> str:
    """How a product accumulates; None is the recipe's own way."""
    split = split if params is None else params.use_split_accumulator
    return "split" if split else "fast"


@dataclass(frozen=True)
class QuantizerRole:
    """Who asks a custom recipe for a quantizer."""

    module_type: str = ""
    tensor_type: str = ""
    name: str = ""


Fields = tuple[tuple[str, Any], ...]


def _check_params(recipe: "Recipe", bits: str) -> None:
    """Groups of fields are what they are called; by names, which every torch can trace."""
    for kind, names in (
        (QParams, ("quant_fwd_inp", "quant_fwd_weight", "quant_bwd_grad")),
        (MMParams, ("gemm_fprop", "gemm_dgrad", "gemm_wgrad")),
    ):
        for short in names:
            name = f"{bits}_{short}"
            value = getattr(recipe, name, None)
            if value is not None and not isinstance(value, kind):
                raise TypeError(
                    f"octet.recipe.{type(recipe).__name__}: {name} is {value!r}; it is a "
                    f"{kind.__name__} or None"
                )


_CLASSES = {
    "delayed": "DelayedScaling",
    "current": "Float8CurrentScaling",
    "block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
    "nvfp4": "NVFP4BlockScaling",
}


@constant
def _text(kind: str, fields: Fields) -> str:
    """The recipe of that kind with these fields; groups are tuples of fields themselves."""
    named = {name: dict(value) if isinstance(value, tuple) else value for name, value in fields}
    try:
        return _C.make("recipe", kind, named)
    except (TypeError, ValueError) as error:
        raise type(error)(f"octet.recipe.{_CLASSES[kind]}: {error}") from None


def _format(value: Format) -> tuple[str, str]:
    if not isinstance(value, Format):
        raise TypeError(f"fp8_format is {value!r}; it is a Format, such as Format.HYBRID")
    return "format", value.value


class Recipe:
    """The base of every recipe. ``text`` is its one-line form in the C core's grammar."""

    text: str

    def _set(self, kind: str, fields: Fields) -> None:
        object.__setattr__(self, "text", _text(kind, fields))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def delayed(self) -> bool:
        """Delayed scaling: its scales are state that the layer keeps."""
        return isinstance(self, DelayedScaling)


def _override(backward_override: str | None) -> tuple[str, str]:
    return "override_", backward_override or "none"


@dataclass(frozen=True, repr=False)
class DelayedScaling(Recipe):
    """FP8 with scales from the amaxes of earlier steps.

    ``amax_compute_algo(history)`` may be a function: it gets the history (rows, slots), the
    newest amaxes first, and returns an amax a slot. ``scaling_factor_compute_algo(amax, scale,
    fp8_max, recipe)`` returns the new scales. Both are traced where the layer is; define them
    once, because another function is another recipe.

    >>> octet.recipe.DelayedScaling(amax_history_len=16)
    DelayedScaling('delayed:history=16')
    """

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: "str | Callable[[torch.Tensor], torch.Tensor]" = "max"
    scaling_factor_compute_algo: "Callable[..., torch.Tensor] | None" = None
    reduce_amax: bool = True
    backward_override: str | None = None
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        if self.amax_compute_algo == "callback":  # the core's word for a function
            raise ValueError("amax_compute_algo is 'callback'; give the function itself")
        self._set(
            "delayed",
            (
                ("margin", self.margin),
                _format(self.fp8_format),
                ("history", self.amax_history_len),
                ("algo", "callback" if self.has_functions() else self.amax_compute_algo),
                ("reduce_amax", self.reduce_amax),
                _override(self.backward_override),
            ),
        )

    def has_functions(self) -> bool:
        """Whether a function of the user's makes amaxes or scales from the history."""
        by_name = isinstance(self.amax_compute_algo, str)
        return not by_name or self.scaling_factor_compute_algo is not None


@dataclass(frozen=True, repr=False)
class Float8CurrentScaling(Recipe):
    """FP8 with one scale per tensor from its own amax.

    >>> octet.recipe.Float8CurrentScaling(use_power_2_scales=True)
    Float8CurrentScaling('current+pow2')
    """

    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID
    fp8_quant_fwd_inp: QParams | None = None
    fp8_quant_fwd_weight: QParams | None = None
    fp8_quant_bwd_grad: QParams | None = None
    fp8_gemm_fprop: MMParams | None = None
    fp8_gemm_dgrad: MMParams | None = None
    fp8_gemm_wgrad: MMParams | None = None
    backward_override: str | None = None
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        _check_params(self, "fp8")
        plain = QParams(power_2_scale=self.use_power_2_scales)
        self._set(
            "current",
            (
                _format(self.fp8_format),
                ("input", (self.fp8_quant_fwd_inp or plain)._fields()),
                ("weight", (self.fp8_quant_fwd_weight or plain)._fields()),
                ("grad", (self.fp8_quant_bwd_grad or plain)._fields()),
                ("split_fprop", _word(self.fp8_gemm_fprop, split=False)),
                ("split_dgrad", _word(self.fp8_gemm_dgrad)),
                ("split_wgrad", _word(self.fp8_gemm_wgrad)),
                _override(self.backward_override),
            ),
        )


@dataclass(frozen=True, repr=False)
class MXFP8BlockScaling(Recipe):
    """FP8 with a power-of-two scale per 32 elements.

    >>> octet.recipe.MXFP8BlockScaling(enable_2d_quantization=True)
    MXFP8BlockScaling('mxfp8+2d')
    """

    margin: int = 0
    fp8_format: Format = Format.E4M3
    enable_2d_quantization: bool = False
    backward_override: str | None = None
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        self._set(
            "mxfp8",
            (
                ("margin", self.margin),
                _format(self.fp8_format),
                ("weight", (("two_d", self.enable_2d_quantization),)),
                _override(self.backward_override),
            ),
        )


def _block(qparams: QParams | None, pow2: bool, dim: int, name: str) -> Fields:
    if dim not in (1, 2):
        raise ValueError(f"{name} is {dim}; blocks have 1 or 2 dimensions")
    params = qparams or QParams(power_2_scale=pow2)
    if params.fp4_2d_quantization:
        raise ValueError(f"fp4_2d_quantization is FP4's; {name} says what blocks are")
    return (*(field for field in params._fields() if field[0] != "two_d"), ("two_d", dim == 2))


@dataclass(frozen=True, repr=False)
class Float8BlockScaling(Recipe):
    """FP8 with an fp32 scale per block of 128 elements, or 128x128.

    >>> octet.recipe.Float8BlockScaling(use_f32_scales=True)
    Float8BlockScaling('block+nopow2')
    """

    use_f32_scales: bool = False
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_quant_fwd_inp: QParams | None = None
    fp8_quant_fwd_weight: QParams | None = None
    fp8_quant_bwd_grad: QParams | None = None
    fp8_gemm_fprop: MMParams | None = None
    fp8_gemm_dgrad: MMParams | None = None
    fp8_gemm_wgrad: MMParams | None = None
    backward_override: str | None = None
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        _check_params(self, "fp8")
        pow2 = not self.use_f32_scales
        x, w, g = (
            self.x_block_scaling_dim,
            self.w_block_scaling_dim,
            self.grad_block_scaling_dim,
        )
        self._set(
            "block",
            (
                _format(self.fp8_format),
                ("input", _block(self.fp8_quant_fwd_inp, pow2, x, "x_block_scaling_dim")),
                ("weight", _block(self.fp8_quant_fwd_weight, pow2, w, "w_block_scaling_dim")),
                ("grad", _block(self.fp8_quant_bwd_grad, pow2, g, "grad_block_scaling_dim")),
                ("split_fprop", _word(self.fp8_gemm_fprop)),
                ("split_dgrad", _word(self.fp8_gemm_dgrad)),
                ("split_wgrad", _word(self.fp8_gemm_wgrad)),
                _override(self.backward_override),
            ),
        )


@dataclass(frozen=True, repr=False)
class NVFP4BlockScaling(Recipe):
    """FP4 with an E4M3 scale per 16 elements.

    >>> octet.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True)
    NVFP4BlockScaling('nvfp4+nosr')
    """

    disable_rht: bool = False
    disable_stochastic_rounding: bool = False
    disable_2d_quantization: bool = False
    row_scaled_activation: bool = False
    nvfp4_4over6: str = "none"
    nvfp4_4over6_e4m3_use_256: str = "all"
    nvfp4_4over6_err_mode: str = "MAE"
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp4_quant_fwd_inp: QParams | None = None
    fp4_quant_fwd_weight: QParams | None = None
    fp4_quant_bwd_grad: QParams | None = None
    backward_override: str | None = None
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        _check_params(self, "fp4")
        if self.fp4_format is not Format.E2M1:
            raise ValueError(f"fp4_format is {self.fp4_format}; it is Format.E2M1")
        rht, rounding = not self.disable_rht, not self.disable_stochastic_rounding
        x = QParams(random_hadamard_transform=rht)
        w = QParams(fp4_2d_quantization=not self.disable_2d_quantization)
        g = QParams(random_hadamard_transform=rht, stochastic_rounding=rounding)
        self._set(
            "nvfp4",
            (
                _format(self.fp8_format),
                ("input", (self.fp4_quant_fwd_inp or x)._fields()),
                ("weight", (self.fp4_quant_fwd_weight or w)._fields()),
                ("grad", (self.fp4_quant_bwd_grad or g)._fields()),
                ("row_scaled", self.row_scaled_activation),
                ("four_over_six", self.nvfp4_4over6),
                ("max256", self.nvfp4_4over6_e4m3_use_256),
                ("error_mode", self.nvfp4_4over6_err_mode.lower()),
                _override(self.backward_override),
            ),
        )


_ROLES = ("input", "weight", "output", "grad_output", "grad_input", "grad_weight")


@constant
def _custom_text(roles: tuple[tuple[str, str], ...], fields: Fields) -> str:
    return _C.make("recipe", _C.custom_recipe(dict(roles)), dict(fields))


@dataclass(frozen=True, repr=False)
class CustomRecipe(Recipe):
    """A quantizer for each role from a function; None leaves the role in high precision.

    >>> octet.recipe.CustomRecipe(lambda role: octet.MXFP8Quantizer("e4m3"))
    CustomRecipe(<lambda>)
    """

    qfactory: Callable[[QuantizerRole], "Quantizer | None"]
    fp8_format: Format = Format.HYBRID
    backward_override: str | None = None
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def __post_init__(self) -> None:
        if not callable(self.qfactory):
            raise TypeError(
                f"octet.recipe.CustomRecipe: qfactory is {self.qfactory!r}; it is a function "
                "of a QuantizerRole that answers with a quantizer or None"
            )

    def answers(self, module_type: str, name: str) -> "dict[str, Quantizer]":
        """What the factory answers to a layer now, role by role."""
        found = {}
        for role in _ROLES:
            quantizer = self.qfactory(QuantizerRole(module_type, role, name))
            if quantizer is None:
                continue
            known = hasattr(quantizer, "_is_core")
            if not known or (quantizer._is_core and quantizer.text == "none"):
                raise TypeError(
                    f"{self!r} answered {type(quantizer).__name__} for {role}; answer None or "
                    "a quantizer: one of Octet's, or an octet.Quantizer with its own quantize"
                )
            found[role] = quantizer
        return found

    def text_of(self, answers: "dict[str, Quantizer]") -> str:
        """The recipe's text, with the roles whose bytes the C core makes."""
        roles = tuple((role, q.text) for role, q in answers.items() if q._is_core)
        return _custom_text(roles, (_override(self.backward_override),))

    def text_for(self, module_type: str, name: str) -> str:
        """What the factory answers to a layer now, as a recipe's text."""
        return self.text_of(self.answers(module_type, name))

    def __repr__(self) -> str:
        return f"CustomRecipe({getattr(self.qfactory, '__name__', self.qfactory)})"
