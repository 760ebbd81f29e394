"""Recipes: which quantizer each role of a layer gets. Values: equal by content, hashable.

Fields may be assigned until a recipe is used for the first time. Positional arguments are in
the order of TransformerEngine's classes; what those do not take is by keyword.

>>> octet.recipe.MXFP8BlockScaling()
MXFP8BlockScaling('mxfp8')
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from torch.compiler import is_dynamo_compiling

from octet import _C
from octet._constant import constant
from octet._recipe_parts import (
    Fields,
    Format,
    MMParams,
    QParams,
    QuantizerRole,
    check_params,
    format_field,
    split_word,
)
from octet._recipe_parts import FormatMax as FormatMax  # pickles of a Format expect it here

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
    "MXFP4BlockScaling",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "QuantizerRole",
    "Recipe",
]


_CLASSES = {
    "delayed": "DelayedScaling",
    "current": "Float8CurrentScaling",
    "block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
    "nvfp4": "NVFP4BlockScaling",
    "mxfp4": "MXFP4BlockScaling",
}


@constant
def _text(kind: str, fields: Fields) -> str:
    """The text of a recipe of that kind with these fields; groups are tuples of fields."""
    named = {name: dict(value) if isinstance(value, tuple) else value for name, value in fields}
    try:
        return _C.make("recipe", kind, named)
    except (TypeError, ValueError) as error:
        raise type(error)(f"octet.recipe.{_CLASSES[kind]}: {error}") from None


R = TypeVar("R", bound="type[Recipe]")


class Recipe:
    """The base of every recipe.

    A field may be assigned until the recipe is used: by a layer, or by being compared or
    hashed. Then it is frozen, so that nothing that remembers it can be wrong about it. Compiled
    code does not freeze a recipe: where a field is assigned, it compiles again.
    ``dataclasses.replace`` makes another recipe with some fields changed. A copy is not frozen.

    >>> recipe = octet.recipe.MXFP8BlockScaling()
    >>> recipe.backward_override = "dequantized"
    >>> recipe.text
    'mxfp8:override=dequantized'
    """

    _text: str
    _frozen = False

    def _set(self, kind: str, fields: Fields) -> None:
        object.__setattr__(self, "_text", _text(kind, fields))

    def _freeze(self) -> None:
        """Forbids further assignment. Traced code does not freeze a recipe: it may not write to
        objects from outside, and it guards on the fields it read."""
        if not is_dynamo_compiling():
            object.__setattr__(self, "_frozen", True)

    _is_custom = False  # whether it has another text for each layer

    @property
    def text(self) -> str:
        """The one-line form in the C core's grammar. Reading it is a use of the recipe."""
        if not (is_dynamo_compiling() or self._frozen):
            object.__setattr__(self, "_frozen", True)
        return self._text

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        cls, fields = type(self).__name__, self.__dataclass_fields__
        if name not in fields:
            raise AttributeError(
                f"octet.recipe.{cls} has no field {name}; it has {', '.join(fields)}"
            )
        if self._frozen:
            raise dataclasses.FrozenInstanceError(
                f"{self!r} has been used, so its {name} stays as it is; make another recipe: "
                f"dataclasses.replace(recipe, {name}={value!r})"
            )
        # A copy checks the value; if it raises, this recipe has not changed.
        made = dataclasses.replace(self, **{name: value})
        for each in (*fields, "_text"):
            object.__setattr__(self, each, getattr(made, each))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Recipe):
            return NotImplemented
        if not (is_dynamo_compiling() or (self._frozen and other._frozen)):
            self._freeze()
            other._freeze()
        return self._has_fields_of(other)

    def __hash__(self) -> int:
        self._freeze()
        return self._hash_of_fields()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text!r})"

    # ---- which one it is -------------------------------------------------------------------

    @classmethod
    def delayed(cls) -> bool:
        """Delayed scaling: its scales are state that the layer keeps."""
        return issubclass(cls, DelayedScaling)

    @classmethod
    def float8_current_scaling(cls) -> bool:
        """FP8 with a scale per tensor, from the tensor itself."""
        return issubclass(cls, Float8CurrentScaling)

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        """FP8 with a scale per tensor."""
        return issubclass(cls, DelayedScaling | Float8CurrentScaling)

    @classmethod
    def float8_block_scaling(cls) -> bool:
        """FP8 with a scale per block."""
        return issubclass(cls, Float8BlockScaling)

    @classmethod
    def mxfp8(cls) -> bool:
        """MXFP8."""
        return issubclass(cls, MXFP8BlockScaling)

    @classmethod
    def nvfp4(cls) -> bool:
        """NVFP4."""
        return issubclass(cls, NVFP4BlockScaling)

    @classmethod
    def mxfp4(cls) -> bool:
        """MXFP4."""
        return issubclass(cls, MXFP4BlockScaling)

    @classmethod
    def custom(cls) -> bool:
        """Its quantizers come from a function."""
        return issubclass(cls, CustomRecipe)


