"""A flag: whether any octet.stats samples the present step.

Layers read this one flag, and compiled code guards on it. So one graph with statistics and one
without are compiled, and steps that are not sampled run the second.
"""

from typing import Any


class _Gathering:
    """The flag, and the handles that may set it."""

    def __init__(self) -> None:
        self.active = False
        self.handles: list[Any] = []

    def update(self) -> None:
        """Sets the flag again after a handle began, stepped or ended."""
        self.active = any(handle.samples for handle in self.handles)


GATHERING = _Gathering()
