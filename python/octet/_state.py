"""The one place of what is active: whether layers quantize, by which recipe."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octet.recipe import Recipe


class Region:
    """What an autocast says to the layers inside it."""

    def __init__(
        self, enabled: bool, recipe: "Recipe | None", calibrating: bool, traced: bool
    ) -> None:
        self.enabled = enabled
        self.recipe = recipe
        self.calibrating = calibrating
        self.traced = (
            traced  # the outermost one was entered in traced code: `used` is the graph's
        )
        self.used: list[Any] = []


class Init:
    """What a quantized_model_init says to the layers made inside it."""

    def __init__(self, recipe: "Recipe", preserve: bool) -> None:
        self.recipe = recipe
        self.preserve = preserve


class Active:
    """The region that layers are in now."""

    def __init__(self) -> None:
        # Of the object, not of the class: compiled code guards on where it found them.
        self.region = Region(False, None, False, False)
        self.init: Init | None = None


ACTIVE = Active()