if TYPE_CHECKING:
    # type checkers recognize dataclasses only by this import
    from dataclasses import dataclass as _recipe
else:

    def _recipe(cls: R) -> R:
        """A dataclass whose constructor sets fields without the checks of __setattr__. Equality
        and assignment come from the base class."""
        made = dataclass(frozen=True, repr=False)(cls)
        made._has_fields_of, made._hash_of_fields = made.__eq__, made.__hash__
        del made.__setattr__, made.__eq__, made.__hash__
        return made


def _override(backward_override: str | None) -> tuple[str, str]:
    return "override_", backward_override or "none"


@_recipe
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
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    batch_invariant: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.amax_compute_algo == "callback":  # the C core's word for a user's function
            raise ValueError("amax_compute_algo is 'callback'; give the function itself")
        self._set(
            "delayed",
            (
                ("margin", self.margin),
                format_field(self.fp8_format),
                ("history", self.amax_history_len),
                ("algo", "callback" if self.has_functions() else self.amax_compute_algo),
                ("reduce_amax", self.reduce_amax),
                ("batch_invariant", self.batch_invariant),
                _override(self.backward_override),
            ),
        )

    def has_functions(self) -> bool:
        """Whether the user's functions compute amaxes or scales from the history."""
        by_name = isinstance(self.amax_compute_algo, str)
        return not by_name or self.scaling_factor_compute_algo is not None


@_recipe
class Float8CurrentScaling(Recipe):
    """FP8 with one scale per tensor from its own amax.

    >>> octet.recipe.Float8CurrentScaling(use_power_2_scales=True)
    Float8CurrentScaling('current+pow2')
    """

    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams | None = None
    fp8_gemm_dgrad: MMParams | None = None
    fp8_gemm_wgrad: MMParams | None = None
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    fp8_quant_fwd_inp: QParams | None = field(default=None, kw_only=True)
    fp8_quant_fwd_weight: QParams | None = field(default=None, kw_only=True)
    fp8_quant_bwd_grad: QParams | None = field(default=None, kw_only=True)
    batch_invariant: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_params(self, "fp8")
        plain = QParams(power_2_scale=self.use_power_2_scales)
        self._set(
            "current",
            (
                format_field(self.fp8_format),
                ("input", (self.fp8_quant_fwd_inp or plain)._fields()),
                ("weight", (self.fp8_quant_fwd_weight or plain)._fields()),
                ("grad", (self.fp8_quant_bwd_grad or plain)._fields()),
                ("split_fprop", split_word(self.fp8_gemm_fprop, split=False)),
                ("split_dgrad", split_word(self.fp8_gemm_dgrad)),
                ("split_wgrad", split_word(self.fp8_gemm_wgrad)),
                ("batch_invariant", self.batch_invariant),
                _override(self.backward_override),
            ),
        )


