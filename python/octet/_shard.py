"""QuantizedShard: a rank's rows of a weight that fully_shard gathers quantized.

fully_shard cuts a quantized parameter with a few ops (split, new_zeros, slice, copy_). It
asks the shards what to gather (fsdp_pre_all_gather) and what to make of it
(fsdp_post_all_gather).
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.utils import _pytree as pytree

import torch
from octet import _C, _row_form, _texts
from octet._decoded_view import written_arguments
from octet._row_form import form_of
from octet._shard_memory import Memory, new_number
from octet._sharded import FSDP_PARAM, shard_of
from octet._tensor_ops import _split
from octet.tensor import HANDLERS, QuantizedTensor

aten = torch.ops.aten
Metadata = tuple[bool, bool]  # which directions are sent: (rowwise, columnwise)


class QuantizedShard(torch.Tensor):
    """Some rows of a weight that is gathered quantized. Other ops see the decoded values."""

    _memory: Memory
    _offset: int

    @staticmethod
    def __new__(
        cls: type["QuantizedShard"], memory: Memory, offset: int, shape: Sequence[int]
    ) -> "QuantizedShard":
        """A view of some rows."""
        self = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=memory.dtype, device=memory.device
        )
        self._memory, self._offset = memory, offset
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        del args, kwargs

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self) -> str:  # type: ignore[override]
        return f"QuantizedShard({self._memory.form.text!r}, shape={tuple(self.shape)})"

    def rows(self) -> int:
        """The number of rows."""
        return self.shape[0] if self.dim() == 2 else self._memory.rows

    def dequantize(self) -> torch.Tensor:  # type: ignore[override]
        """The decoded values."""
        return self._memory.read(self._offset, self.rows()).reshape(self.shape)

    # ---- what fully_shard asks ---------------------------------------------------------------

    def fsdp_pre_all_gather(self, mesh: Any) -> tuple[tuple[torch.Tensor, ...], Metadata]:  # noqa: ANN401
        """The bytes to send, and which directions they contain."""
        memory = self._memory
        memory.place(mesh)
        memory.settled()
        with torch.no_grad():
            lines = memory.quantized() if memory.stores_values else memory.lines
            which = self._directions()
            return (_travelling(memory, lines, which),), which

    def _directions(self) -> Metadata:
        """Which directions to send. If the weight is gathered for forward and again for
        backward: rowwise bytes for forward, columnwise for backward. If it is gathered once:
        both."""
        memory = self._memory.origin or self._memory
        reshards, training_state = _fsdp_group(memory.form)
        if not memory.form.of_columns():
            return True, True
        if memory.alternates is None:
            memory.alternates = reshards and training_state in ("FORWARD", "PRE_BACKWARD")
        elif memory.alternates and not reshards:
            raise RuntimeError(
                f"a weight {tuple(memory.form.shape)} of {memory.form.text} was gathered one "
                "direction at a time, and is now to be gathered once for both: call "
                "set_reshard_after_forward(False) before the first forward"
            )
        if not memory.alternates:
            return True, True
        in_backward = training_state == "PRE_BACKWARD"
        return not in_backward, in_backward

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Metadata,
        param_dtype: torch.dtype,
        *,
        out: torch.Tensor | None = None,
    ) -> Any:  # noqa: ANN401
        """The whole quantized weight and its buffers. `out` is the tensor of an earlier gather,
        if there is one."""
        form, (rows,) = self._memory.form, all_gather_outputs
        made = getattr(out, "_local_tensor", out)
        if made is None:
            made = _row_form.empty(form, param_dtype, rows.device, form.shape[0])
        _fill(form, rows, made, metadata)
        rows.untyped_storage().resize_(0)  # freed: the bytes are in the buffers now
        return None if out is not None else (made, tuple(made.buffers()))

    def gather_rowwise(self, whole: QuantizedTensor) -> None:
        """Gathers the rowwise bytes of a weight that was gathered for backward only, because a
        checkpoint runs its layer again."""
        memory = self._memory
        lines = memory.quantized() if memory.stores_values else memory.lines
        sent = _travelling(memory, lines, (True, False)).to(whole.device)
        rows = sent.new_empty(sent.shape[0] * memory.mesh.size(), sent.shape[1])
        torch.distributed.all_gather_into_tensor(rows, sent, memory.mesh.get_group())
        for part in _parts_of(memory.form, (True, False)):
            buffer = getattr(whole, part.name)
            buffer.untyped_storage().resize_(buffer.numel() * buffer.itemsize)
        _row_form.into_buffers(memory.form, rows, whole, _parts_of(memory.form, (True, False)))

    # ---- ops ---------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # noqa: ANN401
        memory = self._memory
        if memory.stores_values:
            return self.dequantize().__reduce_ex__(protocol)
        if memory.is_stale:
            raise RuntimeError(
                f"{self!r} was written and is not quantized yet: save it after the optimizer's "
                "step or after a forward"
            )
        lines = memory.lines[self._offset : self._offset + self.rows()].clone()
        start = (memory.start or 0) + self._offset
        return rebuild_shard, (lines, memory.form.text, memory.form.shape, memory.dtype, start)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        del types
        handler = _SHARD_HANDLERS.get(func)
        made = handler(func, args, kwargs or {}) if handler else NotImplemented
        return _on_values(func, args, kwargs or {}) if made is NotImplemented else made


def rebuild_shard(
    lines: torch.Tensor, text: str, shape: Sequence[int], dtype: torch.dtype, start: int
) -> QuantizedShard:
    """Unpickles a shard."""
    memory = Memory(form_of(text, tuple(shape)), dtype, lines.shape[0], False)
    memory.lines, memory.start = lines, start
    return QuantizedShard(memory, 0, (lines.shape[0], shape[1]))


# ---- gathering -------------------------------------------------------------------------------


def _parts_of(form: _row_form.Form, which: Metadata) -> list[_row_form.Part]:
    row, column = which
    return [p for p in form.parts if (row if p.start < form.split else column)]


def _travelling(memory: Memory, lines: torch.Tensor, which: Metadata) -> torch.Tensor:
    """The bytes of the lines that are sent. Both directions are padded to the same size."""
    split, width = memory.form.split, memory.form.width
    if which == (True, True):
        return lines
    part = lines[:, :split] if which[0] else lines[:, split:]
    most = max(split, width - split)
    return torch.nn.functional.pad(part, (0, most - part.shape[1]))


def _fill(
    form: _row_form.Form, rows: torch.Tensor, made: QuantizedTensor, which: Metadata
) -> None:
    """Writes the directions that were sent; frees the memory of the other."""
    parts = _parts_of(form, which)
    for part in form.parts:
        if part not in parts:
            getattr(made, part.name).untyped_storage().resize_(0)
    _row_form.into_buffers(form, rows, made, parts)


def _fsdp_group(form: _row_form.Form) -> tuple[bool, str]:
    """Whether fully_shard frees the gathered parameters after forward, and its training state.
    Read from the stack, because torch tells it nowhere else."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        group = frame.f_locals.get("self")
        if frame.f_code.co_name in ("unshard", "wait_for_unshard") and hasattr(
            group, "_reshard_after_forward"
        ):
            after = getattr(group, "post_forward_mesh_info", None)
            if after is not None and after != getattr(group, "mesh_info", None):
                raise ValueError(
                    f"fully_shard of a weight {tuple(form.shape)} of {form.text}: it would "
                    "be sharded over fewer ranks after forward, which is for plain weights; "
                    "make reshard_after_forward True or False"
                )
            return bool(group._reshard_after_forward), group._training_state.name
        frame = frame.f_back
    return False, ""


