"""Calls inside a backward: checkpoints, reversible blocks, hooks. None may silently change.

By the time of a backward the autocast may have been left and delayed scaling's scales may have
been updated. So a call inside a backward finds its recipe in this order:

1. an autocast that was entered inside the backward decides;
2. else the call repeats its first run: recipe and scales are those of then;
3. where the first run is not known, the current autocast decides if the layer's last call
   agrees with it; if not, the call is refused and the message says what to do.

How the first run is found. Autograd numbers its nodes in the order in which they are made. A
layer notes the next number at each call that may be run again. In the backward, the node that
is running has a number, too. There are two kinds of calls inside a backward:

- *By a function.* The backward of an autograd.Function runs the call: a reentrant checkpoint, a
  reversible block. Its first run was without a graph, inside the forward of that node, so it is
  the earliest call without a graph that noted a number above the node's.
- *By a hook.* A node asks for a saved tensor, and the hooks that took it compute it again: a
  non-reentrant checkpoint. The node was made by that region, so the first run is the latest
  call with a graph that noted a number up to the node's.

Without hooks for saved tensors it is a function. At a node that is not an autograd.Function of
somebody else's it is a hook.
Where it may be either, both are looked for. If the two differ, a call that was noted inside a
backward (in a nested checkpoint) gives way; else the first run is not known.
"""

from collections import deque
from typing import Any, NamedTuple

from torch.autograd import _get_sequence_nr

import torch
from octet._constant import traced_as_constant
from octet._signatures import Options
from octet.recipe import CustomRecipe
from octet.state.active import Region, no_dispatch_modes
from octet.state.scaling_rule import Rule, ScaleUpdater
from torch import is_grad_enabled

REMEMBERED = 16  # how many changes of recipe or scales a layer remembers

_saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks


USER_QUANTIZERS = " with quantizers of a user's"


class CallRecipe(NamedTuple):
    """What an autocast asks of one layer."""

    text: str  # the recipe's text
    options: Options = ()  # options added to the call's
    rule: Rule | None = None  # how delayed scaling updates its scales
    # the recipe itself, if the user wrote some of its quantizers
    custom: CustomRecipe | None = None

    @property
    def name(self) -> str:
        """Identifies the recipe: its text, marked if the user wrote some of its quantizers."""
        return self.text if self.custom is None else self.text + USER_QUANTIZERS


NO_RECIPE = CallRecipe("none")


