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
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from torch.autograd import _get_sequence_nr
from torch.compiler import is_dynamo_compiling

import torch
from octet._constant import traced_as_constant
from octet._signatures import Options
from octet.recipe import CustomRecipe
from octet.state.active import Region, Step, activate, current, entered, no_dispatch_modes
from octet.state.scaling_rule import Rule, ScaleUpdater
from torch import is_grad_enabled

REMEMBERED = 16  # changes of recipe or scales that a layer remembers

_saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks


USER_QUANTIZERS = " with quantizers of a user's"


class CallRecipe(NamedTuple):
    """What an autocast asks of one layer."""

    text: str  # the recipe's
    options: Options = ()  # what it adds to a call's
    rule: Rule | None = None  # how delayed scaling updates
    custom: CustomRecipe | None = None  # the recipe itself, where quantizers are a user's

    @property
    def name(self) -> str:
        """What tells it from others: its text, unless quantizers are a user's."""
        return self.text if self.custom is None else self.text + USER_QUANTIZERS


NO_RECIPE = CallRecipe("none")


def version_of(tensor: torch.Tensor) -> int | None:
    """How often a tensor has been written to; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


class FirstRun(ScaleUpdater):
    """Calls of one step that quantized alike: by one recipe and one scale."""

    def __init__(self, recipe: CallRecipe) -> None:
        self.recipe = recipe
        self.scale: torch.Tensor | None = None  # a copy, where a call may be run again
        # Or of a layer in eval(), which does not change it: the scale itself, and its version.
        self.own_scale: torch.Tensor | None = None
        self.version: int | None = None
        # A call read a cached weight that was cast by other scales than these.
        self.read_older_cast = False
        self.with_ranks = False  # the end of a step updates the scales of gradients
        self.without_graph = 0  # calls that left no graph: a checkpoint will run them again

    def save_scale(self, scale: torch.Tensor, training: bool) -> None:
        """Copies the scale of the calls: the layer's own changes at the end of the step. In
        eval() it does not: there the scale itself will do, if nobody else writes to it."""
        if not training and self.scale is None:
            self.own_scale, self.version = scale, version_of(scale)
        elif self.scale is None:
            if torch._C._len_torch_dispatch_stack() == 0:  # a context costs more than a copy
                self.scale = scale.detach().clone()
                return
            with no_dispatch_modes():
                self.scale = scale.detach().clone()

    def records(self) -> bool:
        """Whether the calls recorded amaxes. Those of forward are recorded already: what
        repeats a call takes them and throws them away."""
        return self.scale is not None or bool(self.recipe.options)

    def is_stale(self) -> bool:
        """Whether the layer's own scale has been written to since."""
        return self.own_scale is not None and self.version != version_of(self.own_scale)

    def take_rule(self) -> Rule | None:
        """Called by the backward of each call that ran again: the rule, once it is the last."""
        self.without_graph -= 1
        if self.with_ranks:
            return None
        return self.recipe.rule if self.without_graph <= 0 else None


def may_run_again() -> bool:
    """Whether this call may be run again: it has no graph, or hooks take what that would
    save."""
    return not is_grad_enabled() or _saved_tensors_hooks(True) is not None


@traced_as_constant
def is_checkpointed() -> bool:
    """Of code that is being traced: whether a checkpoint, within it or around it, will run it
    again. Asked while it is traced: the answer is a constant of the graph."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    hooks = _saved_tensors_hooks(True)
    if hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint":
        return True
    tracer: Any = InstructionTranslator.current_tx().output.current_tracer
    while tracer is not None and str(tracer.source_target) != "tag_activation_checkpoint":
        tracer = tracer.parent
    return tracer is not None


# The nodes of layers: they run no layer themselves. octet._function adds them.
OWN_NODES: tuple[type, ...] = ()


class _Span:
    """Consecutive calls of one run: the numbers that the first and the last noted."""

    def __init__(self, run: FirstRun, number: int, with_grad: bool, nested: bool) -> None:
        self.run = run
        self.first = self.last = number
        self.with_grad = with_grad
        self.nested = nested  # noted inside a backward

    def continues(self, run: FirstRun, with_grad: bool, nested: bool) -> bool:
        """Whether one more such call is part of it."""
        same = self.with_grad is with_grad and self.nested is nested
        return self.run is run and same


class CallLog:
    """What a layer's last calls did. A copy of a layer begins a log of its own."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all calls."""
        self._spans: deque[_Span] = deque(maxlen=REMEMBERED)
        self._has_forgotten = False
        self.step_began = True  # of delayed scaling, since the last call
        self._run = FirstRun(NO_RECIPE)
        self.decided: Any = None  # what the last eager call decided, for those like it
        self.last: str | None = None  # the recipe's name of the last call outside a backward

    def note(
        self,
        recipe: CallRecipe,
        has_graph: bool,
        scale: torch.Tensor | None,
        training: bool = True,
    ) -> None:
        """Notes an eager call outside a backward."""
        self.last = recipe.text if recipe.custom is None else recipe.name
        if may_run_again():
            self.note_first(recipe, has_graph, scale, training)

    def note_first(
        self,
        recipe: CallRecipe,
        has_graph: bool,
        scale: torch.Tensor | None,
        training: bool = True,
    ) -> None:
        """Notes a call that may be run again."""
        run = self._run
        if run.own_scale is not None and (run.own_scale is not scale or run.is_stale()):
            self.step_began = True  # it has another one, or somebody else has written to it
        if self.step_began or self._run.recipe != recipe:
            self._run, self.step_began = FirstRun(recipe), False
        if scale is not None:
            self._run.save_scale(scale, training)
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
        """The run of the call that is being repeated, and whether it was forgotten."""
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
        """The call noted last read a weight that was cast in another step."""
        self._run.read_older_cast = True

    def note_again(self, run: FirstRun) -> None:
        """Notes a call inside a backward, for checkpoints inside the one that repeats it."""
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
    """A call inside a backward whose recipe is not known."""
    now, last = ("no recipe" if n == "none" else f"recipe {n}" for n in (now, last))
    return RuntimeError(
        f"{label} is called inside a backward under {now}, but its last call was under {last}, "
        f"and it is not known which of the two is to be repeated: {FIX}"
    )


