"""Quantized tensors as DTensors: their bytes are cut and scattered.

``parallelize_module`` and ``distribute_tensor`` cut a parameter with a few ops (split; pad and
slice for uneven parts) and scatter or broadcast the parts. If no cut divides a block, each rank
gets its rows or columns of the bytes, with the same scales as the whole. Otherwise the ops
decode as usual, and the layer refuses the result.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from octet import _plans, _texts
from octet._shard import QuantizedShard
from octet._sharded import is_dtensor
from octet.tensor import HANDLERS, QuantizedTensor

aten, c10d = torch.ops.aten, torch.ops.c10d
_API, _CHECKPOINT = "torch.distributed.tensor._api", "torch.distributed.checkpoint"
# names of a layout's axes, for rows and for columns of the matrix
_ALONG = (("leading", "m"), ("k",))


def _is_called_by(module: str, function: str) -> bool:
    """Whether a function of a module is on the stack; any function of the module if none is
    named. There is no other way to know who calls: a user's own split of a quantized tensor
    must behave differently."""
    if module not in sys.modules:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        found = frame.f_globals.get("__name__", "")
        if found == module and frame.f_code.co_name == function:
            return True
        if not function and found.startswith(module + "."):
            return True
        frame = frame.f_back
    return False


def _in_distribute() -> bool:
    return _is_called_by(_API, "distribute_tensor")


def step_of(text: str, dim: int) -> int:
    """How many rows (dim 0) or columns (dim 1) must stay together; 0 if the tensor cannot be
    cut."""
    return _texts.column_step(text) if dim == 1 else _texts.row_step(text)


def cut(tensor: QuantizedTensor, dim: int, start: int, count: int) -> QuantizedTensor:
    """Copies the bytes of some rows or columns of a matrix. They begin at the first one of a
    block. Bytes past the matrix's end, and padding, are zero."""
    sizes = list(tensor.shape)
    total, sizes[dim] = sizes[dim], count
    at, buffers = _plans.axes("dequantize", sizes), []
    for row, buffer in zip(_texts.layout(tensor._text), tensor.buffers(), strict=True):
        axis = next((i for i, d in enumerate(row[3]) if d[0] in _ALONG[dim]), -1)
        if axis < 0:
            buffers.append(buffer.clone())
            continue
        made = buffer.new_zeros(_plans.shape(row[3], at))
        _, mul, div, _ = row[3][axis]
        first, used = start * mul // div, -(-count * mul // div)
        if start + count >= total:  # the last part also gets the padding of the last block
            used = min(made.shape[axis], buffer.shape[axis] - first)
        made.narrow(axis, 0, used).copy_(buffer.narrow(axis, first, used))
        buffers.append(made)
    return QuantizedTensor(buffers, tensor._text, tensor.dtype, sizes)


# ---- ops of distribute_tensor ----------------------------------------------------------------


