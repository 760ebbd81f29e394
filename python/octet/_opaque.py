"""Registers quantizers with torch's compilers as values: equal, hashable, rebuilt from text.

This is the only file that knows torch's API for opaque objects, which changes between
versions.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from torch.torch_version import TorchVersion

import torch

T = TypeVar("T", bound=type)


class _Api(NamedTuple):
    """torch's API for opaque objects, under the names of this torch version."""

    register: Callable[..., None]
    name_of: Callable[[type], str]  # registered name of a class or of its parent
    kind: str  # torch's word for classes whose objects are constants
    member: Any  # enum: how a member is traced
    metaclass: type  # metaclass that such classes need


def _find_api() -> _Api:
    """Finds the API. Raises before torch 2.11, whose API has no members and could not trace a
    quantizer."""
    from torch._library import opaque_object as found

    name_of, member = found.get_opaque_type_name, found.MemberType
    if hasattr(found, "register_custom_class"):  # torch 2.14 renamed the function and the word
        return _Api(found.register_custom_class, name_of, "constant", member, type)
    if TorchVersion(torch.__version__) >= (2, 13):
        return _Api(found.register_opaque_type, name_of, "value", member, type)
    from torch._opaque_base import OpaqueBaseMeta

    return _Api(found.register_opaque_type, name_of, "value", member, OpaqueBaseMeta)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _load_api() -> tuple[_Api | None, str]:
    """The API, or the reason why there is none. If torch changed it, only this registration is
    lost."""
    try:
        return _find_api(), ""
    except Exception as error:
        return None, _words(error)


API, _missing = _load_api()
QuantizerMeta = API.metaclass if API else type


def registration() -> str:
    """ "registered" if torch knows the quantizers as values, else the reason."""
    return f"not registered: {_missing}" if API is None else "registered"


def holds_process_group(value: object, depth: int = 4) -> bool:
    """Whether a value is a process group or contains one, in containers or attributes."""
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
    """Raises for a value with a process group: values in graphs are constants, a process group
    is not."""
    if holds_process_group(quantizer):
        raise TypeError(
            f"{type(quantizer).__name__} holds a process group, so it is not a value: two of "
            "them cannot be compared, hashed or written into a graph. Pass the group to the "
            "call that communicates instead of storing it"
        )


def _fields(cls: type) -> Iterable[str]:
    """The attributes that a class declares without a value."""
    return vars(cls).get("__annotations__", ())


def _members(cls: type, member: Any) -> dict[str, Any]:  # noqa: ANN401
    """How torch traces each member: methods that take or return tensors are traced, all others
    are called on the real object."""
    traced = ("__call__", "quantize", "update_quantized", "make_empty")
    names = {name for base in cls.__mro__[:-1] for name in (*vars(base), *_fields(base))}
    constants = {n for n in names if not n.startswith("__") and n not in traced}
    return {
        **{name: member.USE_REAL for name in constants},
        **{name: member.INLINED for name in traced if name in names},
    }


def _is_known(cls: type, api: _Api) -> bool:
    """Whether torch knows the class itself, not only its parent."""
    try:
        return api.name_of(cls) == f"{cls.__module__}.{cls.__qualname__}"
    except Exception:
        return False


def _register(cls: type) -> None:
    """Registers a class with torch. If one of Octet's own classes fails, the API is not used
    further; for another class the error is raised."""
    global API, _missing
    if API is None:
        return
    try:
        API.register(cls, typ=API.kind, members=_members(cls, API.member))
    except Exception as error:
        # From 2.15 on torch warns if an earlier class had the same name (a notebook cell that
        # runs again), but accepts the class.
        if _is_known(cls, API):
            return
        if cls.__module__.partition(".")[0] != "octet":
            raise
        API, _missing = None, _words(error)


def register_value_opaque_quantizer(cls: T) -> T:
    """Makes a quantizer class a value to torch.compile; usable as a decorator.

    The class needs ``__eq__``, ``__hash__`` and ``__fx_repr__``. A class that is registered
    stays as it is. Where torch has no opaque objects, only the mark is set, and
    ``octet.support()["opaque_quantizers"]`` says why.

    >>> @octet.register_value_opaque_quantizer
    ... class Mine(octet.MXFP8Quantizer):
    ...     pass
    """
    if "_is_value" not in vars(cls):
        raise TypeError(f"{cls.__name__} is no quantizer: derive it from octet.Quantizer")
    for name in ("__eq__", "__hash__", "__fx_repr__"):
        if getattr(cls, name, None) in (None, getattr(object, name, None)):
            raise TypeError(f"{cls.__name__} has no {name} of its own, so it is not a value")
    if not cls._is_value:
        _register(cls)
        cls._is_value = True
    return cls


def is_value_opaque_quantizer(quantizer: object) -> bool:
    """Whether the quantizer's own class is registered as a value; traceable.

    >>> octet.is_value_opaque_quantizer(octet.MXFP8Quantizer("e4m3"))
    True
    """
    return getattr(quantizer, "_is_value", False)


def cache_key(tensor: Any) -> str:  # noqa: ANN401
    """Everything except data that compiled code may depend on in a tensor subclass. torch's
    compile caches ask for it as ``_stable_hash_for_caching`` from 2.13 on."""
    names, meta = tensor.__tensor_flatten__()
    inner = [(name, getattr(tensor, name)) for name in names]
    parts = [
        (name, x.dtype, x.device, x.layout, x.shape, x.stride(), x.storage_offset())
        for name, x in (("", tensor), *inner)
    ]
    return repr((type(tensor).__qualname__, meta, tensor.requires_grad, parts))
