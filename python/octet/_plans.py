"""The C plans as tuples: ports, arenas, and where each tensor of backward comes from.

A plan's structure does not depend on sizes. So each plan is described once, and its dimensions
are expressions that evaluate to numbers or to symbolic sizes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from octet import _C
from octet._constant import constant
from octet._dtypes import TORCH_DTYPES
from octet._texts import Dim

Size = Any  # int, or torch.SymInt during tracing
Region = tuple[str, int]  # a port, or an arena as a whole: ("arg", 1), ("saved", 0)
NO_SIZES = (0, 0, 0)  # a plan's structure has none: 0 is whole blocks and equal chunks


class Port(NamedTuple):
    """An argument or output of a plan."""

    name: str
    part: str
    dtype: torch.dtype
    dims: tuple[Dim, ...]
    is_mutable: bool
    alias: int  # for an output: the argument that it aliases, or -1
    quantizer: str  # quantizer of the tensor that it is part of
    is_in_state: bool  # it lies in the tensor of another argument, delayed scaling's state


class Plan(NamedTuple):
    """A plan without sizes."""

    args: tuple[Port, ...]
    outs: tuple[Port, ...]
    arena: tuple[tuple[int, tuple[Dim, ...]], ...]
    saved: tuple[Region, ...]
    restored: tuple[Region, ...]
    arenas: tuple[int, int]


def _port(row: tuple[Any, ...]) -> Port:
    name, part, dtype, dims, is_mutable, alias, quantizer, is_in_state = row
    dtype = TORCH_DTYPES[dtype]
    return Port(name, part, dtype, dims, bool(is_mutable), alias, quantizer, bool(is_in_state))


@constant
def describe(kind: str, text: str) -> Plan:
    """The plan of one kind of call, from its text, which contains no sizes."""
    one = kind in ("quantize", "dequantize")
    args, outs, arena, saved, restored, arenas = _C.describe(
        kind, text, (1, 1) if one else NO_SIZES
    )
    return Plan(
        tuple(map(_port, args)), tuple(map(_port, outs)), arena, saved, restored, arenas
    )


@constant
def products(kind: str, text: str) -> int:
    """How many matrix products of M x K x N a Linear's plan has."""
    return _C.products(kind, text, NO_SIZES)


# ---- phases ----------------------------------------------------------------------------------

# in the order of linear_phase's argument `plan`
LINEAR_PLANS = ("linear", "linear_backward", "linear_wgrad")
Spot = tuple[str, int, int]  # place, port, and in an arena which of its buffers
Stored = tuple[torch.dtype, tuple[Dim, ...]]  # dtype and dimensions of a buffer


class Collective(NamedTuple):
    """A collective after a phase; kinds: all_gather, reduce_scatter, sum, max."""

    kind: str
    source: Spot
    target: Spot
    begin: int  # may start after this many phases
    end: int  # the phase that waits for it; the number of phases if the end of the run does
    chunk: tuple[int, int]  # (i, n): sends part i of n equal parts of the rows


class Phase(NamedTuple):
    """The steps between two collectives: what they write and what they only read."""

    written: tuple[Region, ...]
    read: tuple[Region, ...]
    collectives: tuple[Collective, ...]
    products: int  # matrix products of m x k x n


class Phases(NamedTuple):
    """The phases of a Linear's plan."""

    phases: tuple[Phase, ...]
    exchanges: tuple[Stored, ...]  # buffers that live between phases
    arena: tuple[Stored, ...]  # the buffers of the arena that it saves, as they lie there
    # the same for the arenas that forward and backward saved
    restored: tuple[tuple[Stored, ...], ...]
    output_rows: tuple[int, int]  # rows of the output = rows of the input * first / second
    row_multiple: int  # the input's rows must be a multiple of this
    # columns (or rows M) that are cut into chunks must be a multiple of this
    chunk_multiple: int


def _stored(rows: tuple[Any, ...]) -> tuple[Stored, ...]:
    return tuple((TORCH_DTYPES[dtype], dims) for dtype, dims in rows)


@constant
def phases(kind: str, text: str) -> Phases:
    """The phases of one of Linear's plans, from its text."""
    found, exchanges, arena, restored, rows, multiple, chunked = _C.phases(
        LINEAR_PLANS.index(kind), text
    )
    return Phases(
        tuple(Phase(w, r, tuple(Collective(*c) for c in cs), n) for w, r, cs, n in found),
        _stored(exchanges),
        _stored(arena),
        tuple(_stored(one) for one in restored),
        rows,
        multiple,
        chunked,
    )


@constant
def has_collectives(kind: str, text: str) -> bool:
    """Whether a plan has collectives. One without runs as the plan of an unsplit layer."""
    return any(phase.collectives for phase in phases(kind, text).phases)


def item_bytes(stored: Stored, at: "Axes") -> Size:
    """The bytes of a buffer in an arena."""
    dtype, dims = stored
    size: Size = dtype.itemsize
    for length in rows_shape(dims, at):
        size = size * length
    return size


def rounded_up(size: Size) -> Size:
    """The bytes that a buffer takes in an arena, with padding."""
    return (size + _C.ALIGN - 1) // _C.ALIGN * _C.ALIGN


# ---- sizes -----------------------------------------------------------------------------------


class Axes(NamedTuple):
    """The sizes of a call's axes."""

    leading: tuple[Size, ...]
    m: Size
    k: Size
    n: Size


def axes(kind: str, sizes: Sequence[Size]) -> Axes:
    """The axes of a call. Linear's sizes end with K and N, those of a tensor with K."""
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
    """The leading sizes. Ranks split or join the first of them."""
    _, mul, div, _ = dim
    if (mul, div) == (1, 1) or not at.leading:
        return at.leading
    return (at.leading[0] * mul // div, *at.leading[1:])


def shape(dims: tuple[Dim, ...], at: Axes) -> list[Size]:
    """A port's dimensions as sizes (ints or symbols)."""
    sizes: list[Size] = []
    for dim in dims:
        sizes.extend(_leading(dim, at) if dim[0] == "leading" else (_size(dim, at),))
    return sizes


def rows_shape(dims: tuple[Dim, ...], at: Axes) -> list[Size]:
    """The same with all leading axes joined into one."""
    return [_size(("m", *dim[1:]) if dim[0] == "leading" else dim, at) for dim in dims]


def arena_bytes(plan: Plan, at: Axes) -> Size:
    """The bytes of the arena that a plan saves: its buffers, each rounded up."""
    total: Size = 0
    for item_bytes, dims in plan.arena:
        size: Size = item_bytes
        for length in rows_shape(dims, at):
            size = size * length
        total = total + rounded_up(size)
    return total


class Group(NamedTuple):
    """The ports of one tensor: one if it is plain, its buffers if it is quantized."""

    name: str
    start: int
    count: int
    quantizer: str


def groups(ports: Sequence[Port]) -> tuple[Group, ...]:
    """Groups neighbouring ports of the same name into tensors."""
    found: list[Group] = []
    for index, port in enumerate(ports):
        if found and found[-1].name == port.name:
            found[-1] = found[-1]._replace(count=found[-1].count + 1)
        else:
            found.append(Group(port.name, index, 1, port.quantizer))
    return tuple(found)


def ports(ports: Sequence[Port]) -> tuple[Group, ...]:
    """Each port as its own group."""
    return tuple(Group(port.name, i, 1, port.quantizer) for i, port in enumerate(ports))


def group_of(ports: Sequence[Port], index: int) -> int:
    """The number of the group that a port belongs to."""
    for number, group in enumerate(groups(ports)):
        if group.start <= index < group.start + group.count:
            return number
    raise IndexError(index)
