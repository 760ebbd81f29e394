"""What follows a step of an optimizer: one hook on torch's optimizers, eager and compiled.

An optimizer's step tells what version counters do not: fused optimizers write to parameters
without counting it.
"""

from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling

from octet.state.active import Live

_followers: list[Callable[[], None]] = []
_hooks: list[Any] = []


def _stepped(_: object = None) -> None:
    for follower in _followers:
        follower()


_STEPPED = Live(lambda: None, _stepped)


def _after_step(*_: Any) -> None:  # noqa: ANN401
    if is_compiling():  # a compiled step calls _stepped each time it runs
        _STEPPED.value = True
    else:
        _stepped()


def follow(follower: Callable[[], None]) -> None:
    """Has a function called after each step of a torch.optim optimizer, from now on."""
    if follower in _followers:
        return
    _followers.append(follower)
    if not _hooks:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        _hooks.append(register_optimizer_step_post_hook(_after_step))
