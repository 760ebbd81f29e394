"""DecodedView: a view of a quantized tensor. It is a decoded copy that refuses writes.

In torch a view (``w[0]``, ``w.t()``) shares its tensor's memory, so a write to it changes the
tensor. The elements of a quantized tensor are not in memory, so a view of it is a copy, and a
write to a copy would be lost. Reads work and give plain tensors. Only eager code makes these
views; traced code sees a plain copy.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from torch.utils import _pytree as pytree

import torch


def written_arguments(func: Any, args: Any, kwargs: Any) -> list[Any]:  # noqa: ANN401
    """The tensors that an op writes, by its schema."""
    if not func._schema.is_mutable:
        return []
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found.extend(value if isinstance(value, list | tuple) else [value])
    return found


def _storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Identifies the memory of tensors; empty for traced ones."""
    return {t.untyped_storage()._cdata for t in tensors if type(t) is torch.Tensor}


def with_views(result: Any, copies: Iterable[torch.Tensor]) -> Any:  # noqa: ANN401
    """The result of an op on decoded copies. Outputs that share memory with a copy become
    DecodedViews."""
    known = _storages(copies)

    def view(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return value
        return DecodedView(value) if value.untyped_storage()._cdata in known else value

    return pytree.tree_map(view, result) if known else result


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"{name}: this tensor is a decoded copy of elements of a QuantizedTensor, so what is "
        "written into it would be lost: write to the quantized tensor itself (w[0] = w[0] + 1, "
        "w.copy_(x)), or take dequantize() of it, or clone() of this, first"
    )


class DecodedView(torch.Tensor):
    """A decoded copy of elements of a quantized tensor. It refuses writes, which would be lost.

    >>> w = octet.MXFP8Quantizer("e4m3")(torch.ones(4, 64))
    >>> w[0].sum()
    tensor(64.)
    """

    _plain: torch.Tensor

    @staticmethod
    def __new__(cls: type["DecodedView"], plain: torch.Tensor) -> "DecodedView":
        """Wraps a plain tensor: shares its memory, or wraps it if it is a traced one."""
        if type(plain) is torch.Tensor:
            self = torch.Tensor._make_subclass(cls, plain)
        else:
            self = torch.Tensor._make_wrapper_subclass(
                cls, plain.shape, plain.stride(), dtype=plain.dtype, device=plain.device
            )
        self._plain = plain
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        del args, kwargs

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["_plain"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor],
        meta: None,
        outer_size: Sequence[int],
        outer_stride: Sequence[int],
    ) -> "DecodedView":
        del meta, outer_size, outer_stride
        return DecodedView(inner["_plain"])

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,  # noqa: ANN401
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        del types
        kwargs = kwargs or {}
        if any(isinstance(each, cls) for each in written_arguments(func, args, kwargs)):
            _refuse(func._schema.name.removeprefix("aten::"))
        copies: list[torch.Tensor] = []

        def unwrap(value: Any) -> Any:  # noqa: ANN401
            if not isinstance(value, cls):
                return value
            copies.append(value._plain)
            return value._plain

        args, kwargs = pytree.tree_map(unwrap, (args, kwargs))
        return with_views(func(*args, **kwargs), copies)

    # ---- what torch does without an op -------------------------------------------------------

    def numpy(self, *, force: bool = False) -> Any:  # noqa: ANN401
        """Its elements, as an array of its own."""
        return self.clone().numpy(force=force)

    def tolist(self) -> Any:  # noqa: ANN401
        """Its elements, as a list."""
        return self.clone().tolist()

    def __dlpack__(self, **kwargs: Any) -> Any:  # noqa: ANN401
        return self.clone().__dlpack__(**kwargs)

    def apply_(self, function: Callable[[float], float]) -> NoReturn:  # type: ignore[override]
        """Refused, as every write is."""
        _refuse("apply_")

    def map_(self, *args: Any) -> NoReturn:  # type: ignore[override]  # noqa: ANN401
        """Refused, as every write is."""
        _refuse("map_")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # noqa: ANN401
        return self.clone().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(self.clone(), memo)
