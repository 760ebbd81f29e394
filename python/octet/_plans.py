"""What the C plans say, as tuples: ports, blocks, and where each tensor of backward comes from.

A plan's structure never depends on a size, so each is described once, without rows, and its
dimensions are expressions that evaluate to numbers or to symbolic sizes alike.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from octet import _C
from octet._constant import constant
from octet._dtypes import TORCH_DTYPES
from octet._texts import Dim

Size = Any  # an int, or torch.SymInt under a compiler
Slot = tuple[str, int]  # where a saved tensor lies: ("arg", 1), ("saved", 0)


class Port(NamedTuple):
    """An argument or output of a plan."""

    name: str
    part: str
    dtype: torch.dtype
    dims: tuple[Dim, ...]
    is_mutable: bool
    alias: int  # of an output: the argument that it is; -1 otherwise
    quantizer: str  # of the tensor that it is part of


class Plan(NamedTuple):
    """A plan without numbers."""

    args: tuple[Port, ...]
    outs: tuple[Port, ...]
    block: tuple[tuple[int, tuple[Dim, ...]], ...]
    saved: tuple[Slot, ...]
    restored: tuple[Slot, ...]
    blocks: tuple[int, int]


def _port(row: tuple[Any, ...]) -> Port:
    name, part, dtype, dims, is_mutable, alias, quantizer = row
    return Port(name, part, TORCH_DTYPES[dtype], dims, bool(is_mutable), alias, quantizer)


@constant
def describe(kind: str, text: str) -> Plan:
    """The plan of one kind of call, from its text, which names no size."""
    one = kind in ("quantize", "dequantize")
    args, outs, block, saved, restored, blocks = _C.describe(
        kind, text, (1, 1) if one else (0, 1, 1)
    )
    return Plan(
        tuple(map(_port, args)), tuple(map(_port, outs)), block, saved, restored, blocks
    )


@constant
def products(kind: str, text: str) -> int:
    """How many matrix products Linear's plan of this text has, of M x K x N each."""
    return _C.products(kind, text, (0, 1, 1))


# ---- phases ----------------------------------------------------------------------------------

LINEAR_PLANS = ("linear", "linear_backward", "linear_wgrad")  # as linear_phase counts them
Spot = tuple[str, int, int]  # place, port, and in a block which of its buffers
Stored = tuple[torch.dtype, tuple[Dim, ...]]  # a buffer


class Collective(NamedTuple):
    """A collective after a phase; kinds: all_gather, reduce_scatter, sum, max."""

    kind: str
    source: Spot
    target: Spot
    begin: int  # it may begin once so many phases have run
    end: int  # the phase that waits for it, or their number
    chunk: tuple[int, int]  # which of how many equal parts of the rows it sends


class Phase(NamedTuple):
    """What the steps between two collectives write and what they only read."""

    written: tuple[Slot, ...]
    read: tuple[Slot, ...]
    collectives: tuple[Collective, ...]
    products: int  # of m x k x n each


class Phases(NamedTuple):
    """The phases of a Linear's plan."""

    phases: tuple[Phase, ...]
    exchanges: tuple[Stored, ...]  # what lives between phases
    block: tuple[Stored, ...]  # the buffers of the block that it saves, as they lie there
    restored: tuple[tuple[Stored, ...], ...]  # and of those that forward and backward saved
    output_rows: tuple[int, int]  # the input's times and over the ranks that share them
    row_multiple: int  # what the input's rows must be a multiple of
    chunk_multiple: int  # and what a product in chunks is cut along: its columns, or M


def _stored(rows: tuple[Any, ...]) -> tuple[Stored, ...]:
    return tuple((TORCH_DTYPES[dtype], dims) for dtype, dims in rows)


@constant
def phases(kind: str, text: str) -> Phases:
    """The phases of one of Linear's plans, from its text."""
    found, exchanges, block, restored, rows, multiple, chunked = _C.phases(
        LINEAR_PLANS.index(kind), text
    )
    return Phases(
        tuple(Phase(w, r, tuple(Collective(*c) for c in cs), n) for w, r, cs, n in found),
        _stored(exchanges),
        _stored(block),
        tuple(_stored(one) for one in restored),
        rows,
        multiple,
        chunked,
    )


