"""What is active here: the autocast of this thread and asyncio task, and its step."""

import contextvars
import threading
from typing import TYPE_CHECKING, Any

import torch
from octet._C import LiveValue

if TYPE_CHECKING:
    from octet.recipe import Recipe

# Hides ops from dispatch modes, such as those of a selective checkpoint, which expects the same
# ops in both of its runs.
no_dispatch_modes = torch.utils._python_dispatch._disable_current_modes


class Live(LiveValue):
    """An attribute that a function computes at every read; compiled code guards on it.

    A subclass in Python, because compilers trace the attributes of such objects only."""


class StepId:
    """What tells a step from another. Layers hold it, and so hold no other layer by it."""


class Step:
    """A training step, as far as scales are concerned: it begins where an outermost autocast is
    entered and ends where that is left, or at an optimizer's step inside it.

    At its end the layers that recorded amaxes update their scales."""

    def __init__(self, traced: bool, group: str = "") -> None:
        self.traced = traced  # it was entered in traced code
        self.group = group  # whose ranks reduce amaxes, where autocast was given one
        # There, by layer: scales that are updated, and by which rule each was used.
        self.updates_in_graph: dict[Any, Any] = {}
        # By rule and device: scale and history by turns. And those whose ranks reduce amaxes
        # before: layer, scale, history, rule.
        self.states_in_graph: dict[Any, list[Any]] = {}
        self.states_of_ranks: list[Any] = []
        self.id = StepId()
        self.recorded: list[Any] = []  # layers
        # Code that was traced inside used some, too, and marked them alone: it cannot append to
        # what lies outside of it without a guard on the length.
        self.in_graph = False

    def restart(self) -> None:
        """A new step of the same autocast."""
        self.id, self.recorded, self.in_graph = StepId(), [], False


class Region:
    """What an autocast asks of the layers inside it."""

    in_backward = False  # it was entered while a backward ran
    outer: "Region | None" = None  # the region that leaving it restores

    def __init__(
        self, enabled: bool, recipe: "Recipe | None", calibrating: bool, step: Step
    ) -> None:
        self.enabled = enabled
        self.recipe = recipe
        self.calibrating = calibrating
        self.step = step
        # The text by which every layer quantizes; None where it takes more to say.
        self.text: str | None = "none"
        if calibrating or (enabled and recipe._is_custom):
            self.text = None
        elif enabled:
            self.text = recipe._text


class ConstantWeights:
    """An entered constant_weights. ``cast``: the weights that are cast already;
    used only if it was entered in traced code."""

    def __init__(self, traced: bool, outer: "ConstantWeights | None") -> None:
        self.traced = traced
        self.outer = outer
        self.cast: list[Any] = []


class QuantizedInit:
    """What a quantized_model_init asks of the layers made inside it."""

    def __init__(
        self, recipe: "Recipe", preserve: bool, enabled: bool, outer: "QuantizedInit | None"
    ) -> None:
        self.recipe = recipe
        self.preserve = preserve
        self.enabled = enabled
        self.outer = outer


class _Main:
    """The main thread's region, which a thread that has entered none is in, too.

    Such threads are autograd's own, one a GPU, and those that run the replicas of a model."""

    def __init__(self) -> None:
        self.region = Region(False, None, False, Step(False))


MAIN_THREAD = _Main()
_region: contextvars.ContextVar[Region | None] = contextvars.ContextVar(
    "octet_region", default=None
)
_constant: contextvars.ContextVar[ConstantWeights | None] = contextvars.ContextVar(
    "octet_constant_weights", default=None
)
_init: contextvars.ContextVar[QuantizedInit | None] = contextvars.ContextVar(
    "octet_quantized_init", default=None
)


_MAIN_IDENT = threading.main_thread().ident


def _activate(region: Region | None) -> None:
    _region.set(region)
    if threading.get_ident() == _MAIN_IDENT:
        MAIN_THREAD.region = NO_AUTOCAST if region is None else region


NO_AUTOCAST = MAIN_THREAD.region
ENTERED = Live(_region.get, _activate)
CONSTANT_WEIGHTS = Live(_constant.get, _constant.set)
QUANTIZED_INIT = Live(_init.get, _init.set)
BACKWARD = Live(lambda: torch._C._current_graph_task_id() != -1)


# Traced code reads these through the functions below alone: of what it meets in two places, it
# asks at each call whether both are still one.
def entered() -> Region | None:
    """The region that this thread or task has entered; None where it has entered none."""
    return ENTERED.value


def current() -> Region:
    """The region that layers are in now."""
    region = ENTERED.value
    return MAIN_THREAD.region if region is None else region


def activate(region: Region | None) -> None:
    """Makes a region this thread's or task's current one."""
    ENTERED.value = region


def constant_weights_here() -> ConstantWeights | None:
    """The constant_weights that is entered here; None where none is."""
    return CONSTANT_WEIGHTS.value


def in_backward() -> bool:
    """Whether a backward runs in this thread; asked anew at every call of compiled code."""
    return BACKWARD.value
