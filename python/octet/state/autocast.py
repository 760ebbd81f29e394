"""autocast and quantized_model_init: which recipe the layers inside use."""

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from torch.compiler import is_compiling

from octet.recipe import DelayedScaling, MXFP8BlockScaling, Recipe
from octet.state import scaling
from octet.state.active import (
    QUANTIZED_INIT,
    QuantizedInit,
    Region,
    Step,
    activate,
    current,
    entered,
    in_backward,
)

Function = TypeVar("Function", bound=Callable[..., Any])

_DEFAULT = MXFP8BlockScaling()


def default_recipe() -> Recipe:
    """The recipe that ``recipe=None`` stands for: MXFP8, which has no state.

    >>> octet.default_recipe()
    MXFP8BlockScaling('mxfp8')
    """
    return _DEFAULT


def checked(recipe: Recipe | None) -> Recipe:
    """The recipe, or the default one; anything else is refused."""
    if recipe is not None and not isinstance(recipe, Recipe):
        given = recipe.__name__ if isinstance(recipe, type) else repr(recipe)
        raise TypeError(
            f"recipe is {given}; it is an object of a class of octet.recipe, or None"
        )
    return _DEFAULT if recipe is None else recipe


def _check_flag(name: str, value: object, what: str) -> None:
    if not isinstance(value, bool):
        fix = f"; write {what}(recipe=...)" if isinstance(value, Recipe | type) else ""
        raise TypeError(f"{what}: {name} is {value!r}; it is True or False{fix}")


def _decorated(function: Function, kind: type, arguments: tuple[Any, ...]) -> Function:
    """The function inside a context manager of that kind, a new one for each call: traced code
    enters those only that it makes itself."""

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with kind(*arguments):
            return function(*args, **kwargs)

    return inside  # type: ignore[return-value]


class autocast(Region):  # noqa: N801
    """Layers inside quantize by a recipe. Nests; the inner one wins. Also a decorator.

    ``enabled=False`` switches quantization off inside; with ``calibrating=True`` layers then
    record delayed scaling's amaxes all the same. Works around and inside compiled code. Each
    thread and asyncio task has its own; a thread that has entered none is inside the main
    thread's.

    Delayed scaling updates its scales where the outermost autocast is left, and at each step of
    a torch.optim optimizer inside it: one autocast may stand around a whole training loop.

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
        _check_flag("enabled", enabled, "octet.autocast")
        _check_flag("calibrating", calibrating, "octet.autocast")
        if amax_reduction_group is not None:
            raise NotImplementedError(
                "autocast(amax_reduction_group=...): amaxes are not reduced over process groups"
            )
        self.enabled = enabled
        self.calibrating = calibrating
        self.recipe = checked(recipe)
        # The region before this one, and the same of an earlier entry that is not left yet.
        self._before: Any = None

    def __call__(self, function: Function) -> Function:
        """The function, each call of which is inside such an autocast."""
        return _decorated(function, autocast, (self.enabled, self.calibrating, self.recipe))

    def __enter__(self) -> "autocast":
        outer = entered()
        self._before = outer, self._before
        nested = outer is not None and (outer.enabled or outer.calibrating)
        self.step = outer.step if nested else Step(is_compiling())
        self.in_backward = in_backward()
        self.recipe._freeze()
        if isinstance(self.recipe, DelayedScaling) and not is_compiling():
            scaling.watch_optimizers()
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
        if step.recorded or step.in_graph or step.in_own_graph:
            scaling.end_step(step, kind is not None)


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
        _check_flag("enabled", enabled, "octet.quantized_model_init")
        made = checked(recipe)
        self._inner = QuantizedInit(made, preserve_high_precision_init_val) if enabled else None
        self._before: Any = None

    def __enter__(self) -> "quantized_model_init":
        self._before = QUANTIZED_INIT.value, self._before
        QUANTIZED_INIT.value = self._inner
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        QUANTIZED_INIT.value, self._before = self._before
