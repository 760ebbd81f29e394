"""Which autocast is active in this thread or asyncio task, and the training step it belongs
to."""

import contextvars
import threading
from typing import TYPE_CHECKING, Any

from torch.torch_version import TorchVersion

import torch
from octet._C import LiveValue

if TYPE_CHECKING:
    from octet.recipe import Recipe

# Hides ops from dispatch modes, such as those of a selective checkpoint, which expects the same
# ops in both of its runs.
no_dispatch_modes = torch.utils._python_dispatch._disable_current_modes


class Live(LiveValue):
    """An attribute whose value a function computes at every read; compiled code guards on it.

    It is a Python subclass because Dynamo traces attributes only of Python classes."""


# Whether a compiled backward takes a state that was written to since its forward. Torch 2.10
# refuses it.
MAY_CHANGE_BEFORE_BACKWARD = TorchVersion(torch.__version__) >= (2, 11)


class StepId:
    """Identifies a step. A layer stores this and not the Step, so that it keeps no other layer
    alive."""


class Step:
    """A training step of delayed scaling. It begins where the outermost autocast is entered. It
    ends where that autocast is left, or at an optimizer's step inside it.

    At its end the layers that recorded amaxes update their scales."""

    def __init__(self, traced: bool, group: str = "") -> None:
        self.traced = traced  # whether the autocast was entered in traced code
        self.group = group  # the amax_reduction_group of the autocast, or ""
        # Only for traced steps. Layer -> the states to update, each with its rule.
        self.updates_in_graph: dict[Any, Any] = {}
        # Only for traced steps. (rule, device) -> states. Where ranks reduce the amaxes first,
        # the entries (layer, state, rule) stand in the second list.
        self.states_in_graph: dict[Any, list[Any]] = {}
        self.states_of_ranks: list[Any] = []
        self.id = StepId()
        self.recorded: list[Any] = []  # the layers that recorded amaxes in eager code
        # True if compiled code inside the step recorded amaxes, too. It marks its layers
        # (PendingUpdate.waits) and cannot append to `recorded`: Dynamo would guard on the
        # length of the list.
        self.in_graph = False

    def restart(self) -> None:
        """Begins a new step of the same autocast."""
        self.id, self.recorded, self.in_graph = StepId(), [], False


class Region:
    """An entered autocast: what it asks of the layers inside it."""

    traced = False  # whether traced code entered it
    in_backward = False  # whether it was entered while a backward ran
    outer: "Region | None" = None  # becomes active again when this one is left

    def __init__(
        self, enabled: bool, recipe: "Recipe | None", calibrating: bool, step: Step
    ) -> None:
        self.enabled = enabled
        self.recipe = recipe
        self.calibrating = calibrating
        self.step = step
        # The recipe's text. None where a text is not enough: custom recipes and calibration.
        self.text: str | None = "none"
        if calibrating or (enabled and recipe._is_custom):
            self.text = None
        elif enabled:
            self.text = recipe._text


class ConstantWeights:
    """An entered ``constant_weights()``. ``cast`` lists the caches that are filled already;
    only a traced one uses it."""

    def __init__(self, traced: bool, outer: "ConstantWeights | None") -> None:
        self.traced = traced
        self.outer = outer
        self.cast: list[Any] = []


class QuantizedInit:
    """An entered ``quantized_model_init``: what it asks of the layers made inside it."""

    def __init__(
        self, recipe: "Recipe", preserve: bool, enabled: bool, outer: "QuantizedInit | None"
    ) -> None:
        self.recipe = recipe
        self.preserve = preserve
        self.enabled = enabled
        self.outer = outer


class _Main:
    """The main thread's region. Other threads that entered no autocast use it, too.

    Such threads are autograd's own (one for each GPU) and those that run the replicas of a
    model. In the main thread itself it is not used: another asyncio task may have entered
    it."""

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


def _not_entered() -> Region:
    """The region of a thread or task that has entered none."""
    return NO_AUTOCAST if threading.get_ident() == _MAIN_IDENT else MAIN_THREAD.region


NO_AUTOCAST = MAIN_THREAD.region
ENTERED = Live(_region.get, _activate)
NOT_ENTERED = Live(_not_entered)
CONSTANT_WEIGHTS = Live(_constant.get, _constant.set)
QUANTIZED_INIT = Live(_init.get, _init.set)
BACKWARD = Live(lambda: torch._C._current_graph_task_id() != -1)


# Traced code reads the objects above only through the functions below. If Dynamo met one object
# in two places, it would add a guard that both are still the same object.
def entered() -> Region | None:
    """The region that this thread or task has entered; None if it has entered none."""
    return ENTERED.value


def current() -> Region:
    """The region that layers use now."""
    region = ENTERED.value
    return NOT_ENTERED.value if region is None else region


def activate(region: Region | None) -> None:
    """Makes a region the current one of this thread or task."""
    ENTERED.value = region


def constant_weights_here() -> ConstantWeights | None:
    """The constant_weights() entered in this thread or task; None if there is none."""
    return CONSTANT_WEIGHTS.value


def in_backward() -> bool:
    """Whether a backward runs in this thread. Compiled code asks again at every call."""
    return BACKWARD.value
