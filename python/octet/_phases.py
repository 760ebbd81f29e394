"""A plan that is split over ranks: its phases are ops, with torch's collectives between them.

Memory that outlives a phase is made here: outputs, the saved arena, and what ranks exchange or
a later phase reads. Each phase is one op that writes into this memory. Collectives are torch's
functional ones, called by group name, so a compiler sees them as nodes of its graph.
"""

from collections.abc import Sequence
from typing import Any

from torch.compiler import is_compiling, is_dynamo_compiling
from torch.distributed import _functional_collectives  # noqa: F401  (registers the ops)

import torch
from octet import _ops, _parallel, _plans
from octet._plans import Axes, Collective, Phases, Region, Spot
from octet._tensor_ops import as_if_plain, expand_args, with_gradient

_c10d = torch.ops._c10d_functional
# the op without its Python wrapper, which only tracing needs
_linear_phase = _ops.linear_phase._op

# torch's functional collectives.
_wait = _c10d.wait_tensor.default
_gather = _c10d.all_gather_into_tensor.default
_gather_into = _c10d.all_gather_into_tensor_out.default
_scatter = _c10d.reduce_scatter_tensor.default
_reduce = _c10d.all_reduce.default


# In eager code collectives are called below autograd, as the ops are. There are no gradients to
# find, and looking for them is half of a collective's host cost.
_below_autograd = torch._C._AutoDispatchBelowAutograd


