"""A rank's rows of a matrix that is gathered quantized: as bytes, as values, or both.

Each rank must produce the same bytes as quantizing the whole matrix would. Its own rows are not
enough if one scale covers more rows: the whole tensor, or a block that a cut divides. Then
ranks exchange amaxes, for all layers at once. Each rank quantizes its rows together with extra
rows that contain the other ranks' amaxes and zeros.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from octet import _row_form, _texts
from octet._row_form import Form
from octet.quantizers import from_text

_ALL: "list[weakref.ref[Memory]]" = []
_numbers = itertools.count()
_made = itertools.count()
_watched: list[Any] = []


class Gone(NamedTuple):
    """What is left of a memory that was written and freed before it was quantized.

    Garbage collection frees memory at different times on different ranks. A rank that still has
    it would wait for one that has not. So the latter takes part with zeros."""

    order: tuple[int, int]
    mesh: Any
    count: int  # number of amaxes


_GONE: list[Gone] = []


class Memory:
    """The rows of one rank, shared by all views of a shard.

    ``lines`` are the bytes in row form, ``values`` the decoded values. Ops write ``values``;
    ``settle`` quantizes them to ``lines``. If ``stores_values``, the weight is stored in high
    precision, and lines exist only while they are sent."""

    def __init__(self, form: Form, dtype: torch.dtype, rows: int, stores_values: bool) -> None:
        self.form, self.dtype, self.rows, self.stores_values = form, dtype, rows, stores_values
        self.number = -1  # number of the parameter; the same on all ranks
        self.made = next(_made)  # distinguishes copies of one parameter
        self.start: int | None = None  # number of the first row in the whole matrix
        self.lines: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.is_stale = stores_values  # whether amaxes must be exchanged
        self.slots: torch.Tensor | None = None  # amaxes of the whole matrix: see exchanged
        self.mesh: Any = None
        self.alternates: bool | None = None  # whether the two directions are sent separately
        # the original on the CPU, if this is its copy on a GPU
        self.origin: Memory | None = None
        _ALL.append(weakref.ref(self, _ALL.remove))

    def __del__(self) -> None:
        if getattr(self, "mesh", None) is not None and self.is_waiting() and self.count():
            _GONE.append(Gone(self.order, self.mesh, self.count()))

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: ranks may have made them in different orders."""
        return self.number, self.made

    def is_waiting(self) -> bool:
        """Whether ranks must exchange its amaxes."""
        return self.is_stale and self.origin is None and self.values is not None

    @property
    def device(self) -> torch.device:
        """The device."""
        held = self.values if self.lines is None else self.lines
        return held.device

    def like(self, rows: int, device: torch.device, fill: bool) -> "Memory":
        """New memory of the same kind; zeros if `fill`, else uninitialized."""
        made = Memory(self.form, self.dtype, rows, self.stores_values)
        made.number = self.number
        make = torch.zeros if fill else torch.empty
        if self.stores_values:
            made.values = make(rows, self.form.shape[1], dtype=self.dtype, device=device)
        else:
            made.lines = make(rows, self.form.width, dtype=torch.uint8, device=device)
        return made

    def copied(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Memory":
        """A copy on another device or in pinned memory."""
        made = Memory(self.form, self.dtype, self.rows, self.stores_values)
        made.number, made.start, made.is_stale = self.number, self.start, self.is_stale
        made.lines = None if self.lines is None else move(self.lines)
        made.values = None if self.values is None else move(self.values)
        return made

    def read(self, offset: int, rows: int) -> torch.Tensor:
        """The decoded values of some rows; read only."""
        if self.values is not None:
            return self.values[offset : offset + rows]
        start = (self.start or 0) + offset
        return _row_form.decode(
            self.form, self.lines[offset : offset + rows], start, self.dtype
        )

    def open(self) -> torch.Tensor:
        """The values of all rows, for writing."""
        _watch_optimizers()
        if self.values is None:
            self.values = self.read(0, self.rows).clone()
        self.is_stale = True
        return self.values

    def place(self, mesh: Any) -> None:  # noqa: ANN401
        """Sets the mesh of ranks that hold the whole matrix."""
        if self.origin is not None:
            self.origin.place(mesh)
        self.mesh = mesh
        if self.start is None:
            self.start = min(mesh.get_local_rank() * self.rows, self.form.shape[0])

    def settled(self) -> None:
        """Quantizes what was written, if needed. A copy takes over the result of its
        original."""
        origin = self.origin
        if origin is None:
            if self.is_stale:
                settle(self.mesh)
            return
        origin.settled()
        self.is_stale = False
        if self.stores_values:
            self.slots = None if origin.slots is None else origin.slots.to(self.device)
        elif self.values is not None:  # outdated values
            self.lines, self.values = origin.lines.to(self.values.device), None

    def own(self) -> int:
        """Number of rows that are not padding."""
        return max(0, min(self.rows, self.form.shape[0] - (self.start or 0)))

    def takes_lines(self, of: "Memory", start: int) -> bool:
        """Whether lines can be copied from another memory: both have lines of the same rows."""
        if self.lines is None or of.lines is None or self.is_stale or of.is_stale:
            return False
        return self.start == start and self.form == of.form

    # ---- amaxes of the whole matrix --------------------------------------------------------

    def has_one_scale(self) -> bool:
        """Whether one scale covers the whole tensor."""
        return any(part.axis < 0 for part in self.form.parts)

    def cut_blocks(self) -> list[int]:
        """The blocks of rows that are divided between ranks."""
        step, whole = _texts.row_step(self.form.text), self.form.shape[0]
        cuts = [self.rows * rank for rank in range(1, self.mesh.size())]
        return sorted({cut // step for cut in cuts if cut < whole and cut % step})

    def count(self) -> int:
        """How many amaxes the ranks exchange."""
        return self.has_one_scale() + len(self.cut_blocks()) * self.form.shape[1]

    def magnitudes(self) -> torch.Tensor:
        """This rank's amaxes: of the tensor, and of each column in each divided block."""
        step, columns = _texts.row_step(self.form.text), self.form.shape[1]
        own = self.values[: self.own()].float().abs()
        own = torch.where(own.isnan(), torch.zeros_like(own), own)
        found = []
        if self.has_one_scale():
            found.append(own.amax().view(1) if own.numel() else own.new_zeros(1))
        for block in self.cut_blocks():
            first = max(block * step - self.start, 0)
            part = own[first : max(first, (block + 1) * step - self.start)]
            found.append(part.amax(0) if part.numel() else own.new_zeros(columns))
        return torch.cat(found) if found else own.new_zeros(0)

    def quantized(self) -> torch.Tensor:
        """The lines of the values, quantized as the whole matrix would be."""
        form, step = self.form, _texts.row_step(self.form.text)
        own, columns = self.own(), form.shape[1]
        lines = torch.zeros(self.rows, form.width, dtype=torch.uint8, device=self.device)
        if own == 0 or lines.is_meta:
            return lines
        before, end = self.start % step, self.start + own
        after = min(form.shape[0], -(-end // step) * step) - end
        padded = -(-(before + own + after) // step) * step
        rows = self.values.new_zeros(padded + step * self.has_one_scale(), columns)
        rows[before : before + own] = self.values[:own]
        slots = self.slots.to(rows.dtype)
        if self.has_one_scale():
            rows[padded, 0], slots = slots[0], slots[1:]
        for at, block in enumerate(self.cut_blocks()):
            line = slots[at * columns : (at + 1) * columns]
            if before and block == self.start // step:
                rows[0] = line
            if after and block == end // step:
                rows[before + own] = line
        made = _row_form.to_rows(form, from_text(form.text).quantize(rows))
        lines[:own] = made[before : before + own]
        return lines


def new_number() -> int:
    """The number of a parameter that is about to be cut. All ranks cut the same parameters in
    order."""
    return next(_numbers)


def _take_gone(mesh: Any) -> list[Gone]:  # noqa: ANN401
    """Removes and returns the Gone entries of a mesh."""
    found = [gone for gone in list(_GONE) if gone.mesh == mesh]
    for gone in found:
        _GONE.remove(gone)
    return found


def exchanged(memories: list[Memory], gone: list[Gone]) -> None:
    """Gives memories of one mesh the amaxes of the whole matrices, with one all_reduce for
    all."""
    found = [(memory.order, memory, memory.magnitudes()) for memory in memories]
    found += [(each.order, None, torch.zeros(each.count)) for each in gone]
    if not found:
        return
    found.sort(key=lambda each: each[0])
    mesh = memories[0].mesh if memories else gone[0].mesh
    total = torch.cat([each.to(mesh.device_type) for *_, each in found])
    if len(total) and mesh.size() > 1:
        torch.distributed.all_reduce(total, torch.distributed.ReduceOp.MAX, mesh.get_group())
    parts = total.split([len(each) for *_, each in found])
    for (_, memory, _), slots in zip(found, parts, strict=True):
        if memory is not None:
            memory.slots, memory.is_stale = slots.to(memory.device), False


def settle(mesh: Any) -> None:  # noqa: ANN401
    """Quantizes what was written, in every shard on this mesh."""
    found = [memory for ref in list(_ALL) if (memory := ref()) is not None]
    stale = [m for m in found if m.mesh == mesh and m.is_waiting()]
    with torch.no_grad():
        exchanged(stale, _take_gone(mesh))
        for memory in stale:
            if not memory.stores_values:
                memory.lines, memory.values, memory.slots = memory.quantized(), None, None


def _settle_all(*_: Any) -> None:  # noqa: ANN401
    if not torch.distributed.is_initialized():
        _GONE.clear()  # the process group is gone
    waiting: list[Any] = [(gone.order, gone.mesh) for gone in list(_GONE)]
    for ref in list(_ALL):
        memory = ref()
        if memory is not None and memory.mesh is not None and memory.is_waiting():
            waiting.append((memory.order, memory.mesh))
    meshes: list[Any] = []
    for _, mesh in sorted(waiting, key=lambda each: each[0]):
        if mesh not in meshes:
            meshes.append(mesh)
    for mesh in meshes:
        settle(mesh)


def _watch_optimizers() -> None:
    """Registers a hook that runs after each optimizer step; once in a process."""
    if not _watched:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        _watched.append(register_optimizer_step_post_hook(_settle_all))
