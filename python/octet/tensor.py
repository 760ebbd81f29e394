"""QuantizedTensor: one tensor subclass for every scheme: a text, a shape and its buffers."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from octet import _ops, _texts, quantizers
from octet._constant import constant
from octet._dtypes import dtype_name
from octet._opaque import cache_key
from octet._quantizer import before_write, put_back

_DATA: Any = torch.Tensor.data  # torch's own property `data`

_NO_MEMORY = (
    "a QuantizedTensor has no memory of its own: take its buffers() or dequantize(); to save "
    "it with safetensors, save octet.flatten_state_dict(state_dict)"
)

# op -> its handler for quantized tensors, filled by octet._tensor_ops; None is for all other
# ops.
HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {}


@constant
def _absent_names(text: str) -> tuple[str, ...]:
    """Names of buffers that the scheme has but this quantizer does not make; they read as
    None."""
    own = _texts.buffer_names(text)
    return tuple(name for name in _texts.buffer_names(_texts.kind(text)) if name not in own)


class QuantizedTensor(torch.Tensor):
    """A tensor that is stored quantized and stands for a high-precision one.

    ``shape`` and ``dtype`` are those it stands for; its buffers are attributes
    (``_rowwise_data``, ...), None where it has no such bytes. Ops that are not listed in
    docs/quantized-tensors.md dequantize it. ``.to(device)`` keeps it quantized; another dtype
    (``.float()``, ``.to(torch.bfloat16)``) gives a plain tensor.

    A view of some elements or in another order (``w[0]``, ``w.t()``) is a decoded copy; writing
    into it is a RuntimeError. Compiled code cannot refuse that: there the write is lost.

    >>> x = octet.MXFP8Quantizer("e4m3")(torch.randn(4, 64))
    >>> x.shape, x.dtype, x._rowwise_data.dtype
    (torch.Size([4, 64]), torch.float32, torch.uint8)
    """

    _text: str
    _is_part = False  # whether split() made it: a part with its own bytes
    _is_local = False  # whether it is the local part of a DTensor parameter

    @staticmethod
    def __new__(
        cls: type["QuantizedTensor"],
        buffers: Sequence[torch.Tensor],
        text: str,
        dtype: torch.dtype,
        shape: Sequence[int],
        requires_grad: bool = False,
    ) -> "QuantizedTensor":
        """A quantized tensor of these buffers, in flatten order."""
        self = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=buffers[0].device, requires_grad=requires_grad
        )
        self._text = text
        for name in _absent_names(text):
            setattr(self, name, None)
        for name, buffer in zip(_texts.buffer_names(text), buffers, strict=True):
            setattr(self, name, buffer)
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        del args, kwargs

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self) -> tuple[list[str], tuple[str, torch.dtype]]:
        return list(_texts.buffer_names(self._text)), (self._text, self.dtype)

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor],
        meta: tuple[str, torch.dtype],
        outer_size: Sequence[int],
        outer_stride: Sequence[int],
    ) -> "QuantizedTensor":
        del outer_stride
        text, dtype = meta
        return QuantizedTensor(
            [inner[n] for n in _texts.buffer_names(text)], text, dtype, outer_size
        )

    _stable_hash_for_caching = cache_key

    def __coerce_tangent_metadata__(self) -> torch.Tensor:
        """torch calls this for an output of a compiled graph that requires grad. torch would
        accept only a gradient of the same class, but gradients are plain."""
        raise RuntimeError(
            f"{self!r} requires grad and leaves a compiled graph, which cannot take its "
            "gradient back: dequantize() or detach() it inside, or compile its consumer along"
        )

    def __coerce_same_metadata_as_tangent__(
        self,
        expected: Any,  # noqa: ANN401
        expected_type: type | None = None,
    ) -> torch.Tensor | None:
        return self.dequantize() if expected_type is torch.Tensor else None

    # ---- what it is ------------------------------------------------------------------------

    @property
    def quantizer(self) -> quantizers.Quantizer | None:
        """A copy of its quantizer."""
        return quantizers.from_text(self._text)

    def buffers(self) -> list[torch.Tensor]:
        """Its buffers, in flatten order."""
        return [getattr(self, name) for name in _texts.buffer_names(self._text)]

    def get_usages(self) -> dict[str, bool]:
        """Which bytes it has: ``{"rowwise": True, "columnwise": False}``."""
        rowwise, columnwise = _texts.usages(self._text)
        return {"rowwise": rowwise, "columnwise": columnwise}

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Drops bytes that are no longer needed; raises for bytes that it does not have."""
        text = _texts.with_usage(self._text, rowwise_usage, columnwise_usage)
        missing = set(_texts.buffer_names(text)) - set(_texts.buffer_names(self._text))
        if missing:
            raise RuntimeError(f"the tensor has no {min(missing)}: quantize it again")
        for name in set(_texts.buffer_names(self._text)) - set(_texts.buffer_names(text)):
            setattr(self, name, None)
        self._text = text

    def __repr__(self) -> str:  # type: ignore[override]
        return f"QuantizedTensor({self._text!r}, shape={tuple(self.shape)}, dtype={self.dtype})"

    # ---- what it does ----------------------------------------------------------------------

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:  # type: ignore[override]
        """The decoded tensor, in its dtype or another."""
        return _Dequantize.apply(self, dtype or self.dtype)

    def get_high_precision_init_val(self) -> torch.Tensor | None:
        """The value a parameter was made from, where quantized_model_init preserved it."""
        return getattr(self, "_high_precision_init_val", None)

    def clear_high_precision_init_val(self) -> None:
        """Forgets the preserved value."""
        self.__dict__.pop("_high_precision_init_val", None)

    def quantize_(
        self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None
    ) -> "QuantizedTensor":
        """Quantizes a tensor into these buffers. If the one element of ``noop_flag`` is not
        zero, they stay as they are; the device reads the flag."""
        if noop_flag is None:
            return quantize_into(self, tensor)
        buffers = self.buffers()
        before = before_write(noop_flag, buffers)
        quantize_into(self, tensor)
        put_back(noop_flag, buffers, before)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401
        """Writes some elements; the whole tensor is quantized again.

        Torch would write into a view, and a view of some elements is a decoded copy."""
        plain = self.dequantize()
        plain[index] = value
        self.copy_(plain)

    # ---- its memory: torch asks these without an op, and a wrapper has none ------------------

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        """The same tensor without its gradient; setting it replaces the buffers.

        What is not quantized is quantized as this tensor is."""
        return _DATA.__get__(self)

    @data.setter
    def data(self, tensor: torch.Tensor) -> None:
        if not isinstance(tensor, QuantizedTensor):
            dtype_name(tensor.dtype)  # raises for dtypes that cannot be quantized
            tensor = quantize_into(copied(self, tensor.dtype, tensor.device), tensor)
        _DATA.__set__(self, tensor)
        for name in (*_texts.buffer_names(self._text), *_absent_names(self._text)):
            delattr(self, name)
        self._text = tensor._text
        for name in (*_texts.buffer_names(self._text), *_absent_names(self._text)):
            setattr(self, name, getattr(tensor, name))

    def data_ptr(self) -> int:
        """Refused: the elements it stands for are not in memory."""
        raise RuntimeError(_NO_MEMORY)

    def storage(self) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Refused, as data_ptr is; safetensors asks for it."""
        raise RuntimeError(_NO_MEMORY)

    def share_memory_(self) -> "QuantizedTensor":  # type: ignore[override]
        """Moves its buffers to shared memory."""
        for buffer in self.buffers():
            buffer.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether its buffers are in shared memory."""
        return all(buffer.is_shared() for buffer in self.buffers())

    def numpy(self, *, force: bool = False) -> Any:  # noqa: ANN401
        """What it stands for, as an array."""
        return self.dequantize().numpy(force=force)

    def tolist(self) -> Any:  # noqa: ANN401
        """What it stands for, as a list."""
        return self.dequantize().tolist()

    def __dlpack__(self, **kwargs: Any) -> Any:  # noqa: ANN401
        return self.dequantize().__dlpack__(**kwargs)

    def apply_(self, function: Callable[[float], float]) -> "QuantizedTensor":  # type: ignore[override]
        """Applies a function to each element, on the CPU."""
        return self.quantize_(self.dequantize().apply_(function))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # noqa: ANN401
        del protocol
        parts = (self.buffers(), self._text, self.dtype, tuple(self.shape))
        is_param = isinstance(self, torch.nn.Parameter)
        value = self.get_high_precision_init_val()
        preserved = () if value is None else (value,)
        return rebuild, (*parts, self.requires_grad, is_param, *preserved)

    def __deepcopy__(self, memo: dict[int, Any]) -> "QuantizedTensor":
        if id(self) not in memo:
            # Through the memo: other copied objects may hold the same buffers.
            function, args = self.__reduce_ex__(None)
            memo[id(self)] = same_role(self, function(*copy.deepcopy(args, memo)))
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        del types
        if func.is_view and torch.is_inference_mode_enabled() and not args[0].is_inference():
            # Under inference_mode a view of a normal tensor is a normal tensor, made below
            # autograd.
            with torch.inference_mode(False), torch._C._AutoDispatchBelowAutograd():
                return _handled(func, args, kwargs or {})
        return _handled(func, args, kwargs or {})


