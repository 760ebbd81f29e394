"""The one place of what is active: whether layers quantize, by which recipe."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octet.recipe import Recipe


class Step:
    """From entering an outermost autocast to leaving it: the layers whose scales will move."""

    def __init__(self, traced: bool) -> None:
        self.traced = traced  # it was entered in traced code: `used` is the graph's
        self.used: list[Any] = []  # layers; in traced code (layer, rule)
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


class Active:
    """The region that layers are in now."""

    def __init__(self) -> None:
        # Of the object, not of the class: compiled code guards on where it found them.
        self.region = Region(False, None, False, Step(False))
        self.init: Init | None = None


ACTIVE = Active()


# Traced code comes to ACTIVE through these alone: of what it meets in two places, it asks at
# each call whether both are still one.
def current() -> Region:
    """The region that layers are in now."""
    return ACTIVE.region


def activate(region: Region) -> None:
    """Makes a region the current one."""
    ACTIVE.region = region