@_recipe
class MXFP8BlockScaling(Recipe):
    """FP8 with a power-of-two scale per 32 elements.

    ``product`` is for GPUs that multiply FP8 with a scale per 128 elements, but not per 32
    (Hopper). "folded": at that speed, within the bound that ``octet.support()`` tells; "exact":
    in bf16, which holds every number. Elsewhere products are exact and this changes nothing.

    ``batch_invariant``: a row of the output, and of the input's gradient, does not depend on
    the other rows, nor on how many there are (docs/promises.md). Recipes whose scales look
    across rows refuse it.

    >>> octet.recipe.MXFP8BlockScaling(enable_2d_quantization=True)
    MXFP8BlockScaling('mxfp8+2d')
    >>> octet.recipe.MXFP8BlockScaling(product="exact")
    MXFP8BlockScaling('mxfp8:product=exact')
    >>> octet.recipe.MXFP8BlockScaling(batch_invariant=True)
    MXFP8BlockScaling('mxfp8+batch_invariant')
    """

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    enable_2d_quantization: bool = False
    product: str = field(default="folded", kw_only=True)
    batch_invariant: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set(
            "mxfp8",
            (
                ("margin", self.margin),
                format_field(self.fp8_format),
                ("weight", (("two_d", self.enable_2d_quantization),)),
                ("product", self.product),
                ("batch_invariant", self.batch_invariant),
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


@_recipe
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
    fp8_gemm_fprop: MMParams | None = None
    fp8_gemm_dgrad: MMParams | None = None
    fp8_gemm_wgrad: MMParams | None = None
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    fp8_quant_fwd_inp: QParams | None = field(default=None, kw_only=True)
    fp8_quant_fwd_weight: QParams | None = field(default=None, kw_only=True)
    fp8_quant_bwd_grad: QParams | None = field(default=None, kw_only=True)
    batch_invariant: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_params(self, "fp8")
        pow2 = not self.use_f32_scales
        x, w, g = (
            self.x_block_scaling_dim,
            self.w_block_scaling_dim,
            self.grad_block_scaling_dim,
        )
        self._set(
            "block",
            (
                format_field(self.fp8_format),
                ("input", _block(self.fp8_quant_fwd_inp, pow2, x, "x_block_scaling_dim")),
                ("weight", _block(self.fp8_quant_fwd_weight, pow2, w, "w_block_scaling_dim")),
                ("grad", _block(self.fp8_quant_bwd_grad, pow2, g, "grad_block_scaling_dim")),
                ("split_fprop", split_word(self.fp8_gemm_fprop)),
                ("split_dgrad", split_word(self.fp8_gemm_dgrad)),
                ("split_wgrad", split_word(self.fp8_gemm_wgrad)),
                ("batch_invariant", self.batch_invariant),
                _override(self.backward_override),
            ),
        )


def _fp4_groups(recipe: "NVFP4BlockScaling | MXFP4BlockScaling") -> Fields:
    """How an FP4 recipe quantizes inputs, weights and gradients."""
    check_params(recipe, "fp4")
    if recipe.fp4_format is not Format.E2M1:
        raise ValueError(f"fp4_format is {recipe.fp4_format}; it is Format.E2M1")
    rht, rounding = not recipe.disable_rht, not recipe.disable_stochastic_rounding
    x = QParams(random_hadamard_transform=rht)
    w = QParams(fp4_2d_quantization=not recipe.disable_2d_quantization)
    g = QParams(random_hadamard_transform=rht, stochastic_rounding=rounding)
    return (
        ("input", (recipe.fp4_quant_fwd_inp or x)._fields()),
        ("weight", (recipe.fp4_quant_fwd_weight or w)._fields()),
        ("grad", (recipe.fp4_quant_bwd_grad or g)._fields()),
    )


@_recipe
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
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    fp4_quant_fwd_inp: QParams | None = field(default=None, kw_only=True)
    fp4_quant_fwd_weight: QParams | None = field(default=None, kw_only=True)
    fp4_quant_bwd_grad: QParams | None = field(default=None, kw_only=True)
    batch_invariant: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set(
            "nvfp4",
            (
                format_field(self.fp8_format),
                *_fp4_groups(self),
                ("row_scaled", self.row_scaled_activation),
                ("four_over_six", self.nvfp4_4over6),
                ("max256", self.nvfp4_4over6_e4m3_use_256),
                ("error_mode", self.nvfp4_4over6_err_mode.lower()),
                ("batch_invariant", self.batch_invariant),
                _override(self.backward_override),
            ),
        )


@_recipe
class MXFP4BlockScaling(Recipe):
    """FP4 with a power-of-two scale per 32 elements.

    >>> octet.recipe.MXFP4BlockScaling(disable_rht=False)
    MXFP4BlockScaling('mxfp4+rht')
    """

    disable_rht: bool = True
    disable_stochastic_rounding: bool = False
    disable_2d_quantization: bool = False
    fp4_format: Format = Format.E2M1
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    fp4_quant_fwd_inp: QParams | None = field(default=None, kw_only=True)
    fp4_quant_fwd_weight: QParams | None = field(default=None, kw_only=True)
    fp4_quant_bwd_grad: QParams | None = field(default=None, kw_only=True)
    batch_invariant: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set(
            "mxfp4",
            (
                *_fp4_groups(self),
                ("batch_invariant", self.batch_invariant),
                _override(self.backward_override),
            ),
        )


_ROLES = ("input", "weight", "output", "grad_output", "grad_input")


@constant
def _custom_text(roles: tuple[tuple[str, str], ...], fields: Fields) -> str:
    try:
        return _C.make("recipe", _C.custom_recipe(dict(roles)), dict(fields))
    except (TypeError, ValueError) as error:
        raise type(error)(f"octet.recipe.CustomRecipe: {error}") from None


@_recipe
class CustomRecipe(Recipe):
    """A quantizer for each role from a function; None leaves the role in high precision.

    A layer asks for "input", "weight", "output", "grad_output" and "grad_input". Factories
    often answer every role alike, so it asks for "grad_weight" only with
    ``quantize_grad_weight=True``: then the answer quantizes the weight's gradient.
    ``fp8_format`` and ``quantization_alignment`` mean nothing to a Linear. ``product`` is
    ``MXFP8BlockScaling``'s, for products of two MXFP8 tensors.

    >>> octet.recipe.CustomRecipe(lambda role: octet.MXFP8Quantizer("e4m3"))
    CustomRecipe(<lambda>)
    """

    qfactory: Callable[[QuantizerRole], "Quantizer | None"]
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    quantization_alignment: int = 128
    quantize_grad_weight: bool = field(default=False, kw_only=True)
    product: str = field(default="folded", kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.qfactory):
            raise TypeError(
                f"octet.recipe.CustomRecipe: qfactory is {self.qfactory!r}; it is a function "
                "of a QuantizerRole that answers with a quantizer or None"
            )
        format_field(self.fp8_format)
        if self.quantization_alignment < 1:
            raise ValueError(
                "octet.recipe.CustomRecipe: quantization_alignment is "
                f"{self.quantization_alignment}; it is at least 1"
            )
        # Build the text without any quantizer: contradicting fields are refused now.
        object.__setattr__(self, "_text", self.text_of({}))

    _is_custom = True

    @property
    def text(self) -> str:
        """Raises: a custom recipe has no text without a layer, because the factory may depend
        on the layer."""
        raise AttributeError(f"{self!r} has a text for each layer: text_for('linear', name)")

    def answers(self, module_type: str, name: str) -> "dict[str, Quantizer]":
        """What the factory returns for a layer now, by role."""
        self._freeze()
        found = {}
        for role in (*_ROLES, "grad_weight") if self.quantize_grad_weight else _ROLES:
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
        """The recipe's text, with those roles that the C core quantizes."""
        roles = tuple((role, q.text) for role, q in answers.items() if q._is_core)
        fields = (("product", self.product), _override(self.backward_override))
        return _custom_text(roles, fields)

    def text_for(self, module_type: str, name: str) -> str:
        """The text of what the factory returns for a layer now."""
        return self.text_of(self.answers(module_type, name))

    def __repr__(self) -> str:
        return f"CustomRecipe({getattr(self.qfactory, '__name__', self.qfactory)})"
