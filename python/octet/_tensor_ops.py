"""torch's ops on quantized tensors: a few keep the bytes, all others decode."""

import sys
from collections.abc import Sequence
from typing import Any

from torch.utils import _pytree as pytree

import torch
from octet import _ops, _plans, _texts
from octet._decoded_view import with_views, written_arguments
from octet._dtypes import HIGH_PRECISION
from octet._signatures import gradient_words
from octet.tensor import HANDLERS, QuantizedTensor, copied, quantize_into, same_role

aten = torch.ops.aten
_MODULE_APPLY = torch.nn.Module._apply.__code__


def _like(tensor: QuantizedTensor, buffers: Sequence[torch.Tensor]) -> QuantizedTensor:
    made = QuantizedTensor(buffers, tensor._text, tensor.dtype, tensor.shape)
    return same_role(tensor, made)


def _detach(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    return _same_part(args[0], _like(args[0], [func(b) for b in args[0].buffers()]))


def _same_part(tensor: QuantizedTensor, made: QuantizedTensor) -> QuantizedTensor:
    """Keeps the mark of a part (see _split)."""
    if tensor._is_part:
        made._is_part = True
    return made


def _clone(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    return _like(args[0], [buffer.clone() for buffer in args[0].buffers()])


def _empty_like(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensor = args[0]
    dtype = kwargs.get("dtype") or tensor.dtype
    if dtype not in HIGH_PRECISION:
        return NotImplemented
    device = kwargs.get("device")
    made = [func(buffer, device=device) for buffer in tensor.buffers()]
    return same_role(tensor, QuantizedTensor(made, tensor._text, dtype, tensor.shape))


def _zeros_like(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Quantized zeros. But for trained parameters plain zeros: these become an optimizer's
    moments, where small values beside large ones must not be lost."""
    if args[0].requires_grad or args[0]._is_local:
        return NotImplemented
    made = _empty_like(aten.empty_like.default, args, kwargs)
    if made is NotImplemented:
        return made
    return quantize_into(made, torch.zeros(made.shape, dtype=made.dtype, device=made.device))


def _is_in_module_apply() -> bool:
    """Whether Module._apply is on the stack: model.half(), model.to(dtype), model.cuda(),
    ...

    It asks the stack because nothing else tells: any module may hold a quantized parameter (an
    embedding that is tied to a layer), and to a tensor ``model.half()`` is ``t.half()``."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _MODULE_APPLY:
        frame = frame.f_back
    return frame is not None


def _to_copy(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Another device keeps the bytes. Another dtype gives a plain tensor. But model.to(dtype)
    keeps parameters quantized, with the new dtype."""
    tensor = args[0]
    dtype = kwargs.get("dtype") or tensor.dtype
    device = kwargs.get("device") or tensor.device
    if dtype not in HIGH_PRECISION:
        # Decode directly, not through the tensor's own, perhaps narrower, dtype.
        wide = torch.float32 if dtype.is_floating_point else tensor.dtype
        return func(tensor.dequantize(wide), **kwargs)
    non_blocking = kwargs.get("non_blocking", False)
    if dtype == tensor.dtype or _is_in_module_apply():
        return copied(tensor, dtype, device, non_blocking)
    if device != tensor.device:
        tensor = copied(tensor, tensor.dtype, device, non_blocking)
    return tensor.dequantize(dtype)


def _view(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Another shape with the same rows keeps the bytes; any other view decodes."""
    tensor, sizes = args[0], list(args[1])
    count = 1
    for size in sizes:
        count *= size if size != -1 else 1
    sizes = [size if size != -1 else tensor.numel() // max(count, 1) for size in sizes]
    if not sizes or not tensor.shape or sizes[-1] != tensor.shape[-1]:
        return NotImplemented
    at = _plans.axes("dequantize", sizes)
    buffers = [
        buffer.view(_plans.shape(row[3], at))
        for row, buffer in zip(_texts.layout(tensor._text), tensor.buffers(), strict=True)
    ]
    made = QuantizedTensor(buffers, tensor._text, tensor.dtype, sizes)
    return _same_part(tensor, made)


def _bits(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """A view as another dtype is refused: torch would share the memory of elements that do not
    exist."""
    raise RuntimeError(
        f"view({args[1]}) reads the bits of elements, which {args[0]!r} does not have: take "
        "buffers(), or dequantize() first"
    )


def _part(tensor: QuantizedTensor, start: int, count: int) -> QuantizedTensor:
    """Copies the bytes of a range of the first axis; padding is zero."""
    rest = tensor.shape[1:-1]
    sizes = [count, *tensor.shape[1:]]
    at, before = _plans.axes("dequantize", sizes), _plans.axes("dequantize", [start, *rest, 1])
    buffers = []
    for row, buffer in zip(_texts.layout(tensor._text), tensor.buffers(), strict=True):
        for axis, (name, mul, div, align) in enumerate(row[3]):
            if name == "leading":
                buffer = buffer.narrow(axis, start, count)
            elif name == "m":
                first, used = before.m * mul // div, -(-at.m * mul // div)
                size = -(-used // align) * align
                # the last part also gets the padding of the last block
                if start + count == tensor.shape[0]:
                    used = min(size, buffer.shape[axis] - first)
                pad = [0, 0] * (buffer.dim() - 1 - axis) + [0, size - used]
                buffer = torch.nn.functional.pad(buffer.narrow(axis, first, used), pad)
        buffers.append(buffer.clone(memory_format=torch.contiguous_format))
    made = QuantizedTensor(buffers, tensor._text, tensor.dtype, sizes)
    made._is_part = True
    return made


def _split(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Splitting the first axis keeps the bytes if no block is divided."""
    tensor, sizes, dim = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if tensor.dim() < 2 or dim not in (0, -tensor.dim()):
        return NotImplemented
    total = tensor.shape[0]
    if not isinstance(sizes, list | tuple):
        each = max(sizes, 1)
        sizes = [min(each, total - at) for at in range(0, total, each)] or [total]
    step, starts = _texts.row_step(tensor._text), [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    rows = [start * _plans.axes("dequantize", [1, *tensor.shape[1:]]).m for start in starts]
    if starts[-1] != total or step == 0 or any(row % step for row in rows[1:-1]):
        return NotImplemented
    return [_part(tensor, at, size) for at, size in zip(starts, sizes, strict=False)]


def _copy_(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    if isinstance(args[0], QuantizedTensor):
        out, source = args[0], args[1]
        if source.device != out.device:
            source = source.to(out.device)
        quantize_into(out, source if source.shape == out.shape else source.expand(out.shape))
        return out
    return NotImplemented


def expand_args(kind: str, words: str, args: Sequence[Any], mutated: int = 0) -> list[Any]:
    """The plan's arguments: a quantized tensor is replaced by the buffers that the plan
    reads."""
    plan = _plans.describe(kind, words)
    ports = [p for p in plan.args if not (p.is_in_state or (mutated and p.is_mutable))]
    flat: list[Any] = []
    for arg in args:
        if not isinstance(arg, QuantizedTensor):
            flat.append(arg)
            continue
        name, parts = ports[len(flat)].name, _texts.part_names(arg._text)
        while len(flat) < len(ports) and ports[len(flat)].name == name:
            part = ports[len(flat)].part
            if part not in parts:
                raise ValueError(
                    f"{name} is {arg._text}, which has no {part}: quantize it again"
                )
            flat.append(getattr(arg, parts[part]))
    return flat


def _kind(func: Any) -> str:  # noqa: ANN401
    return func._schema.name.removeprefix("octet::")


def with_gradient(
    kind: str, text: str, args: Sequence[Any], mutated: int = 0
) -> tuple[str, list[Any]]:
    """A backward whose gradient arrives quantized: changes the text, and leaves out arguments
    that the plan then does not read."""
    if kind != "linear_backward" or not isinstance(args[0], QuantizedTensor):
        return text, list(args)
    plain = _plans.describe(kind, text)
    quantized = gradient_words(text, None, args[0]._text)
    wanted = [g.name for g in _plans.groups(_plans.describe(kind, quantized).args)]
    read = [p for p in plain.args if not (p.is_in_state or (mutated and p.is_mutable))]
    names = [g.name for g in _plans.groups(read)]
    passed = [arg for name, arg in zip(names, args, strict=False) if name in wanted]
    return quantized, passed + list(args[len(names) :])


def as_if_plain(
    kind: str, plain: str, quantized: str, outs: Sequence[torch.Tensor], like: torch.Tensor
) -> list[torch.Tensor]:
    """The outputs of a backward for a caller that expects those of a plain gradient.

    There is nothing to measure in a quantized one and nothing to save: zeros, no bytes."""
    wanted, given = _plans.describe(kind, plain), _plans.describe(kind, quantized)
    made = [(port.name, port.part) for port in given.outs if port.alias < 0]
    found = dict(zip(made, outs, strict=False))
    aligned = []
    for port in wanted.outs:
        if port.alias >= 0:
            continue
        if (port.name, port.part) not in found:
            sizes = _plans.shape(port.dims, _plans.Axes((), 1, 1, 1))
            found[port.name, port.part] = like.new_zeros(sizes, dtype=port.dtype)
        aligned.append(found[port.name, port.part])
    if wanted.arena:
        none = like.new_empty([0], dtype=torch.uint8)
        aligned.append(outs[len(made)] if given.arena else none)
    return aligned


def _planned(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensors, sizes, plain = args
    kind = _kind(func)
    text, tensors = with_gradient(kind, plain, tensors)
    tensors = expand_args(kind, text, tensors)
    outs = func(tensors, sizes, text)
    return outs if text == plain else as_if_plain(kind, plain, text, outs, tensors[0])


def _seeded(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensors, seed, sizes, text = args
    return func(expand_args("linear", text, tensors), seed, sizes, text)


def _drawn(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensor, others, before, sizes, text = args
    tensors = expand_args("linear", text, [tensor, *others])
    return func(tensors[0], tensors[1:], before, sizes, text)


def _wgrad_into(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    main_grad, tensors, sizes, text = args
    return func(main_grad, expand_args("linear_wgrad", text, tensors, 1), sizes, text)


def _linear_into(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    written, tensors, sizes, text = args
    return func(written, expand_args("linear", text, tensors, 1), sizes, text)


def _backward_into(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    written, tensors, sizes, plain, rule = args
    kind = "linear_backward"
    text, tensors = with_gradient(kind, plain, tensors, len(written))
    tensors = expand_args(kind, text, tensors, len(written))
    if text == plain:
        return func(written, tensors, sizes, text, rule)
    before, plan = _plans.describe(kind, plain), _plans.describe(kind, text)
    names = [port.name for port in before.args if port.is_mutable]
    by_name = dict(zip(names, written, strict=True))
    written = [by_name[port.name] for port in plan.args if port.is_mutable]
    if "amax" in by_name and not any(port.name == "amax" for port in plan.args):
        # A quantized gradient has no amax to record; scales are updated all the same.
        if rule:
            _ops.delayed_update([by_name["amax"]], f"grad_output {rule}")
        rule = ""
    if written:
        made = sum(port.alias < 0 for port in plan.outs) + bool(plan.arena)
        op = _ops.linear_backward_into[made]
        outs = _ops.listed(op(written, tensors, sizes, text, rule))
    else:
        outs = _ops.linear_backward(tensors, sizes, text)
    aligned = as_if_plain(kind, plain, text, outs, tensors[0])
    return tuple(aligned) if len(aligned) > 1 else aligned[0] if aligned else None


def _decoded(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Any other op runs on decoded tensors; what it wrote is quantized again."""
    stands_for: dict[int, tuple[QuantizedTensor, torch.Tensor]] = {}

    def decode(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, QuantizedTensor):
            return value
        if id(value) not in stands_for:
            stands_for[id(value)] = (value, value.dequantize())
        return stands_for[id(value)][1]

    args_, kwargs_ = pytree.tree_map(decode, (args, kwargs))
    result = func(*args_, **kwargs_)
    for tensor in written_arguments(func, args, kwargs):
        if id(tensor) in stands_for:
            quantize_into(*stands_for[id(tensor)])
    back = {id(plain): tensor for tensor, plain in stands_for.values()}
    result = pytree.tree_map(lambda value: back.get(id(value), value), result)
    return with_views(result, [plain for _, plain in stands_for.values()])


HANDLERS.update(
    {
        None: _decoded,
        aten.detach.default: _detach,
        aten.alias.default: _detach,
        aten.clone.default: _clone,
        aten.empty_like.default: _empty_like,
        aten.zeros_like.default: _zeros_like,
        aten._to_copy.default: _to_copy,
        aten.view.default: _view,
        aten.view.dtype: _bits,
        aten._unsafe_view.default: _view,
        aten.split.Tensor: _split,
        aten.split_with_sizes.default: _split,
        aten.copy_.default: _copy_,
        _ops.dequantize: _planned,
        _ops.linear: _planned,
        _ops.linear_seeded: _seeded,
        torch.ops.octet.linear_drawn.default: _drawn,
        _ops.linear_backward: _planned,
        _ops.linear_wgrad: _planned,
        _ops.linear_wgrad_into: _wgrad_into,
        **dict.fromkeys(_ops.linear_into, _linear_into),
        **dict.fromkeys(_ops.linear_backward_into, _backward_into),
    }
)
