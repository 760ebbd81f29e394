"""Functions of constants: remembered in eager code, constants in traced code."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def constant(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a pure function of texts and flags: its result is a constant of a traced graph."""
    remembered = functools.cache(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return remembered(*args, **kwargs)  # type: ignore[arg-type]

    # What torch.compiler.assume_constant_result does, which would import the whole compiler.
    call._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return call