def scales_updated(label: str) -> RuntimeError:
    """Compiled code under delayed scaling that a checkpoint runs again."""
    return RuntimeError(
        f"{label}: a checkpoint would run compiled code again by scales that have been "
        "updated; under "
        "delayed scaling leave the layer out of the checkpoint or of the compiled code, or "
        "take a recipe without scales of its own"
    )


def scales_changed(label: str) -> RuntimeError:
    """A call in eval() that is run again by scales that others have updated meanwhile."""
    return RuntimeError(
        f"{label} is recomputed in backward, but its scales were updated since its first run "
        "in eval(): run backward before the next training step, or call train() first"
    )


def cast_is_gone(label: str) -> RuntimeError:
    """A call that read a cached weight is run again where there is none."""
    return RuntimeError(
        f"{label} is recomputed in backward, but the cached weight that its first run read is "
        "gone, and scales were updated since it was cast: run backward inside "
        "octet.constant_weights()"
    )


def forgotten(label: str) -> RuntimeError:
    """A call inside a backward whose first run is too long ago."""
    return RuntimeError(
        f"{label} is recomputed in backward, but its recipe or its scales have changed more "
        f"than {REMEMBERED} times since: run backward sooner"
    )


def recipe_in_graph(now: CallRecipe, region: Region, last: str | None, label: str) -> str:
    """The recipe's text of a traced call inside a backward. `last` is all that the layer knows
    of the first run, which was traced as well: its recipe's name."""
    if region.in_backward or last is None or last == now.name:
        return now.text
    if region.enabled or region.calibrating or last.endswith(USER_QUANTIZERS):
        raise refused(label, now.name, last)
    return last  # the autocast of the first run is left by now


@traced_as_constant
def is_in_subgraph() -> bool:
    """Of code that is being traced: whether it is part of a subgraph (a checkpoint, a branch),
    which may not change anything outside of itself. A compiler runs it again by itself."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer: Any = InstructionTranslator.current_tx().output.current_tracer
    return tracer.parent is not None


# ---- octet.checkpoint ------------------------------------------------------------------------


class _FirstRunAutocast:
    """The autocast of a first run, for its recomputation. It counts as entered in the forward,
    so that layers repeat their first run by it, scales included."""

    def __init__(self, region: Region) -> None:
        self._region = Region(region.enabled, region.recipe, region.calibrating, Step(False))

    def __enter__(self) -> None:
        self._before = entered()
        activate(self._region)

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401
        activate(self._before)


class _Both:
    """Two contexts, one inside the other."""

    def __init__(self, outer: Any, inner: Any) -> None:  # noqa: ANN401
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401
        self._inner.__exit__(*error)
        self._outer.__exit__(*error)


_PARALLEL_ARGUMENTS = (
    "distribute_saved_activations",
    "get_rng_state_tracker",
    "tp_group",
)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,  # noqa: ANN401
    use_reentrant: bool = False,
    context_fn: Callable[[], tuple[Any, Any]] | None = None,
    determinism_check: str = "default",
    **kwargs: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """``torch.utils.checkpoint`` that recomputes under the autocast of the first run, in eager
    and in compiled code, whoever left which autocast meanwhile.

    The keywords ``use_reentrant`` (here False by default), ``context_fn`` and
    ``determinism_check`` are torch's; all others are the function's.

    >>> x = torch.randn(4, 8, requires_grad=True)
    >>> layer = octet.Linear(8, 8, device="cpu")
    >>> with octet.autocast():
    ...     y = octet.checkpoint(layer, x)
    >>> y.sum().backward()
    """
    for name in _PARALLEL_ARGUMENTS:
        if kwargs.pop(name, None):
            raise NotImplementedError(
                f"octet.checkpoint({name}=...) needs tensor parallelism, which is not there; "
                f"leave out {name}"
            )
    from torch.utils.checkpoint import checkpoint as torch_checkpoint

    if is_dynamo_compiling():  # the compiler runs it again by itself, inside this autocast
        own = {} if context_fn is None else {"context_fn": context_fn}
        return torch_checkpoint(function, *args, use_reentrant=False, **own, **kwargs)
    region = current()
    if use_reentrant:
        is_first = [True]

        def repeated(*inputs: Any) -> Any:  # noqa: ANN401
            first, is_first[0] = is_first[0], False
            with nullcontext() if first else _FirstRunAutocast(region):
                return function(*inputs, **kwargs)

        return torch_checkpoint(repeated, *args, use_reentrant=True)

    def contexts() -> tuple[Any, Any]:
        first, again = (nullcontext(), nullcontext()) if context_fn is None else context_fn()
        return first, _Both(again, _FirstRunAutocast(region))

    return torch_checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=contexts,
        determinism_check=determinism_check,
        **kwargs,
    )
