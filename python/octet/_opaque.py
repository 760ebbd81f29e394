"""Quantizers as values to torch's compilers: equal, hashable, rebuilt from text in a graph."""

from collections.abc import Iterable
from typing import Any, TypeVar

from torch.torch_version import TorchVersion

import torch

try:
    from torch._library.opaque_object import MemberType, register_opaque_type
except ImportError:  # before 2.11: quantizers are traced as any object, but no op takes one
    MemberType = register_opaque_type = None  # type: ignore[assignment, misc]

T = TypeVar("T", bound=type)


def _metaclass() -> type:
    """Before 2.13 torch takes a value type only with a metaclass of its own."""
    if register_opaque_type is None or TorchVersion(torch.__version__) >= (2, 13):
        return type
    from torch._opaque_base import OpaqueBaseMeta

    return OpaqueBaseMeta


QuantizerMeta = _metaclass()


def holds_process_group(value: object, depth: int = 4) -> bool:
    """Whether a process group is the value or lies in it: containers and attributes alike."""
    if isinstance(value, torch.Tensor | str | int | float | None):
        return False
    distributed = getattr(torch.distributed, "ProcessGroup", None)
    if distributed is not None and isinstance(value, distributed):
        return True
    if depth == 0:
        return False
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inner = list(value)
    else:
        inner = list(getattr(value, "__dict__", {}).values())
    return any(holds_process_group(item, depth - 1) for item in inner)


def refuse_process_group(quantizer: object) -> None:
    """A value in a graph is a constant; a process group is not."""
    if holds_process_group(quantizer):
        raise TypeError(
            f"{type(quantizer).__name__} holds a process group, so it is not a value: two of "
            "them cannot be compared, hashed or written into a graph. Pass the group to the "
            "call that communicates instead of storing it"
        )


def _fields(cls: type) -> Iterable[str]:
    """The attributes that a class declares without a value."""
    return vars(cls).get("__annotations__", ())


def _members(cls: type) -> dict[str, Any]:
    """Methods that take or make tensors are traced; the rest is asked of the real object."""
    traced = ("__call__", "quantize", "update_quantized", "make_empty")
    names = {name for base in cls.__mro__[:-1] for name in (*vars(base), *_fields(base))}
    constants = {n for n in names if not n.startswith("__") and n not in traced}
    return {
        **{name: MemberType.USE_REAL for name in constants},
        **{name: MemberType.INLINED for name in traced if name in names},
    }


def register_value_opaque_quantizer(cls: T) -> T:
    """Makes a quantizer class a value to torch.compile; usable as a decorator.

    The class needs ``__eq__``, ``__hash__`` and ``__fx_repr__``. Where torch has no opaque
    objects, only the mark is set.

    >>> @octet.register_value_opaque_quantizer
    ... class Mine(octet.MXFP8Quantizer):
    ...     pass
    """
    if "_is_value" not in vars(cls):
        raise TypeError(f"{cls.__name__} is no quantizer: derive it from octet.Quantizer")
    for name in ("__eq__", "__hash__", "__fx_repr__"):
        if getattr(cls, name, None) in (None, getattr(object, name, None)):
            raise TypeError(f"{cls.__name__} has no {name} of its own, so it is not a value")
    cls._is_value = True
    if register_opaque_type is not None:
        register_opaque_type(cls, typ="value", members=_members(cls))
    return cls


def is_value_opaque_quantizer(quantizer: object) -> bool:
    """Whether the quantizer's own class is registered as a value; traceable.

    >>> octet.is_value_opaque_quantizer(octet.MXFP8Quantizer("e4m3"))
    True
    """
    return getattr(quantizer, "_is_value", False)