@constant
def has_collectives(kind: str, text: str) -> bool:
    """Whether ranks meet in a plan; one without is run as that of an unsplit layer is."""
    return any(phase.collectives for phase in phases(kind, text).phases)


def item_bytes(stored: Stored, at: "Axes") -> Size:
    """The bytes of a buffer in a block."""
    dtype, dims = stored
    size: Size = dtype.itemsize
    for length in rows_shape(dims, at):
        size = size * length
    return size


def rounded_up(size: Size) -> Size:
    """What a buffer of so many bytes takes of a block."""
    return (size + _C.ALIGN - 1) // _C.ALIGN * _C.ALIGN


# ---- sizes -----------------------------------------------------------------------------------


class Axes(NamedTuple):
    """What the axes of a call measure."""

    leading: tuple[Size, ...]
    m: Size
    k: Size
    n: Size


def axes(kind: str, sizes: Sequence[Size]) -> Axes:
    """The axes of a call: Linear's sizes end with K and N, a tensor's with K."""
    last = 1 if kind in ("quantize", "dequantize") else 2
    leading = tuple(sizes[: len(sizes) - last])
    m: Size = 1
    for size in leading:
        m = m * size
    k = sizes[-last] if len(sizes) >= last else 1
    return Axes(leading, m, k, sizes[-1] if last == 2 else 1)


def _size(dim: Dim, at: Axes) -> Size:
    axis, mul, div, align = dim
    size = 1 if axis == "one" else {"m": at.m, "k": at.k, "n": at.n}[axis]
    size = (size * mul + div - 1) // div if div > 1 else size * mul
    return (size + align - 1) // align * align if align > 1 else size


def _leading(dim: Dim, at: Axes) -> tuple[Size, ...]:
    """The leading axes; ranks split or join the first of them."""
    _, mul, div, _ = dim
    if (mul, div) == (1, 1) or not at.leading:
        return at.leading
    return (at.leading[0] * mul // div, *at.leading[1:])


def shape(dims: tuple[Dim, ...], at: Axes) -> list[Size]:
    """A port's dimensions as sizes, numbers or symbols."""
    sizes: list[Size] = []
    for dim in dims:
        sizes.extend(_leading(dim, at) if dim[0] == "leading" else (_size(dim, at),))
    return sizes


def rows_shape(dims: tuple[Dim, ...], at: Axes) -> list[Size]:
    """The same with the leading axes as one."""
    return [_size(("m", *dim[1:]) if dim[0] == "leading" else dim, at) for dim in dims]


def block_bytes(plan: Plan, at: Axes) -> Size:
    """The bytes of the block that a plan saves: its buffers, each rounded up."""
    total: Size = 0
    for item_bytes, dims in plan.block:
        size: Size = item_bytes
        for length in rows_shape(dims, at):
            size = size * length
        total = total + rounded_up(size)
    return total


class Group(NamedTuple):
    """The ports of one tensor: one where it is plain, its buffers where it is quantized."""

    name: str
    start: int
    count: int
    quantizer: str


def groups(ports: Sequence[Port]) -> tuple[Group, ...]:
    """Neighbouring ports of one name belong to one tensor."""
    found: list[Group] = []
    for index, port in enumerate(ports):
        if found and found[-1].name == port.name:
            found[-1] = found[-1]._replace(count=found[-1].count + 1)
        else:
            found.append(Group(port.name, index, 1, port.quantizer))
    return tuple(found)


def ports(ports: Sequence[Port]) -> tuple[Group, ...]:
    """Each port by itself."""
    return tuple(Group(port.name, i, 1, port.quantizer) for i, port in enumerate(ports))


def group_of(ports: Sequence[Port], index: int) -> int:
    """Which group a port belongs to."""
    for number, group in enumerate(groups(ports)):
        if group.start <= index < group.start + group.count:
            return number
    raise IndexError(index)
