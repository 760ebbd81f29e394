"""Calls inside a backward: checkpoints, reversible blocks, hooks. None may silently change.

By the time of a backward the autocast may have been left and delayed scaling's scales may have
been updated. So a call inside a backward finds its recipe in this order:

1. an autocast that was entered inside the backward decides;
2. else the call repeats its first run: recipe and scales are those of then;
3. where the first run is not known, the current autocast decides if the layer's last call
   agrees with it; if not, the call is refused and the message says what to do.

A call that may be run again is noted in the sections that it is in (see octet.state.sections).
Its section is found again in the backward, whichever thread runs that, and whatever the layer
has done in between.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from octet._constant import traced_as_constant
from octet._signatures import Options
from octet.recipe import CustomRecipe
from octet.state import sections
from octet.state.active import Live, Region, current, no_dispatch_modes
from octet.state.scaling_rule import Rule, ScaleUpdater
from octet.state.sections import may_run_again

if TYPE_CHECKING:
    from octet.state.scaling import PendingUpdate

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
    """The calls of one step that quantize alike: one recipe, and one state of the layer."""

    def __init__(
        self, recipe: CallRecipe, state: torch.Tensor | None, pending: "PendingUpdate | None"
    ) -> None:
        self.recipe = recipe
        self.of = state  # the layer's state at the call
        # What backward needs of it. In training a copy, since it changes at the end of the
        # step. In eval() it does not change: then the state itself, and its version.
        self.state: torch.Tensor | None = None
        self.version: int | None = None
        self.training = pending is not None
        if state is not None and self.training:
            self.state = current_rows(state)
        elif state is not None:
            self.version = version_of(state)
        self.in_graph = False  # whether it was compiled code that ran
        # Whether a call read a cached weight that was cast by other scales than these.
        self.read_older_cast = False
        # whether the end of a step updates the gradients' scales, not backward
        self.with_ranks = False
        # count of calls without a graph, which a function's backward will run again
        self.without_graph = 0
        self._pending = pending
        self._step = None if pending is None else pending.step
        # whether the backward of another call updates the gradients' scales of this step
        self._has_updater = pending is not None and pending.has_updater

    def records(self) -> bool:
        """Whether the calls recorded amaxes. A repeated call measures them again and throws
        them away."""
        return self.state is not None or bool(self.recipe.options)

    def is_stale(self) -> bool:
        """Whether the layer's own state was written to since the first run, in eval()."""
        return self.version is not None and self.version != version_of(self.of)

    def is_like(self, other: "FirstRun") -> bool:
        """Whether a repeated call does the same by either."""
        return self is other or (
            self.recipe == other.recipe and self.of is None and other.of is None
        )

    def take_rule(self) -> Rule | None:
        """Called by the backward of each repeated call. Returns the rule for the last of them,
        else None."""
        self.without_graph -= 1
        updates = self.without_graph <= 0 and not (self.with_ranks or self._has_updater)
        rule = self.recipe.rule if updates else None
        if self._pending is not None:
            self._pending.backward_recorded(self._step, rule is not None)
        return rule


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


# What a layer notes of a call in a section: how many autocasts were around it, and its run.
Noted = tuple[int, FirstRun]
SEVERAL = "several"  # in the place of a recipe's name, where it may be one of several
_MOST_RUNS = 8  # of one step: what a layer remembers to note calls alike


def _depth() -> int:
    """How many autocasts are entered."""
    depth, region = 0, current()
    while region.outer is not None:
        depth, region = depth + 1, region.outer
    return depth


def _of_one(runs: list[FirstRun]) -> FirstRun | str | None:
    """The run that a call repeats; SEVERAL where it is not known which."""
    if any(not run.is_like(runs[0]) for run in runs):
        return SEVERAL
    return runs[0] if runs else None


