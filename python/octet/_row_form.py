"""The row form of a quantized matrix: what fully_shard cuts, sends and joins.

The row form is a matrix of bytes with one line for each row of the quantized matrix. A line
holds the row's codes and all that is needed to decode them. So lines can be cut and joined
anywhere, and joined lines give the buffers again, byte for byte. A line contains, of each
buffer:

| buffer | in a line |
|---|---|
| codes or scales of one row | those of this row |
| rowwise scales of a block of rows | those of its block: every row of a block has them |
| columnwise codes or scales of a block of rows | a stripe: the rows of a block share them out |
| one number for the tensor | that number |
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from octet import _C, _plans, _texts
from octet._constant import constant
from octet._dtypes import TORCH_DTYPES
from octet.tensor import QuantizedTensor


class Part(NamedTuple):
    """The place of a buffer in a line."""

    name: str
    start: int  # first byte in the line
    width: int  # bytes in the line
    axis: int  # the buffer's axis along the rows; -1 if there is none
    group: int  # rows of the matrix that share one line of the buffer
    line: int  # bytes of that line of the buffer
    is_striped: bool


class Form(NamedTuple):
    """The layout of a matrix's lines."""

    text: str
    shape: tuple[int, int]
    parts: tuple[Part, ...]
    width: int  # bytes of a line
    split: int  # first byte of the second direction

    def of_columns(self) -> bool:
        """Whether lines hold bytes of both directions, which can be sent one at a time."""
        return self.split < self.width


@constant
def form_of(text: str, shape: tuple[int, int]) -> Form:
    """The form of a whole matrix. Parts of it have the same lines."""
    parts: list[Part] = []
    at, start, split = _plans.axes("dequantize", shape), 0, -1
    rowwise, _ = _texts.usages(text)
    layout = sorted(_texts.layout(text), key=lambda row: row[1] in _C.COLUMNWISE_PARTS)
    for name, part, dtype, dims in layout:
        axis = next((i for i, d in enumerate(dims) if d[0] in ("m", "leading")), -1)
        sizes = _plans.shape(dims, at)
        line = TORCH_DTYPES[dtype].itemsize
        for i, size in enumerate(sizes):
            line *= 1 if i == axis else size
        group = dims[axis][2] if axis >= 0 else 1
        second = rowwise and part in _C.COLUMNWISE_PARTS
        split = start if second and split < 0 else split
        smallest = shape[0] % group or group
        width = -(-line // smallest) if second else line
        parts.append(Part(name, start, width, axis, group, line, second))
        start += width
    return Form(text, shape, tuple(parts), start, start if split < 0 else split)


def _lines(buffer: torch.Tensor, part: Part) -> torch.Tensor:
    """A buffer as lines of bytes along the rows."""
    if part.axis < 0:
        return buffer.reshape(1, -1).view(torch.uint8)
    turned = buffer.movedim(part.axis, 0).clone(memory_format=torch.contiguous_format)
    return turned.view(turned.shape[0], -1).view(torch.uint8)


def to_rows(form: Form, tensor: QuantizedTensor) -> torch.Tensor:
    """The lines of a tensor. Its first row must be the first row of a block."""
    rows, made = tensor.shape[0], []
    for part in form.parts:
        lines = _lines(getattr(tensor, part.name), part)
        if part.axis < 0:
            made.append(lines.expand(rows, -1))
        elif part.is_striped:
            pad = (0, part.group * part.width - part.line)
            lines = torch.nn.functional.pad(lines, pad)
            made.append(lines.view(-1, part.width)[:rows])
        else:
            made.append(lines.repeat_interleave(part.group, 0)[:rows])
    return torch.cat(made, 1)


def into_buffers(
    form: Form, rows: torch.Tensor, out: QuantizedTensor, parts: Sequence[Part]
) -> None:
    """Writes the buffers of a tensor from its lines. Autograd's version counters do not change:
    a saved tensor that is gathered again must stay valid."""
    count = out.shape[0]
    offset = parts[0].start if parts else 0
    for part in parts:
        buffer = getattr(out, part.name)
        found = rows[:count, part.start - offset : part.start - offset + part.width]
        if part.is_striped and part.axis >= 0:
            groups = -(-count // part.group)
            found = torch.nn.functional.pad(found, (0, 0, 0, groups * part.group - count))
            found = found.reshape(groups, -1)[:, : part.line]
        elif part.axis < 0:
            found = found[:1, : part.line]
        else:
            found = found[:: part.group]
        target = buffer.movedim(part.axis, 0) if part.axis >= 0 else buffer.view(1, -1)
        found = found.clone(memory_format=torch.contiguous_format).view(buffer.dtype)
        with torch.autograd._unsafe_preserve_version_counter(buffer):
            if found.shape[0] < target.shape[0]:
                buffer.zero_()
            if count:
                target[: found.shape[0]].copy_(found.view(-1, *target.shape[1:]))


def empty(form: Form, dtype: torch.dtype, device: torch.device, rows: int) -> QuantizedTensor:
    """An uninitialized quantized tensor with some rows."""
    shape = (rows, form.shape[1])
    at, buffers = _plans.axes("dequantize", shape), []
    for _, _, kind, dims in _texts.layout(form.text):
        sizes = _plans.shape(dims, at)
        buffers.append(torch.empty(sizes, dtype=TORCH_DTYPES[kind], device=device))
    return QuantizedTensor(buffers, form.text, dtype, shape)


def decode(form: Form, rows: torch.Tensor, start: int, dtype: torch.dtype) -> torch.Tensor:
    """The decoded values of lines; `start` is the number of the first row in the whole
    matrix."""
    count, columns = rows.shape[0], form.shape[1]
    if count == 0 or rows.is_meta:
        return torch.empty(count, columns, dtype=dtype, device=rows.device)
    text = _texts.with_usage(form.text, True, False)
    part = form_of(text, form.shape)
    before = start % max(_texts.row_step(text), 1)
    # Rows of the block before `start` get the block's scales; their codes do not matter.
    rows = torch.cat([rows[:1].expand(before, -1), rows])
    made = empty(part, dtype, rows.device, before + count)
    into_buffers(part, rows, made, part.parts)
    return made.dequantize()[before:]