def restore_rowwise(layer: Any, weight: torch.Tensor) -> None:  # noqa: ANN401
    """Before a layer runs forward inside a backward: gathers the rowwise bytes of its weight if
    only the columnwise ones are there."""
    if not isinstance(weight, QuantizedTensor) or weight.buffers()[0].numel() == 0:
        return
    if weight.buffers()[0].untyped_storage().size() == 0:
        shard = shard_of(layer, "weight")
        if shard is None:
            raise RuntimeError(
                f"{layer._label()}: its weight was gathered for backward only, and this torch "
                "does not tell by whom; leave out the checkpoint around it"
            )
        shard._local_tensor.gather_rowwise(weight)


def check_recomputed(layer: Any, weight: Any) -> None:  # noqa: ANN401
    """Raises for compiled code inside a checkpoint if forward and backward gather one direction
    each. Compiled code cannot gather the other one, as restore_rowwise does."""
    shard = shard_of(layer, "weight")
    local = getattr(shard, "_local_tensor", None)
    if not isinstance(local, QuantizedShard) or not local._memory.alternates:
        return
    raise ValueError(
        f"{layer._label()}: a checkpoint would run compiled code again in backward, when only "
        f"the columnwise bytes of its weight of {weight._text} are gathered; keep the layer "
        "out of the checkpoint or out of compiled code, call fully_shard with "
        "reshard_after_forward=False, or quantize by "
        "MXFP8BlockScaling(enable_2d_quantization=True)"
    )


# ---- ops on shards
# -------------------------------------------------------------------------------


