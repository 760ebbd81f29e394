"""autocast and quantized_model_init: which recipe the layers inside use."""

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch.compiler import is_compiling

import torch
from octet._delayed import Rule, update
from octet._state import ACTIVE, Init, Region, Step, activate, current, entered
from octet.recipe import MXFP8BlockScaling, Recipe
from torch import is_grad_enabled

if TYPE_CHECKING:
    from octet.linear import Linear

# Layers by their id, so that leaving an autocast finds those that recorded amaxes inside
# compiled code.
LAYERS: "weakref.WeakValueDictionary[int, Linear]" = weakref.WeakValueDictionary()


def all_layers() -> "list[Linear]":
    """The layers that there are; other threads may make some meanwhile."""
    return [layer for ref in LAYERS.valuerefs() if (layer := ref()) is not None]


_DEFAULT = MXFP8BlockScaling()


def default_recipe() -> Recipe:
    """The recipe that ``recipe=None`` stands for: MXFP8, which has no state.

    >>> octet.default_recipe()
    MXFP8BlockScaling('mxfp8')
    """
    return _DEFAULT


def checked(recipe: Recipe | None) -> Recipe:
    """The recipe, or the default one; what is none is refused."""
    if recipe is not None and not isinstance(recipe, Recipe):
        given = recipe.__name__ if isinstance(recipe, type) else repr(recipe)
        raise TypeError(
            f"recipe is {given}; it is an object of a class of octet.recipe, or None"
        )
    return _DEFAULT if recipe is None else recipe


# A layer's scales and history, and by which rule the former move.
Moved = tuple[torch.Tensor, torch.Tensor, Rule]


def _roll(used: list[Moved]) -> None:
    """Moves scales whose amaxes are recorded: at once where rule and device agree."""
    if len(used) == 1:
        scale, history, rule = used[0]
        update([scale, history], rule, "input")
        return
    groups: dict[Any, list[torch.Tensor]] = {}
    for scale, history, rule in used:
        groups.setdefault((rule, scale.device), []).extend((scale, history))
    for (rule, _), states in groups.items():
        update(states, rule, "input")


def _end(step: Step, failed: bool) -> None:
    """Ends a step: layers that recorded amaxes move their scales, but in evaluation.

    Nor do they where it failed: amaxes stay for the next one, and no error hides the first."""
    trains, token = is_grad_enabled() and not failed, step.token
    moved: list[Moved] = []
    if step.traced:
        for scale, history, rule in step.used if trains else ():
            # Or else it has moved by then.
            if all(scale is not other for other, _, _ in moved):
                moved.append((scale, history, rule))
        _roll(moved)
        return
    for layer in all_layers() if step.in_graph else step.used:
        use = layer._use
        if use.waits and use.token is token:  # and not in another thread's
            if trains:
                layer._log.before_moving()
            moved.append(use.taken(layer))
    if trains and moved:
        _roll(moved)


class autocast(Region):  # noqa: N801
    """Layers inside quantize by a recipe. Nests; the inner one wins.

    ``enabled=False`` switches quantization off inside; with ``calibrating=True`` layers then
    record delayed scaling's amaxes all the same. Works around and inside compiled code. Each
    thread has its own; one that has entered none is inside the main thread's.

    >>> with octet.autocast(recipe=octet.recipe.NVFP4BlockScaling()):
    ...     y = layer(x)
    """

    def __init__(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Recipe | None = None,
        amax_reduction_group: Any = None,  # noqa: ANN401
    ) -> None:
        if amax_reduction_group is not None:
            raise NotImplementedError(
                "autocast(amax_reduction_group=...): amaxes are not reduced over process groups"
            )
        self.enabled = enabled
        self.calibrating = calibrating
        self.recipe = checked(recipe)
        # What was active before, and the same of an earlier entry that is not left yet.
        self._before: Any = None

    def __enter__(self) -> "autocast":
        outer = entered()
        self._before = outer, self._before
        nested = outer is not None and (outer.enabled or outer.calibrating)
        self.step = outer.step if nested else Step(is_compiling())
        activate(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        step = self.step
        outer, self._before = self._before
        activate(outer)
        if outer is not None and (outer.enabled or outer.calibrating):
            return
        # Whoever keeps this object keeps no layers by it.
        self.step = (current() if outer is None else outer).step
        if step.used or step.in_graph:
            _end(step, kind is not None)


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,  # noqa: ANN401
) -> autocast:
    """autocast by its older name and arguments."""
    return autocast(enabled, calibrating, fp8_recipe, fp8_group)


class quantized_model_init:  # noqa: N801
    """Layers made inside hold quantized weights, by the recipe's weight quantizer.

    Where a GPU's FP8 products read bytes in one layout only (compute capability 8.9, 9.0 and
    12.0), a weight holds them row by row for forward and column by column for backward, two
    bytes an element; elsewhere one layout serves both where it can. A layer that is not trained
    does with the rows: ``layer.weight.update_usage(columnwise_usage=False)``.

    With ``preserve_high_precision_init_val`` such a weight answers
    ``get_high_precision_init_val()``, a CPU tensor, until ``clear_high_precision_init_val()``.

    >>> with octet.quantized_model_init(recipe=octet.recipe.MXFP8BlockScaling()):
    ...     layer = octet.Linear(64, 32, device="cpu")
    >>> type(layer.weight.data).__name__
    'QuantizedTensor'
    """

    def __init__(
        self,
        enabled: bool = True,
        recipe: Recipe | None = None,
        preserve_high_precision_init_val: bool = False,
    ) -> None:
        made = checked(recipe)
        self._inner = Init(made, preserve_high_precision_init_val) if enabled else None
        self._before: Any = None

    def __enter__(self) -> "quantized_model_init":
        self._before = ACTIVE.init, self._before
        ACTIVE.init = self._inner
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ACTIVE.init, self._before = self._before
