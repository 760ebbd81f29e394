"""A quantizer's options as attributes, with TransformerEngine's names.

An option is read from the quantizer's text, which is the quantizer's whole value. Assigning one
replaces the text of that quantizer alone; copies, tensors and graphs keep theirs.
"""

from collections.abc import Callable
from typing import Any

from octet import _C, _texts
from octet._constant import constant

Read = Callable[[dict[str, Any]], Any]
Write = Callable[[dict[str, Any], Any], dict[str, Any]]


@constant
def _fields(text: str) -> dict[str, Any]:
    return _C.fields("quantizer", text)


def option(name: str, read: Read, write: Write, doc: str) -> Any:  # noqa: ANN401
    """A property that reads an option from the text's fields; ``write`` gives the changed
    fields."""

    def get(self: Any) -> Any:  # noqa: ANN401
        return read(_fields(self.text))

    def put(self: Any, value: Any) -> None:  # noqa: ANN401
        try:
            self.text = _texts.quantizer(self.text, **write(_fields(self.text), value))
        except (TypeError, ValueError) as error:
            raise AttributeError(
                f"{self!r}: {name} cannot become {value!r}: {error}; make another "
                f"{type(self).__name__} with {name}={value!r} and what goes with it"
            ) from None

    return property(get, put, doc=doc)


def field(name: str, word: str, doc: str) -> Any:  # noqa: ANN401
    """A property for an option that is one field of the text."""
    return option(name, lambda f: f[word], lambda f, value: {word: value}, doc)


def fixed(name: str, read: Read, why: str, doc: str) -> Any:  # noqa: ANN401
    """A property that cannot be changed; assigning the value it has is allowed."""

    def put(self: Any, value: Any) -> None:  # noqa: ANN401
        now = read(_fields(self.text))
        if value != now:
            raise AttributeError(f"{self!r}: {name} is {now!r} and stays so: {why}")

    return property(lambda self: read(_fields(self.text)), put, doc=doc)


def _one_of(word: str, choices: dict[Any, Any]) -> Write:
    """Makes a function that writes a field; it refuses values that are not in the table."""

    def write(fields: dict[str, Any], value: Any) -> dict[str, Any]:  # noqa: ANN401
        del fields
        if value not in choices:
            raise ValueError(f"it is one of {', '.join(map(repr, choices))}")
        return {word: choices[value]}

    return write


# ---- scales ----------------------------------------------------------------------------------

EPSILON = field("amax_epsilon", "epsilon", "The least amax that a scale is made from.")
POW2 = field("force_pow_2_scales", "pow2", "Whether scales are powers of two.")
BLOCK_LEN = fixed(
    "block_len",
    lambda f: f["block_cols"],
    "blocks of other lengths are other quantizers",
    "A block's columns.",
)
BLOCK_DIM = option(
    "block_scaling_dim",
    lambda f: 1 if f["block_rows"] == 1 else 2,
    _one_of("block_rows", {1: 1, 2: 128}),
    "1 where a block is 1x128, 2 where it is 128x128.",
)
NO_REDUCTION = fixed(
    "with_amax_reduction",
    lambda f: False,
    "amaxes are not reduced over process groups; leave with_amax_reduction out",
    "False: amaxes are not reduced over process groups.",
)


def square(size: int) -> Any:  # noqa: ANN401
    """Whether blocks are square, as for weights."""
    return option(
        "with_2d_quantization",
        lambda f: f["block_rows"] != 1,
        lambda f, value: {"block_rows": size if value else 1},
        f"Whether one scale serves {size}x{size} elements.",
    )


# ---- NVFP4 -----------------------------------------------------------------------------------


def _rht(fields: dict[str, Any], value: bool) -> dict[str, Any]:
    if bool(value) == (fields["hadamard"] != "none"):
        return {}
    return {"hadamard": "signed" if value else "none"}


def _signs(fields: dict[str, Any], value: bool) -> dict[str, Any]:
    if fields["hadamard"] == "none":
        if not value:
            raise ValueError("there is no transform without with_rht")
        return {}
    return {"hadamard": "signed" if value else "plain"}


def _four_over_six(fields: dict[str, Any], value: bool) -> dict[str, Any]:
    if not value:
        return {"four_over_six": "none", "max256": False}
    return {} if fields["four_over_six"] != "none" else {"four_over_six": "mae"}


def _error_mode(fields: dict[str, Any], value: str) -> dict[str, Any]:
    if fields["four_over_six"] == "none":
        if value.upper() != "MAE":
            raise ValueError("there is no error without nvfp4_use_4over6")
        return {}
    return {"four_over_six": value.lower()}


RHT = option(
    "with_rht",
    lambda f: f["hadamard"] != "none",
    _rht,
    "Whether columns are transformed by a Hadamard matrix.",
)
POST_RHT_AMAX = fixed(
    "with_post_rht_amax",
    lambda f: f["hadamard"] != "none",
    "transformed columns always have an amax of their own; say with_rht",
    "Whether transformed columns have an amax of their own: always.",
)
SIGNS = option(
    "with_random_sign_mask",
    lambda f: f["hadamard"] != "plain",
    _signs,
    "Whether the transform has random signs.",
)
STOCHASTIC = field("stochastic_rounding", "stochastic", "Whether rounding is at random.")
ROW_SCALED = field("row_scaled_nvfp4", "row_scaled", "Whether each row has an amax of its own.")
FOUR_OVER_SIX = option(
    "nvfp4_use_4over6",
    lambda f: f["four_over_six"] != "none",
    _four_over_six,
    "Whether each block takes the better of the largest values 4 and 6.",
)
E4M3_MAX = option(
    "nvfp4_e4m3_max",
    lambda f: 256 if f["max256"] else 448,
    _one_of("max256", {256: True, 448: False}),
    "The largest scale: 256 or 448.",
)
ERROR_MODE = option(
    "nvfp4_4over6_err_mode",
    lambda f: "MAE" if f["four_over_six"] == "none" else f["four_over_six"].upper(),
    _error_mode,
    'By which error the better one is chosen: "MAE" or "MSE".',
)
