"""The one place of what is active in a thread: whether layers quantize, by which recipe."""

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octet.recipe import Recipe


class Token:
    """What tells a step from another. Layers keep it, and so keep no other layer by it."""


class Step:
    """From entering an outermost autocast to leaving it: the layers whose scales will move."""

    def __init__(self, traced: bool) -> None:
        self.token = Token()
        self.traced = traced  # it was entered in traced code: `used` is the graph's
        self.used: list[Any] = []  # layers; in traced code (scale, history, rule)
        # Code that was traced inside used some, too, and marked them alone: it cannot append to
        # what lies outside of it without a guard on the length.
        self.in_graph = False


class Region:
    """What an autocast says to the layers inside it."""

    def __init__(
        self, enabled: bool, recipe: "Recipe | None", calibrating: bool, step: Step
    ) -> None:
        self.enabled = enabled
        self.recipe = recipe
        self.calibrating = calibrating
        self.step = step


class Init:
    """What a quantized_model_init says to the layers made inside it."""

    def __init__(self, recipe: "Recipe", preserve: bool) -> None:
        self.recipe = recipe
        self.preserve = preserve


class Shared:
    """The main thread's region, which a thread that has entered none is in, too.

    Such threads are autograd's own, one a GPU, and those that run the replicas of a model."""

    def __init__(self) -> None:
        self.region = Region(False, None, False, Step(False))


class Active(threading.local):
    """What one thread has entered. Made anew in each."""

    def __init__(self) -> None:
        # Of the object, not of the class: compiled code guards on where it found them.
        self.is_main = threading.current_thread() is threading.main_thread()
        self.region: Region | None = SHARED.region if self.is_main else None
        self.init: Init | None = None


SHARED = Shared()
ACTIVE = Active()


# Traced code comes to ACTIVE through these alone: of what it meets in two places, it asks at
# each call whether both are still one.
def entered() -> Region | None:
    """The region that this thread has entered; None where it has entered none."""
    return ACTIVE.region


def current() -> Region:
    """The region that layers are in now."""
    region = ACTIVE.region
    return SHARED.region if region is None else region


def activate(region: Region | None) -> None:
    """Makes a region this thread's current one."""
    ACTIVE.region = region
    if ACTIVE.is_main and region is not None:
        SHARED.region = region
