"""autocast and quantized_model_init: which recipe the layers inside use."""

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from torch._C import _current_graph_task_id
from torch.compiler import is_compiling, is_dynamo_compiling

from octet._constant import traced_as_constant
from octet.recipe import DelayedScaling, MXFP8BlockScaling, Recipe
from octet.state import scaling
from octet.state.active import (
    QUANTIZED_INIT,
    QuantizedInit,
    Region,
    Step,
    activate,
    entered,
    in_backward,
)
from torch import is_grad_enabled

Function = TypeVar("Function", bound=Callable[..., Any])

_DEFAULT = MXFP8BlockScaling()


def default_recipe() -> Recipe:
    """The recipe that ``recipe=None`` stands for: MXFP8, which has no state.

    >>> octet.default_recipe()
    MXFP8BlockScaling('mxfp8')
    """
    return _DEFAULT


def checked_recipe(recipe: Recipe | None) -> Recipe:
    """Returns the recipe, or the default one for None; raises for anything else."""
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
    """Wraps a function so that each call runs inside a new context manager of that kind. A new
    one for each call, because traced code can only enter a context manager that it made."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"octet.{kind.__name__} cannot decorate the generator {function.__qualname__}: its "
            f"body runs later; write `with octet.{kind.__name__}(...)` inside it"
        )
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            with kind(*arguments):
                return await function(*args, **kwargs)

        return awaited  # type: ignore[return-value]

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with kind(*arguments):
            return function(*args, **kwargs)

    return inside  # type: ignore[return-value]


@traced_as_constant
def _amax_group(group: Any) -> str:  # noqa: ANN401
    """The name of the group over which amaxes are reduced."""
    from octet._parallel import group_name

    return group_name(group, "octet.autocast", "amax_reduction_group")


class autocast:  # noqa: N801
    """Inside this context, octet layers quantize by ``recipe``. Also a decorator.

    Put it around the model's forward; backward uses the recipe of its forward. Contexts nest,
    and the innermost one decides. It may be around compiled code or inside it. Each thread and
    asyncio task has its own context; a thread that entered none uses the main thread's.

    ``recipe`` is an object of ``octet.recipe``; None means ``octet.default_recipe()``, MXFP8.
    ``enabled=False`` switches quantization off; with ``calibrating=True`` layers then still
    record amaxes for delayed scaling.

    Delayed scaling updates its scales at the end of the outermost autocast, and at each step of
    a torch.optim optimizer inside it. So one autocast may be around a whole training loop. If
    the recipe has ``reduce_amax``, the amaxes are first reduced (max) over the ranks of
    ``amax_reduction_group``, or without a group over the ranks that a layer is split over.

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
        if type(enabled) is not bool or type(calibrating) is not bool:
            _check_flag("enabled", enabled, "octet.autocast")
            _check_flag("calibrating", calibrating, "octet.autocast")
        self.group = ""
        if amax_reduction_group is not None:
            self.group = _amax_group(amax_reduction_group)
        self.enabled = enabled
        self.calibrating = calibrating
        self.recipe = checked_recipe(recipe)

    def __call__(self, function: Function) -> Function:
        """Wraps a function; each of its calls runs inside such an autocast."""
        group = self.group or None
        arguments = self.enabled, self.calibrating, self.recipe, group
        return _decorated(function, autocast, arguments)

    def __enter__(self) -> "autocast":
        # Each entry makes its own region: threads and tasks may share this object, and it may
        # be entered again inside itself.
        outer, recipe = entered(), self.recipe
        continues = outer is not None and (outer.enabled or outer.calibrating)
        if continues and self.group and self.group != outer.step.group:
            raise ValueError(
                "octet.autocast: amax_reduction_group belongs to a whole step; give it to the "
                "outermost autocast"
            )
        step = outer.step if continues else Step(is_compiling(), self.group)
        region = Region(self.enabled, recipe, self.calibrating, step)
        region.outer = outer
        if is_dynamo_compiling():
            region.traced, region.in_backward = True, in_backward()
        else:
            region.in_backward = _current_graph_task_id() != -1
            if not recipe._frozen:
                recipe._freeze()
            if isinstance(recipe, DelayedScaling):
                scaling.watch_optimizers()
        activate(region)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        region = entered()
        if region is None:
            raise RuntimeError(
                "octet.autocast is left in another thread or task than it was entered in; "
                "enter and leave it in the same one"
            )
        outer, step = region.outer, region.step
        activate(outer)
        if outer is not None and (outer.enabled or outer.calibrating):
            return
        if step.recorded or step.in_graph or step.updates_in_graph:
            # A step that failed updates nothing: an error of the update would hide the first
            # error.
            scaling.end_step(step, kind is None and is_grad_enabled())


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,  # noqa: ANN401
) -> autocast:
    """``autocast`` by its older name and arguments."""
    return autocast(enabled, calibrating, fp8_recipe, fp8_group)


class quantized_model_init:  # noqa: N801
    """Inside this context, new octet layers store their weights quantized, by ``recipe``.

    Where a GPU's FP8 products read bytes in one layout only (compute capability 8.9, 9.0 and
    12.0), a weight holds them row by row for forward and column by column for backward, two
    bytes an element; elsewhere one layout serves both where it can. A layer that is not trained
    needs only the rows: ``layer.weight.update_usage(columnwise_usage=False)``.

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
        made = checked_recipe(recipe)
        self._arguments = made, preserve_high_precision_init_val, enabled

    def __enter__(self) -> "quantized_model_init":
        QUANTIZED_INIT.value = QuantizedInit(*self._arguments, QUANTIZED_INIT.value)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        QUANTIZED_INIT.value = QUANTIZED_INIT.value.outer