def version_of(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written to; None if torch does not count."""
    return None if tensor.is_inference() else tensor._version


def current_rows(state: torch.Tensor) -> torch.Tensor:
    """A copy of a state's scales and of the current step's amaxes: a state that a call may
    write."""
    # entering the context below costs more than the copy
    if torch._C._len_torch_dispatch_stack() == 0:
        return state.narrow_copy(0, 0, 2)
    with no_dispatch_modes():
        return state.narrow_copy(0, 0, 2)


class FirstRun(ScaleUpdater):
    """The calls of one step that quantized alike: one recipe and one state."""

    def __init__(self, recipe: CallRecipe) -> None:
        self.recipe = recipe
        self.state: torch.Tensor | None = None  # a copy, if a call may be run again
        # Or of a layer in eval(), which does not change it: the state itself, and its version.
        self.own_state: torch.Tensor | None = None
        self.version: int | None = None
        # Whether a call read a cached weight that was cast by other scales than these.
        self.read_older_cast = False
        # whether the end of a step updates the gradients' scales, not backward
        self.with_ranks = False
        # count of calls without a graph: a checkpoint will run them again
        self.without_graph = 0

    def save_state(self, state: torch.Tensor, training: bool) -> None:
        """Copies the scales, since the layer's own change at the end of the step. In eval()
        they do not change, so a reference and its version are enough."""
        if not training and self.state is None:
            self.own_state, self.version = state, version_of(state)
        elif self.state is None:
            self.state = current_rows(state)

    def records(self) -> bool:
        """Whether the calls recorded amaxes. A repeated call measures them again and throws
        them away."""
        return self.state is not None or bool(self.recipe.options)

    def is_stale(self) -> bool:
        """Whether the layer's own state was written to since the first run."""
        return self.own_state is not None and self.version != version_of(self.own_state)

    def take_rule(self) -> Rule | None:
        """Called by the backward of each repeated call. Returns the rule for the last of them,
        else None."""
        self.without_graph -= 1
        if self.with_ranks:
            return None
        return self.recipe.rule if self.without_graph <= 0 else None


def may_run_again() -> bool:
    """Whether this call may be run again: it has no graph, or saved-tensor hooks are active."""
    return not is_grad_enabled() or _saved_tensors_hooks(True) is not None


@traced_as_constant
def is_checkpointed() -> bool:
    """Whether a checkpoint, inside or around the traced code, will run it again. The answer is
    a constant of the graph."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    hooks = _saved_tensors_hooks(True)
    if hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint":
        return True
    tracer: Any = InstructionTranslator.current_tx().output.current_tracer
    while tracer is not None and str(tracer.source_target) != "tag_activation_checkpoint":
        tracer = tracer.parent
    return tracer is not None


# The autograd nodes of octet layers, set by octet._function. They run no layer in their
# backward.
OWN_NODES: tuple[type, ...] = ()


class _Span:
    """Consecutive calls of one FirstRun: the sequence numbers of the first and of the last."""

    def __init__(self, run: FirstRun, number: int, with_grad: bool, nested: bool) -> None:
        self.run = run
        self.first = self.last = number
        self.with_grad = with_grad
        self.nested = nested  # logged inside a backward

    def continues(self, run: FirstRun, with_grad: bool, nested: bool) -> bool:
        """Whether one more such call belongs to this span."""
        same = self.with_grad is with_grad and self.nested is nested
        return self.run is run and same


class CallLog:
    """What a layer's last calls did. A copied layer begins with an empty log."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all calls."""
        self._spans: deque[_Span] = deque(maxlen=REMEMBERED)
        self._has_forgotten = False
        self.step_began = True  # whether a step of delayed scaling began since the last call
        self._run = FirstRun(NO_RECIPE)
        self.decided: Any = None  # what the last eager call decided, reused by calls like it
        self.last: str | None = None  # name of the recipe of the last call outside a backward

    def note(
        self,
        recipe: CallRecipe,
        has_graph: bool,
        state: torch.Tensor | None,
        training: bool = True,
    ) -> None:
        """Logs an eager call outside a backward."""
        self.last = recipe.text if recipe.custom is None else recipe.name
        if may_run_again():
            self.note_first(recipe, has_graph, state, training)

    def note_first(
        self,
        recipe: CallRecipe,
        has_graph: bool,
        state: torch.Tensor | None,
        training: bool = True,
    ) -> None:
        """Logs a call that may be run again."""
        run = self._run
        if run.own_state is not None and (run.own_state is not state or run.is_stale()):
            # the layer has another scale now, or its scale was written to
            self.step_began = True
        if self.step_began or self._run.recipe != recipe:
            self._run, self.step_began = FirstRun(recipe), False
        if state is not None:
            self._run.save_state(state, training)
        self._run.without_graph += not has_graph
        self._append(self._run, False)

    def _append(self, run: FirstRun, nested: bool) -> None:
        number, spans = _get_sequence_nr(), self._spans
        with_grad = is_grad_enabled()
        if spans and spans[-1].continues(run, with_grad, nested):
            spans[-1].last = number
            return
        if len(spans) == REMEMBERED:
            self._has_forgotten = True
        spans.append(_Span(run, number, with_grad, nested))

    def first_run(self) -> tuple[FirstRun | None, bool]:
        """The first run of the call that is being repeated, and whether it was dropped from the
        log."""
        node = torch._C._current_autograd_node()
        if node is None or not self._spans:
            return None, False
        number = node._sequence_nr()
        by_function = by_hook = None
        if isinstance(node, torch._C._FunctionBase) and not isinstance(node, OWN_NODES):
            later = (s for s in self._spans if not s.with_grad and s.last > number)
            by_function = next(later, None)
            if by_function is self._spans[0] and self._has_forgotten:
                return None, True
        if by_function is None or _saved_tensors_hooks(True) is not None:
            earlier = (s for s in reversed(self._spans) if s.with_grad and s.first <= number)
            by_hook = next(earlier, None)
            if by_hook is None and by_function is None:
                return None, self._has_forgotten
        if by_function is None or by_hook is None or by_function.run is by_hook.run:
            found = by_function or by_hook
            return found.run, False
        if by_hook.nested != by_function.nested:
            return (by_function if by_hook.nested else by_hook).run, False
        return None, False

    def note_older_cast(self) -> None:
        """Logs that the last call read a weight that was cast in another step."""
        self._run.read_older_cast = True

    def note_again(self, run: FirstRun) -> None:
        """Logs a repeated call inside a backward, for checkpoints nested in the one that
        repeats it."""
        if may_run_again():
            self._append(run, True)

    def __deepcopy__(self, memo: dict[int, Any]) -> "CallLog":
        return CallLog()

    def __reduce__(self) -> tuple[Any, ...]:
        return CallLog, ()


FIX = (
    "enter octet.autocast inside what the backward runs (the checkpointed function, the hook), "
    "or use octet.checkpoint"
)


def refused(label: str, now: str, last: str) -> RuntimeError:
    """The error for a call inside a backward whose recipe is not known."""
    now, last = ("no recipe" if n == "none" else f"recipe {n}" for n in (now, last))
    return RuntimeError(
        f"{label} is called inside a backward under {now}, but its last call was under {last}, "
        f"and it is not known which of the two is to be repeated: {FIX}"
    )


def scales_updated(label: str) -> RuntimeError:
    """The error for compiled code under delayed scaling that a checkpoint would run again."""
    return RuntimeError(
        f"{label}: a checkpoint would run compiled code again by scales that have been "
        "updated; under "
        "delayed scaling leave the layer out of the checkpoint or of the compiled code, or "
        "take a recipe without scales of its own"
    )


def scales_changed(label: str) -> RuntimeError:
    """The error for a call in eval() that is repeated after its scales were updated."""
    return RuntimeError(
        f"{label} is recomputed in backward, but its scales were updated since its first run "
        "in eval(): run backward before the next training step, or call train() first"
    )


def cast_is_gone(label: str) -> RuntimeError:
    """The error for a repeated call whose cached weight is gone."""
    return RuntimeError(
        f"{label} is recomputed in backward, but the cached weight that its first run read is "
        "gone, and scales were updated since it was cast: run backward inside "
        "octet.constant_weights()"
    )


def forgotten(label: str) -> RuntimeError:
    """The error for a repeated call whose first run is too long ago."""
    return RuntimeError(
        f"{label} is recomputed in backward, but its recipe or its scales have changed more "
        f"than {REMEMBERED} times since: run backward sooner"
    )


def recipe_in_graph(now: CallRecipe, region: Region, last: str | None, label: str) -> str:
    """The recipe's text of a traced call inside a backward. `last` is the recipe name of the
    layer's last call, which is all that the layer knows of a traced first run."""
    if region.in_backward or last is None or last == now.name:
        return now.text
    if region.enabled or region.calibrating or last.endswith(USER_QUANTIZERS):
        raise refused(label, now.name, last)
    return last  # the autocast of the first run was left


@traced_as_constant
def is_in_subgraph() -> bool:
    """Whether the traced code is part of a subgraph (a checkpoint, a branch). A subgraph may
    not change anything outside of itself, and the compiler may run it again."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer: Any = InstructionTranslator.current_tx().output.current_tracer
    return tracer.parent is not None
