"""Parts of recipes: formats, groups of fields, roles. octet.recipe exports them."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from octet.recipe import Recipe


Fields = tuple[tuple[str, Any], ...]


class FormatMax(NamedTuple):
    """The largest finite values of a format, in forward and in backward."""

    max_fwd: float
    max_bwd: float


class Format(enum.Enum):
    """Element formats of a recipe. HYBRID is E4M3 forward and E5M2 for gradients.

    >>> octet.recipe.Format.HYBRID.value.max_bwd
    57344
    """

    E4M3 = FormatMax(448, 448)
    E5M2 = FormatMax(57344, 57344)
    HYBRID = FormatMax(448, 57344)
    E2M1 = FormatMax(6, 6)

    @property
    def word(self) -> str:
        """The C core's word for it: "e4m3"."""
        return self.name.lower()


@dataclass(frozen=True)
class QParams:
    """How one group of tensors (inputs, weights or gradients) is quantized."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False

    def _fields(self) -> Fields:
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


def split_word(params: MMParams | None, split: bool = True) -> str:
    """The C core's word for how a product accumulates; None if the recipe's default."""
    split = split if params is None else params.use_split_accumulator
    return "split" if split else "fast"


@dataclass(frozen=True)
class QuantizerRole:
    """Who asks a custom recipe for a quantizer."""

    module_type: str = ""
    tensor_type: str = ""
    name: str = ""


def check_params(recipe: "Recipe", bits: str) -> None:
    """Checks the types of field groups, by name, which every torch can trace."""
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


def format_field(value: Format) -> tuple[str, str]:
    """The field of a recipe's format."""
    if not isinstance(value, Format):
        raise TypeError(f"fp8_format is {value!r}; it is a Format, such as Format.HYBRID")
    return "format", value.word


# Pickles, reprs and documentation expect these classes in octet.recipe.
for _public in (FormatMax, Format, QParams, MMParams, QuantizerRole):
    _public.__module__ = "octet.recipe"
