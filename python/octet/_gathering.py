"""Whether any octet.stats gathers numbers now: on in the steps that are sampled, else off.

Layers ask this one flag, and compiled code guards on it. So a graph that gathers and one that
does not are compiled once each, and steps that are not sampled run the second.
"""

from typing import Any


class _Gathering:
    """The flag, and whose handles raised it."""

    def __init__(self) -> None:
        self.active = False
        self.handles: list[Any] = []

    def update(self) -> None:
        """The flag anew, after a handle has begun, stepped or ended."""
        self.active = any(handle.samples for handle in self.handles)


GATHERING = _Gathering()