def _view_of(shard: QuantizedShard, start: int, rows: int) -> QuantizedShard:
    memory = shard._memory
    return QuantizedShard(memory, shard._offset + start, (rows, memory.form.shape[1]))


def _same(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    return QuantizedShard(args[0]._memory, args[0]._offset, args[0].shape)


def _sliced(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    shard, dim, start, end, step = (*args, *(0, None, None, 1)[len(args) - 1 :])
    if dim not in (0, -2) or step != 1 or shard.dim() != 2:
        return NotImplemented
    first, last, _ = slice(start, end).indices(shard.shape[0])
    return _view_of(shard, first, max(last - first, 0))


def _parted(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    shard, size, dim = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if not _in_fully_shard():  # for example parallelize_module: parts are plain
        return NotImplemented
    if dim not in (0, -2) or shard.dim() != 2 or not isinstance(size, int):
        return NotImplemented
    count = shard.shape[0]
    return [_view_of(shard, at, min(size, count - at)) for at in range(0, count, size or 1)]


def _viewed(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    shard, size = args[0], tuple(args[1])
    if size in ((-1,), (shard.numel(),), tuple(shard.shape)):
        shape = shard.shape if len(size) == 2 else (shard.numel(),)
        return QuantizedShard(shard._memory, shard._offset, shape)
    return NotImplemented


def _made(fill: bool) -> Any:  # noqa: ANN401
    def make(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        shard, size = args[0], tuple(args[1])
        device = kwargs.get("device") or shard.device
        if len(size) != 2 or size[1] != shard._memory.form.shape[1]:
            return torch.zeros(size, dtype=kwargs.get("dtype") or shard.dtype, device=device)
        return QuantizedShard(shard._memory.like(size[0], device, fill), 0, size)

    return make


def _emptied(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    shard, device = args[0], torch.device(kwargs.get("device") or args[0].device)
    if kwargs.get("dtype") not in (None, shard.dtype) or shard.dim() != 2:
        return NotImplemented
    memory = shard._memory.like(shard.rows(), device, False)
    memory.start = None if shard._memory.start is None else shard._memory.start + shard._offset
    return QuantizedShard(memory, 0, shard.shape)


def _zeros(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Plain zeros: they become an optimizer's moments."""
    shard = args[0]
    dtype, device = kwargs.get("dtype") or shard.dtype, kwargs.get("device") or shard.device
    return torch.zeros(shard.shape, dtype=dtype, device=device)


def _cloned(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """A copy. With another dtype it is a plain tensor."""
    shard = args[0]
    device = torch.device(kwargs.get("device") or shard.device)
    if kwargs.get("dtype") not in (None, shard.dtype) or shard.dim() != 2:
        return NotImplemented
    if shard.device.type == "cpu" != device.type and _in_fully_shard():
        return sent_to(shard, device)
    made = _emptied(aten.empty_like.default, (shard,), {"device": device})
    return _copied(aten.copy_.default, (made, shard), {})


def sent_to(shard: QuantizedShard, device: torch.device) -> QuantizedShard:
    """A shard under CPUOffloadPolicy, copied to the device where it is gathered. The copy
    refers to the original."""
    made = shard._memory.copied(lambda held: held.to(device, copy=True, non_blocking=True))
    made.origin = shard._memory
    return QuantizedShard(made, shard._offset, shard.shape)


def _pinned(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """A copy in pinned memory, for CPUOffloadPolicy."""
    shard = args[0]
    memory = shard._memory.copied(lambda held: held.pin_memory())
    return QuantizedShard(memory, shard._offset, shard.shape)


def _is_pinned(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    memory = args[0]._memory
    return (memory.values if memory.lines is None else memory.lines).is_pinned()


def _copied(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Copies lines if both have lines of the same rows, else decoded values."""
    out, source = args[0], args[1]
    if not isinstance(out, QuantizedShard):
        return NotImplemented
    to, rows = out._memory, out.rows()
    if isinstance(source, QuantizedShard):
        of = source._memory
        first = None if of.start is None else of.start + source._offset
        if to.start is None and first is not None:
            to.start = first - out._offset
        if first is not None and to.takes_lines(of, first - out._offset):
            here = of.lines[source._offset : source._offset + rows]
            to.lines[out._offset : out._offset + rows] = here.to(to.lines.device)
            return out
        source = source.dequantize()
    values = to.open()[out._offset : out._offset + rows]
    values.copy_(source.to(values.device).reshape(values.shape))
    return out


def _on_values(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Any other op runs on the decoded values. What it writes is quantized later, at the end of
    the optimizer's step or at the next gather, when all ranks can exchange amaxes."""
    written = {id(t) for t in written_arguments(func, args, kwargs)}
    found: dict[int, tuple[QuantizedShard, torch.Tensor]] = {}

    def decode(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, QuantizedShard):
            return value
        if id(value) not in found:
            if id(value) in written:
                value._memory.open()
            found[id(value)] = (value, value.dequantize())
        return found[id(value)][1]

    args_, kwargs_ = pytree.tree_map(decode, (args, kwargs))
    made = func(*args_, **kwargs_)
    back = {id(plain): shard for shard, plain in found.values()}
    return pytree.tree_map(lambda value: back.get(id(value), value), made)


_SHARD_HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.slice.Tensor: _sliced,
    aten.split.Tensor: _parted,
    aten.view.default: _viewed,
    aten.new_zeros.default: _made(True),
    aten.new_empty.default: _made(False),
    aten.empty_like.default: _emptied,
    aten.zeros_like.default: _zeros,
    aten.clone.default: _cloned,
    aten._to_copy.default: _cloned,
    aten.copy_.default: _copied,
    aten._pin_memory.default: _pinned,
    aten.is_pinned.default: _is_pinned,
}


# ---- ops of fully_shard on a quantized parameter
# ----------------------------------------------


def _in_fully_shard() -> bool:
    """Whether fully_shard is cutting a parameter. Read from the stack, because torch tells it
    nowhere else: a user's own split must behave differently."""
    if FSDP_PARAM not in sys.modules:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == FSDP_PARAM:
            return True
        frame = frame.f_back
    return False


def check_sharded(text: str, shape: Sequence[int], rows: int) -> None:
    """Raises for quantizers whose rows cannot be stored or requantized separately."""
    fields, step = _C.fields("quantizer", text), _texts.row_step(text)
    what = f"fully_shard of a weight {tuple(shape)} of {text}"
    if len(shape) != 2:
        raise ValueError(f"{what}: it has {len(shape)} axes; shards have rows of a matrix")
    if _texts.takes_scale(text) or not fields["rowwise"] or fields["row_scaled"]:
        raise ValueError(
            f"{what}: its rows do not stand alone; quantize it rowwise, with scales of its own "
            "(quantized_model_init does)"
        )
    if fields["hadamard"] != "none" or fields["stochastic"] or fields["swizzled"]:
        raise ValueError(f"{what}: leave out rht, sr and swizzled scales: weights have none")
    if fields["four_over_six"] != "none" and step > 1 and rows % step and rows < shape[0]:
        raise ValueError(
            f"{what}: a shard has {rows} rows, which cuts a block of {step} whose 4over6 "
            f"choice needs all its rows; use ranks whose shards are multiples of {step}, or "
            "leave out 4over6"
        )


def stored_form(text: str) -> str:
    """The quantizer of what is sent: one direction if the other can be made from it exactly."""
    return _texts.with_usage(text, True, False) if _texts.transposable(text) else text


def _cut(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensor, size, dim = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if not _in_fully_shard():
        return _split(func, args, kwargs)
    if dim != 0:
        raise ValueError(
            f"fully_shard of a weight {tuple(tensor.shape)} of {tensor._text} by axis {dim}: "
            "only rows are cut; leave out shard_placement_fn"
        )
    check_sharded(tensor._text, tensor.shape, size)
    tensor._number = new_number()  # type: ignore[attr-defined]
    whole = _whole_shard(tensor, tensor.shape[0])
    whole._memory.lines = _row_form.to_rows(whole._memory.form, tensor)
    whole._memory.start = 0
    return _parted(func, (whole, size, 0), {})


def _whole_shard(tensor: QuantizedTensor, rows: int) -> QuantizedShard:
    form = form_of(stored_form(tensor._text), tuple(tensor.shape))
    memory = Memory(form, tensor.dtype, rows, False)
    memory.number = tensor._number  # type: ignore[attr-defined]
    memory.lines = torch.zeros(rows, form.width, dtype=torch.uint8, device=tensor.device)
    return QuantizedShard(memory, 0, (rows, form.shape[1]))


def _held(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensor, size = args[0], tuple(args[1])
    if len(size) != 2 or not _in_fully_shard():
        return NotImplemented
    return _whole_shard(tensor, size[0])


def _strided(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    tensor, size, stride = args[0], tuple(args[1]), tuple(args[2])
    if size != tuple(tensor.shape) or stride != tensor.stride() or any(args[3:]):
        return NotImplemented
    return HANDLERS[aten.alias.default](aten.alias.default, (tensor,), {})


HANDLERS.update(
    {aten.split.Tensor: _cut, aten.new_zeros.default: _held, aten.as_strided.default: _strided}
)
torch.serialization.add_safe_globals([rebuild_shard])
