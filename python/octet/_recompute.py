"""Activation checkpointing: a recomputed call does what the first one did.

A forward inside a backward is a checkpoint's. By then the autocast may have been left and
delayed scaling's scales have moved, so a layer remembers, along autograd's sequence numbers,
by what its calls quantized; the node whose backward asks for the recomputation tells when its
first run was.
"""

from collections import deque
from typing import Any

from torch.autograd import _get_sequence_nr

import torch
from octet._delayed import Rule
from octet._memo import Memo, Said
from torch import is_grad_enabled

REMEMBERED = 16  # changes that a layer remembers


_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks

# Around what only one of the two runs does: selective checkpoints count a region's ops.
unseen = torch.utils._python_dispatch._disable_current_modes


class Way:
    """By what calls quantize: what the autocast said, and delayed scaling's scale."""

    moves_unseen = False  # compiled code moves scales, too: copies are made at once

    def __init__(self, said: Said) -> None:
        self.said = said
        self.scale: torch.Tensor | None = None  # kept where a call may be run again
        self.is_live = False  # it is the layer's own still, to be copied before it moves
        self.waiting = 0  # calls that left no graph: a checkpoint will run them again

    def keep(self, scale: torch.Tensor) -> None:
        """Keeps the scale of a call that may be run again."""
        self.scale, self.is_live = scale, True
        if self.moves_unseen:
            self.before_moving()

    def before_moving(self) -> None:
        """Makes a copy of the scale where there is none yet."""
        if self.is_live and self.scale is not None:
            with unseen():
                self.scale, self.is_live = self.scale.clone(), False

    def rule_if_last(self) -> Rule | None:
        """Called by the backward of each that ran again: the rule once the others' are over."""
        self.waiting -= 1
        return self.said.rule if self.waiting <= 0 else None


def is_recomputing() -> bool:
    """Whether this is a forward inside a backward."""
    return torch._C._current_graph_task_id() != -1


def may_recompute() -> bool:
    """Whether this call may be run again: a checkpoint's first run has no graph, or hooks that
    drop what the graph would keep."""
    return not is_grad_enabled() or _saving_hooks(True) is not None


def is_checkpointed() -> bool:
    """Of code that is being traced: whether a checkpoint, within it or around it, will run it
    again. Asked while it is traced: the answer is a constant of the graph."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    hooks = _saving_hooks(True)
    if hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint":
        return True
    tracer: Any = InstructionTranslator.current_tx().output.current_tracer
    while tracer is not None and str(tracer.source_target) != "tag_activation_checkpoint":
        tracer = tracer.parent
    return tracer is not None


is_checkpointed._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Span:
    """Calls in a row that went one way: the sequence numbers of the first and the last."""

    def __init__(self, way: Way, number: int) -> None:
        self.way = way
        self.first = self.last = number


class Log:
    """The ways of a layer's calls, along autograd's sequence numbers; the last few of them.

    A copy of a layer begins a log of its own."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=REMEMBERED)
        self._has_forgotten = False
        self.has_turned = True  # a step of delayed scaling has begun since
        self._now = Way(Said(""))
        self._last: Span | None = None
        self.memo = Memo(None)  # a copy's is empty, too

    def is_empty(self) -> bool:
        """Whether the layer has not been called, but in compiled code."""
        return not self._spans

    def way_of(self, said: Said) -> Way:
        """The way of a call: that of the one before in the step, where it is told the same."""
        if self.has_turned or self._now.said != said:
            self._now, self.has_turned = Way(said), False
        return self._now

    def note(self, way: Way) -> None:
        """A call goes this way."""
        number, last = _get_sequence_nr(), self._last
        if last is not None and last.way is way:
            last.last = number
        else:
            self._has_forgotten |= len(self._spans) == REMEMBERED
            self._last = Span(way, number)
            self._spans.append(self._last)

    def note_said(self, said: Said, has_graph: bool) -> None:
        """A call without scales to move goes by what an autocast says."""
        if may_recompute():
            way = self.way_of(said)
            way.waiting += not has_graph
            self.note(way)

    def before_moving(self) -> None:
        """Called before the layer's scale moves: what is remembered gets a copy of it."""
        for span in self._spans:
            span.way.before_moving()

    def recall(self) -> Way | None:
        """The way of the call that is being recomputed; None where that is forgotten."""
        node = torch._C._current_autograd_node()
        number = node._sequence_nr()
        if node.name() == "CheckpointFunctionBackward":  # reentrant: made before its calls
            found = next((span for span in self._spans if span.last > number), None)
            is_sure = not self._has_forgotten or found is not self._spans[0]
        else:  # one of the nodes that its calls made, or that came after them
            spans = reversed(self._spans)
            found = next((span for span in spans if span.first <= number), None)
            is_sure = True
        if found is None or not is_sure:
            return None
        self.note(found.way)  # for checkpoints inside this one
        return found.way

    def __deepcopy__(self, memo: dict[int, Any]) -> "Log":
        return Log()

    def __reduce__(self) -> tuple[Any, ...]:
        return Log, ()