def _split(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensor, size, dim = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if tensor.dim() != 2 or not _in_distribute():
        return _OTHERS[func](func, args, kwargs)
    dim %= 2
    step, total = step_of(tensor._text, dim), tensor.shape[dim]
    if step == 0 or (size % step and size < total) or size == 0:
        return NotImplemented
    starts = range(0, total, size)
    return [cut(tensor, dim, start, min(size, total - start)) for start in starts]


def _resized(tensor: QuantizedTensor, sizes: Sequence[int]) -> QuantizedTensor:
    for dim, size in enumerate(sizes):
        if size != tensor.shape[dim]:
            tensor = cut(tensor, dim, 0, size)
    return tensor


def _new_zeros(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensor, sizes = args[0], args[1]
    if tensor.dim() != 2 or len(sizes) != 2 or not _in_distribute():
        return _OTHERS[func](func, args, kwargs)
    return _resized(tensor, sizes)  # an empty part, for ranks that hold nothing


def _pad(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensor, pad = args[0], [*args[1], 0, 0][:4]
    if tensor.dim() != 2 or pad[0] or pad[2] or not _in_distribute():
        return NotImplemented
    return _resized(tensor, (tensor.shape[0] + pad[3], tensor.shape[1] + pad[1]))


def _slice(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Removes distribute_tensor's padding; also what a checkpoint reads from a weight saved on
    fewer ranks. Other slices decode."""
    tensor, dim, start, end, step = (*args, *(0, None, None, 1)[len(args) - 1 :])
    if tensor.dim() != 2 or step != 1:
        return NotImplemented
    dim %= 2
    first, last, _ = slice(start, end).indices(tensor.shape[dim])
    if _in_distribute():
        return cut(tensor, dim, first, last - first)
    if not _is_called_by(_CHECKPOINT, ""):
        return NotImplemented
    keeps, total = max(step_of(tensor._text, dim), 1), tensor.shape[dim]
    if first % keeps or (last % keeps and last < total):
        kind = ("rows", "columns")[dim]
        raise ValueError(
            f"a checkpoint's weight {tuple(tensor.shape)} of {tensor._text}: {kind} {first} to "
            f"{last} cut a block of {keeps}; load it on as many ranks as saved it"
        )
    made = cut(tensor, dim, first, last - first)
    made._is_part = True
    return made


def _each(func: Any, made: Any, calls: Sequence[Any]) -> Any:  # noqa: ANN401
    """Runs a collective on each buffer. Returns the last one's work handle."""
    for call in calls[:-1]:
        func(*call)[1].wait()
    return made, func(*calls[-1])[1]


def _scatter(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    outs, lists, *rest = args
    tensors = [*outs, *(t for each in lists for t in each)]
    if not _in_distribute() or not all(isinstance(t, QuantizedTensor) for t in tensors):
        return NotImplemented
    calls = []
    for at, buffer in enumerate(outs[0].buffers()):
        calls.append(([buffer], [[t.buffers()[at] for t in each] for each in lists], *rest))
    return _each(func, outs, calls)


def _broadcast(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensors, *rest = args
    if not _in_distribute() or not all(isinstance(t, QuantizedTensor) for t in tensors):
        return NotImplemented
    calls = [([buffer], *rest) for tensor in tensors for buffer in tensor.buffers()]
    return _each(func, tensors, calls)


_OTHERS = {func: HANDLERS[func] for func in (aten.split.Tensor, aten.new_zeros.default)}
HANDLERS.update(
    {
        aten.split.Tensor: _split,
        aten.new_zeros.default: _new_zeros,
        aten.constant_pad_nd.default: _pad,
        aten.slice.Tensor: _slice,
    }
)
if hasattr(c10d, "scatter_"):  # torch can be built without torch.distributed
    HANDLERS[c10d.scatter_.default] = _scatter
    HANDLERS[c10d.broadcast_.default] = _broadcast


# ---- parameters that are DTensors ------------------------------------------------------------


def mark(made: Any) -> None:  # noqa: ANN401
    """Marks a parameter that became a DTensor. Zeros like a rank's part are then plain, since
    they become an optimizer's moments."""
    if isinstance(made._local_tensor, QuantizedTensor):
        made._local_tensor._is_local = True


def local_of(tensor: Any) -> Any:  # noqa: ANN401
    """The local part of a DTensor; other tensors are returned as they are."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def changed(
    weight: torch.nn.Parameter, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Parameter:
    """Returns a parameter that is stored in another form; for a DTensor its local part
    changes."""
    if not is_dtensor(weight):
        return torch.nn.Parameter(change(weight.detach()), weight.requires_grad)
    from torch.distributed.tensor import DTensor

    held: Any = weight
    sizes = {"run_check": False, "shape": held.shape, "stride": held.stride()}
    with torch.no_grad():
        local = change(held._local_tensor.detach())
        made = DTensor.from_local(local, held.device_mesh, held.placements, **sizes)
    made = torch.nn.Parameter(made, weight.requires_grad)
    mark(made)
    return made


# ---- what is refused -------------------------------------------------------------------------


def _why(held: torch.Tensor, made: Any) -> str:  # noqa: ANN401
    """Why the bytes could not be cut, and how to fix it."""
    if isinstance(held, QuantizedShard):
        return "call fsdp_gather_quantized after parallelize_module"
    for placement, ranks in zip(made.placements, made.device_mesh.shape, strict=True):
        if not placement.is_shard():
            continue
        dim = placement.dim % 2
        size, step = -(-held.shape[dim] // ranks), step_of(held._text, dim)  # type: ignore[attr-defined]
        if size % max(step, 1) and ranks > 1:
            kind = ("rows", "columns")[dim]
            return (
                f"{ranks} ranks get {size} {kind} each, and {held._text} has blocks of {step}; "  # type: ignore[attr-defined]
                f"make them a multiple of {step}, or quantize after parallelize_module, each "
                "rank its share (octet.convert(model, weights=recipe))"
            )
    return "quantize after parallelize_module (octet.convert(model, weights=recipe))"


def would_decode(
    label: str,
    name: str,
    held: torch.Tensor | None,
    made: Any,  # noqa: ANN401
) -> ValueError | None:
    """The error if a DTensor would hold decoded values of a quantized tensor; None
    otherwise."""
    local, kinds = made._local_tensor, QuantizedTensor | QuantizedShard
    if not isinstance(held, kinds) or isinstance(local, kinds):
        return None
    return ValueError(
        f"{label}: {name} is stored or gathered quantized, and a DTensor {made.placements} of "
        f"{tuple(made.shape)} would hold it unquantized: {_why(held, made)}, or split the "
        "layer by parallel_mode"
    )
