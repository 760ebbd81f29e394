"""Pure functions of texts and flags: cached in eager code, constants in traced code."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# entries in the cache of one function; the least recently used is dropped first
CAPACITY = 4096

_CACHES: dict[str, Callable[[], tuple[int, int, int | None, int]]] = {}


def constant(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a pure function of texts and flags: its result is a constant of a traced graph."""
    cached = functools.lru_cache(CAPACITY)(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return cached(*args, **kwargs)  # type: ignore[arg-type]

    traced_as_constant(call)
    _CACHES[f"{function.__module__}.{function.__qualname__}"] = cached.cache_info
    return call


def traced_as_constant(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function, or a method of a module, that runs during tracing. Its result becomes a
    constant of the graph.

    This is what torch.compiler.assume_constant_result does; that one imports the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def caches() -> dict[str, tuple[int, int]]:
    """The caches of these functions: entries and capacity, by the function's name."""
    found = {name: info() for name, info in _CACHES.items()}
    return {name: (info[3], info[2] or 0) for name, info in found.items()}