def _is_traced() -> bool:
    """Whether a graph is being made.

    Before torch 2.13 is_compiling() is false while AOTAutograd traces the Python code of an op.
    Its dispatch modes are active then."""
    return is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def _start_gather(tensor: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """Starts a gather. In eager code into memory that is made here: gloo's way to gather into
    memory of its own corrupts the heap when other collectives run meanwhile, and has no GPU."""
    if _is_traced():
        return _gather(tensor, ranks, group)
    rows, *rest = tensor.shape
    return _gather_into(tensor, ranks, group, out=tensor.new_empty((rows * ranks, *rest)))


def _start(kind: str, tensor: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """Starts a collective. Its result must be waited for."""
    if kind == "all_gather":
        return _start_gather(tensor, group, ranks)
    if kind == "reduce_scatter":
        return _scatter(tensor, "sum", ranks, group)
    return _reduce(tensor, kind, group)


class _Memory:
    """The memory of one run of a plan, by place and port."""

    def __init__(self, kind: str, text: str, axes: Axes) -> None:
        self.plan = _plans.describe(kind, text)
        self.phases: Phases = _plans.phases(kind, text)
        self.axes = axes
        self.at: dict[Region, torch.Tensor] = {}

    def take_arguments(self, written: Sequence[Any], args: Sequence[Any]) -> None:
        """Takes the arguments by port, then the arenas that earlier plans saved."""
        next_read, next_written = 0, 0
        names = [port.name for port in self.plan.args if port.is_mutable]
        for index, port in enumerate(self.plan.args):
            if port.is_in_state:
                self.at["arg", index] = written[names.index("amax")]
            elif port.is_mutable:
                self.at["arg", index] = written[next_written]
                next_written += 1
            else:
                self.at["arg", index] = args[next_read]
                next_read += 1
        for index, has in enumerate(self.plan.arenas):
            if has:
                self.at["restored", index] = args[next_read]
                next_read += 1

    def made(self, region: Region, like: torch.Tensor) -> torch.Tensor:
        """The memory of a region; allocated at first use."""
        if region not in self.at:
            place, port = region
            if place == "exchange":
                dtype, dims = self.phases.exchanges[port]
                self.at[region] = like.new_empty(
                    _plans.rows_shape(dims, self.axes), dtype=dtype
                )
            elif place == "out":
                out = self.plan.outs[port]
                shape = _plans.shape(out.dims, self.axes)
                self.at[region] = like.new_empty(shape, dtype=out.dtype)
            else:
                # Zeros on the CPU, where they cost no launch: then equal calls save equal
                # bytes, gaps between buffers included.
                make = like.new_zeros if like.device.type == "cpu" else like.new_empty
                arena = [_plans.arena_bytes(self.plan, self.axes)]
                self.at[region] = make(arena, dtype=torch.uint8)
        return self.at[region]

    def _items(self, spot: Spot) -> Sequence[_plans.Stored]:
        place, port, _ = spot
        return self.phases.arena if place == "saved" else self.phases.restored[port]

    def _slice(self, spot: Spot, like: torch.Tensor) -> torch.Tensor:
        """A buffer of an arena, as bytes."""
        place, port, item = spot
        start: Any = 0
        items = self._items(spot)
        for before in items[:item]:
            start = start + _plans.rounded_up(_plans.item_bytes(before, self.axes))
        length = _plans.item_bytes(items[item], self.axes)
        return self.made((place, port), like).narrow(0, start, length)

    def sent(self, collective: Collective, like: torch.Tensor) -> torch.Tensor:
        """What a collective sends: all rows, or one chunk of them. Ranks are joined or split
        along the first axis."""
        whole = self._source(collective.source, like)
        chunk, chunks = collective.chunk
        if chunks == 1:
            return whole
        rows = whole.shape[0] // chunks
        return whole.narrow(0, chunk * rows, rows)

    def _source(self, spot: Spot, like: torch.Tensor) -> torch.Tensor:
        place, port, item = spot
        if place in ("saved", "restored"):
            dtype, dims = self._items(spot)[item]
            found = self._slice(spot, like).view(dtype)
            return found.view(_plans.rows_shape(dims, self.axes))
        tensor = self.made((place, port), like)
        return tensor.flatten(0, -2).contiguous() if place == "arg" else tensor

    def receive(self, spot: Spot, got: torch.Tensor, like: torch.Tensor) -> None:
        """Stores the result of a collective where the plan wants it."""
        place, port, _ = spot
        if place == "saved":
            self._slice(spot, like).copy_(got.view(torch.uint8).flatten())
        elif place == "out":
            shape = _plans.shape(self.plan.outs[port].dims, self.axes)
            self.at[place, port] = got.view(shape)
        else:
            self.at[place, port] = got


def _arrived(tensor: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
    """Waits for a collective's result.

    A graph that runs node by node frees a tensor after its last reader, but gloo still works in
    the memory that is sent. So on the CPU a traced result depends on the sent tensor, too,
    without reading an element. Inductor keeps sent tensors alive by itself and removes this."""
    found = _wait(tensor)
    if _is_traced() and sent.device.type == "cpu":
        found = torch.cat([found, sent.narrow(0, 0, 0)])
    return found


class _Running:
    """A collective that has started. Keeps what it sends until the result has arrived: nobody
    else holds the view of a chunk."""

    def __init__(self, of: Collective, sent: torch.Tensor, group: str, ranks: int) -> None:
        self.of, self.sent = of, sent
        self.tensor = _start(of.kind, sent, group, ranks)
        self.has_arrived = False

    def result(self) -> torch.Tensor:
        """Waits for the result, once."""
        if not self.has_arrived:
            self.tensor, self.has_arrived = _arrived(self.tensor, self.sent), True
        return self.tensor


class _Exchange:
    """The collectives of a run. Each starts as soon as its source is ready and is waited for
    where its result is read. Products of the phases between overlap with it."""

    def __init__(self, memory: _Memory, where: tuple[str, int], like: torch.Tensor) -> None:
        self.memory, self.where, self.like = memory, where, like
        phases = memory.phases.phases
        self.busy = {at for p in phases for c in p.collectives for at in (c.begin, c.end)}
        self.waiting = [c for phase in memory.phases.phases for c in phase.collectives]
        self.running: list[_Running] = []
        self.gathers_alone = _is_traced() and self._gathers_alone()

    def _gathers_alone(self) -> bool:
        """Whether the plan gathers, by a backend that must do nothing else meanwhile."""
        if all(c.kind != "all_gather" for c in self.waiting):
            return False
        return _parallel.gathers_alone(self.where[0], self.like.device.type)

    def before(self, phase: int) -> None:
        """Starts and waits for the collectives that are due before a phase."""
        if phase not in self.busy:
            return
        if _is_traced():
            self._exchange(phase)
            return
        with _below_autograd():
            self._exchange(phase)

    def _exchange(self, phase: int) -> None:
        for c in self.waiting:
            if c.begin == phase:
                if self.gathers_alone:
                    self._wait_beside_gathers(c)
                sent = self.memory.sent(c, self.like)
                self.running.append(_Running(c, sent, *self.where))
        for one in self.running:
            if one.of.end == phase:
                self.memory.receive(one.of.target, one.result(), self.like)

    def _wait_beside_gathers(self, next_one: Collective) -> None:
        """Waits for what runs if it, or what starts next, is a gather."""
        for one in self.running:
            if "all_gather" in (one.of.kind, next_one.kind):
                one.result()


def run(
    call: tuple[str, str],
    sizes: list[Any],
    tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]],
    where: tuple[str, int],
) -> list[torch.Tensor]:
    """Runs a plan over the ranks of a group (name and size). Returns its outputs, then the
    arena that it saves.

    `tensors`: those that the plan writes; those that it reads, with the arenas of earlier
    plans; and those that a compiler must have computed before."""
    kind, plain = call
    written, args, after = tensors
    text, args = with_gradient(kind, plain, args, len(written))
    args = expand_args(kind, text, args, len(written))
    if text != plain:  # a gradient that arrived quantized has no amax to record
        names = [port.name for port in _plans.describe(kind, plain).args if port.is_mutable]
        lent = dict(zip(names, written, strict=True))
        wanted = _plans.describe(kind, text).args
        written = [lent[port.name] for port in wanted if port.is_mutable]
    memory = _Memory(kind, text, _plans.axes(kind, sizes))
    memory.take_arguments(written, args)
    op = _ops.linear_phase if is_dynamo_compiling() else _linear_phase
    number, like = _plans.LINEAR_PLANS.index(kind), args[0]
    exchange = _Exchange(memory, where, like)
    for at, phase in enumerate(memory.phases.phases):
        exchange.before(at)
        if phase.written:  # otherwise the plan begins with a collective
            op(
                [memory.made(region, like) for region in phase.written],
                [memory.made(region, like) for region in phase.read],
                list(after),
                sizes,
                text,
                number,
                at,
            )
    exchange.before(len(memory.phases.phases))
    ports = enumerate(memory.plan.outs)
    outs = [memory.made(("out", i), like) for i, port in ports if port.alias < 0]
    if memory.plan.arena:
        outs.append(memory.made(("saved", 0), like))
    return outs if text == plain else as_if_plain(kind, plain, text, outs, like)