def _handled(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    handler = HANDLERS.get(func)
    result = handler(func, args, kwargs) if handler else NotImplemented
    return HANDLERS[None](func, args, kwargs) if result is NotImplemented else result


class Carried:
    """Attributes and hooks attached to a quantized parameter.

    Modules move such a parameter by making a new one and swapping the two. A plain parameter
    would keep its attributes, so they are put back here."""

    def __init__(self, tensor: QuantizedTensor) -> None:
        self._tensor = tensor
        self._attributes = dict(vars(tensor))
        self._hooks = tensor._backward_hooks
        self._grad_hooks = tensor._post_accumulate_grad_hooks

    def put_back(self) -> None:
        """Attaches what is no longer attached."""
        own = vars(self._tensor)
        parts = _texts.buffer_names(self._tensor._text)
        for name, value in self._attributes.items():
            if name not in own and name not in parts:
                own[name] = value
        if self._hooks is not None:
            self._tensor._backward_hooks = self._hooks
        if self._grad_hooks is not None:
            self._tensor._post_accumulate_grad_hooks = self._grad_hooks


def same_role(tensor: QuantizedTensor, made: QuantizedTensor) -> QuantizedTensor:
    """Keeps the mark of a local part of a DTensor parameter."""
    if tensor._is_local:
        made._is_local = True
    return made


def rebuild(
    buffers: Sequence[torch.Tensor],
    text: str,
    dtype: torch.dtype,
    shape: Sequence[int],
    requires_grad: bool,
    is_param: bool,
    init_val: torch.Tensor | None = None,
) -> QuantizedTensor:
    """Unpickles a quantized tensor."""
    made = QuantizedTensor(buffers, text, dtype, shape)
    if is_param:
        made = torch.nn.Parameter(made, requires_grad)  # type: ignore[assignment]
    else:
        made.requires_grad_(requires_grad)
    if init_val is not None:
        made._high_precision_init_val = init_val
    return made


class _Quantize(torch.autograd.Function):
    """Quantizes; the gradient passes straight through."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        text: str,
        live: list[torch.Tensor],
        tensor: torch.Tensor,
    ) -> QuantizedTensor:
        del ctx
        buffers = _ops.quantize(
            tensor, live, _texts.tensor_words(dtype_name(tensor.dtype), text)
        )
        return QuantizedTensor(buffers, text, tensor.dtype, tensor.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        del ctx
        return None, None, grad


class _Dequantize(torch.autograd.Function):
    """Decodes; the gradient passes straight through, in the tensor's dtype."""

    @staticmethod
    def forward(ctx: Any, tensor: QuantizedTensor, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401
        ctx.dtype = tensor.dtype
        text = _texts.tensor_words(dtype_name(dtype), tensor._text)
        made = _ops.dequantize([tensor], tensor.shape, text)
        # a scalar is stored as a row with one column
        return made if tensor.shape else made.reshape(())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        return grad.to(ctx.dtype), None


class _AsDtype(torch.autograd.Function):
    """The same bytes with another dtype; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: Any, tensor: QuantizedTensor, dtype: torch.dtype) -> QuantizedTensor:  # noqa: ANN401
        ctx.dtype = tensor.dtype
        return QuantizedTensor(tensor.buffers(), tensor._text, dtype, tensor.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        return grad.to(ctx.dtype), None


def as_dtype(tensor: QuantizedTensor, dtype: torch.dtype) -> QuantizedTensor:
    """The same bytes with another dtype; differentiable."""
    dtype_name(dtype)  # raises for dtypes that cannot be quantized
    return tensor if dtype == tensor.dtype else _AsDtype.apply(tensor, dtype)


def copied(
    tensor: QuantizedTensor,
    dtype: torch.dtype,
    device: torch.device,
    non_blocking: bool = False,
) -> QuantizedTensor:
    """A copy of the bytes on a device, with this dtype; not differentiable."""
    with torch.no_grad():
        buffers = [
            buffer.to(device, non_blocking=non_blocking, copy=True)
            for buffer in tensor.buffers()
        ]
    return same_role(tensor, QuantizedTensor(buffers, tensor._text, dtype, tensor.shape))


class _Through(torch.autograd.Function):
    """Returns the second tensor; the gradient goes to the first."""

    @staticmethod
    def forward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        del ctx, first
        return second.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        del ctx
        return grad, None


def straight_through(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The second tensor; its gradient goes to the first."""
    grads = first.requires_grad and torch.is_grad_enabled()
    return _Through.apply(first, second) if grads else second


def quantize(text: str, tensor: torch.Tensor, live: list[torch.Tensor]) -> QuantizedTensor:
    """The quantized tensor; its gradient is the tensor's."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Quantize.apply(text, live, tensor)
    buffers = _ops.quantize(tensor, live, _texts.tensor_words(dtype_name(tensor.dtype), text))
    return QuantizedTensor(buffers, text, tensor.dtype, tensor.shape)


def quantize_into(
    out: QuantizedTensor, tensor: torch.Tensor, live: list[torch.Tensor] | None = None
) -> QuantizedTensor:
    """Quantizes a tensor, or copies a quantized one, into the buffers of another."""
    if out._is_part:
        raise RuntimeError(
            "this QuantizedTensor is a copy of a part of another (split, chunk), so what is "
            "written into it would be lost: write to the other itself (w[0:128] = ...), or "
            "clone() this first"
        )
    if tuple(out.shape) != tuple(tensor.shape):
        raise ValueError(f"a tensor {tuple(tensor.shape)} does not fit into {tuple(out.shape)}")
    with torch.no_grad():
        if isinstance(tensor, QuantizedTensor):
            if _texts.covers(tensor._text, out._text):
                for name in _texts.buffer_names(out._text):
                    getattr(out, name).copy_(getattr(tensor, name))
                return out
            tensor = tensor.dequantize()
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            tensor = tensor.to(out.dtype)
        buffers = out.buffers()
        if live is None:
            live, buffers = _live_of(out, buffers)
        _ops.quantize_into(
            buffers, tensor, live, _texts.tensor_words(dtype_name(tensor.dtype), out._text)
        )
    return out


def _live_of(
    out: QuantizedTensor, buffers: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that quantizing into a tensor reads: with delayed scaling, the scale that it
    has."""
    if _texts.takes_scale(out._text):
        scale_inv = getattr(out, _texts.part_names(out._text)["scale_inv"])
        return [scale_inv.reciprocal()], [*buffers, torch.empty_like(scale_inv)]
    quantizer = out.quantizer
    return (quantizer._live(out.device) if quantizer else []), buffers


torch.serialization.add_safe_globals([rebuild, QuantizedTensor])