class CallLog:
    """What a layer's last calls did. A copied layer begins with an empty log."""

    def __init__(self) -> None:
        # written by compiled code at each call: the name of its recipe
        self.in_graph = Live(lambda: None, self._note_in_graph)
        # read by compiled code inside a backward: the name of the recipe to repeat, if known
        self.repeated = Live(self._repeated_name)
        self.clear()

    def clear(self) -> None:
        """Forgets all calls."""
        self._key = object()  # of the layer in sections
        self._runs: list[FirstRun] = []  # of this step
        self._last_noted: FirstRun | None = None
        self.step_began = True  # whether a step of delayed scaling began since the last call
        self.decided: Any = None  # what the last eager call decided, reused by calls like it
        self.last: str | None = None  # name of the recipe of the last call outside a backward

    def _run(
        self, recipe: CallRecipe, state: torch.Tensor | None, pending: "PendingUpdate | None"
    ) -> FirstRun:
        """The run of this step that a call belongs to."""
        if self.step_began:
            self._runs, self.step_began = [], False
        for run in self._runs:
            alike = run.recipe == recipe and run.of is state and not run.is_stale()
            if alike and run.training is (pending is not None):
                return run
        made = FirstRun(recipe, state, pending)
        self._runs = [*self._runs[1 - _MOST_RUNS :], made]
        return made

    def note_first(
        self,
        recipe: CallRecipe,
        has_graph: bool,
        state: torch.Tensor | None = None,
        pending: "PendingUpdate | None" = None,
    ) -> None:
        """Notes a call outside a backward that may be run again. Under delayed scaling with the
        layer's state, and if the call records, with its pending update."""
        found, by_function = sections.around()
        self._last_noted = None
        if not found:
            return
        self._last_noted = run = self._run(recipe, state, pending)
        run.without_graph += by_function and not has_graph
        self._note(run, found)

    def _note(self, run: FirstRun, found: list[sections.Section]) -> None:
        depth = _depth()
        for section in found:
            section.note(self._key, (depth, run))

    def note_older_cast(self) -> None:
        """Notes that the last call read a weight that was cast in another step."""
        if self._last_noted is not None:
            self._last_noted.read_older_cast = True

    def note_again(self, run: FirstRun) -> None:
        """Notes a repeated call inside a backward, for sections nested in the one that repeats
        it."""
        if may_run_again():
            self._note(run, sections.around()[0])

    def _note_in_graph(self, name: str) -> None:
        """Notes a call of compiled code outside a backward."""
        self.last = name
        if may_run_again():
            found, _ = sections.around()
            if found:
                run = self._run(CallRecipe(name), None, None)
                run.in_graph = True
                self._note(run, found)

    def first_run(self, inside: CallRecipe | None = None) -> FirstRun | str | None:
        """The first run of the call that is being repeated; None if it is not known, SEVERAL if
        there is more than one. `inside`: the recipe of an autocast that was entered inside the
        backward. Else the first run is one outside of all autocasts that the section itself
        enters."""
        noted: list[Noted] = sections.noted_in_first_run(self._key)
        if inside is not None:
            return _of_one([run for _, run in noted if run.recipe == inside])
        outermost = min((depth for depth, _ in noted), default=0)
        return _of_one([run for depth, run in noted if depth == outermost])

    def _repeated_name(self) -> str | None:
        if torch._C._current_graph_task_id() == -1:
            return None
        run = self.first_run()
        return run.recipe.name if isinstance(run, FirstRun) else run

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


def several(label: str) -> RuntimeError:
    """The error for a call that repeats one of several first runs."""
    return RuntimeError(
        f"{label} is recomputed in backward, but what is recomputed has called it by more than "
        "one recipe or scale, and it is not known which of them is to be repeated: checkpoint "
        "these calls one by one, or enter one octet.autocast around all of them"
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


def recipe_in_graph(now: CallRecipe, region: Region, log: CallLog, label: str) -> str:
    """The recipe's text of a traced call inside a backward."""
    if region.in_backward:
        return now.text
    repeated = log.repeated.value
    if repeated == SEVERAL:
        raise several(label)
    last = log.last if repeated is None else repeated
    if last is None or last == now.name:
        return now.text
    # With a first run that is not known, the last call's recipe may be repeated if no autocast
    # is active: that of the call was left.
    is_active = region.enabled or region.calibrating
    if (repeated is None and is_active) or last.endswith(USER_QUANTIZERS):
        raise refused(label, now.name, last)
    return last


@traced_as_constant
def is_in_subgraph() -> bool:
    """Whether the traced code is part of a subgraph (a checkpoint, a branch). A subgraph may
    not change anything outside of itself, and the compiler may run it again."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer: Any = InstructionTranslator.current_tx().output.current_tracer
    return tracer.parent is not None
