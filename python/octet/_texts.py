"""What the C core knows about a text. Cached, and constant in traced code."""

from octet import _C
from octet._constant import constant

Dim = tuple[str, int, int, int]  # axis, mul, div, align: roundup(ceil(axis * mul / div), align)


@constant
def scheme(text: str) -> str:
    """The scheme of a quantizer; "none" if there is none."""
    return str(_C.fields("quantizer", text)["scheme"])


@constant
def element_format(text: str) -> str:
    """The element format of a quantizer."""
    return str(_C.fields("quantizer", text)["format"])


@constant
def takes_scale(text: str) -> bool:
    """Whether quantizing reads a scale of the caller: delayed scaling."""
    return _C.takes_scale(text)


@constant
def is_stochastic(text: str) -> bool:
    """Whether quantizing uses random numbers."""
    return bool(_C.fields("quantizer", text)["stochastic"])


@constant
def usages(text: str) -> tuple[bool, bool]:
    """Whether a quantizer makes rowwise and columnwise bytes."""
    fields = _C.fields("quantizer", text)
    return bool(fields["rowwise"]), bool(fields["columnwise"])


@constant
def kind(text: str) -> str:
    """The quantizer's text without its usages."""
    return _C.make("quantizer", text, {"rowwise": True, "columnwise": True})


@constant
def with_usage(text: str, rowwise: bool | None, columnwise: bool | None) -> str:
    """The quantizer with these usages; None keeps a usage as it is."""
    now = usages(text)
    return _C.with_usage(
        text,
        now[0] if rowwise is None else rowwise,
        now[1] if columnwise is None else columnwise,
    )


@constant
def layout(text: str) -> tuple[tuple[str, str, str, tuple[Dim, ...]], ...]:
    """A quantizer's buffers in flatten order: name, part, dtype, dims."""
    return _C.layout(text)


@constant
def buffer_names(text: str) -> tuple[str, ...]:
    """The names of a quantizer's buffers, in flatten order."""
    return tuple(row[0] for row in _C.layout(text))


@constant
def part_names(text: str) -> dict[str, str]:
    """The name of the buffer that holds each part."""
    return {part: name for name, part, _, _ in _C.layout(text)}


@constant
def row_step(text: str) -> int:
    """How many rows must stay together when the bytes are cut; 0 if they cannot be cut."""
    return _C.row_step(text)


@constant
def column_step(text: str) -> int:
    """How many columns must stay together when the bytes are cut; 0 if they cannot be cut."""
    return _C.column_step(text)


@constant
def transposable(text: str) -> bool:
    """Whether one direction can be made exactly from the other."""
    return _C.transposable(text)


@constant
def role_quantizer(recipe: str, role: str) -> str:
    """The quantizer that a recipe gives to a role."""
    return _C.role_quantizer(recipe, role)


@constant
def is_delayed(recipe: str) -> bool:
    """Whether a recipe is delayed scaling."""
    return bool(_C.fields("recipe", recipe)["kind"] == "delayed")


@constant
def history_rows(recipe: str) -> int:
    """The rows of amax history that a delayed recipe uses."""
    return int(_C.fields("recipe", recipe)["history"])


@constant
def covers(have: str, need: str) -> bool:
    """Whether the bytes of one quantizer include all that another would make."""
    return all(b or not a for a, b in zip(usages(need), usages(have), strict=True)) and (
        _C.with_usage(have, *usages(need)) == need
    )


@constant
def canonical(text: str) -> str:
    """The canonical text of a quantizer."""
    return _C.canonical("quantizer", text)


@constant
def tensor_words(dtype: str, quantizer: str) -> str:
    """The words of a quantize or dequantize op for a tensor of this dtype."""
    return _C.tensor_words(dtype, quantizer)


@constant
def quantizer(text: str, **fields: bool | float | str) -> str:
    """A quantizer's text with some fields changed."""
    return _C.make("quantizer", text, fields)
