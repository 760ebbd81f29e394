"""A line on the terminal about long work."""

import sys
import time

_SECONDS = 5.0


class Progress:
    """A line about work that takes more than five seconds; without a terminal, nothing."""

    def __init__(self, what: str, count: int) -> None:
        self.what, self.count, self.done = what, count, 0
        self.start, self.shown = time.monotonic(), False

    def step(self) -> None:
        """One more is done."""
        self.done += 1
        if time.monotonic() - self.start > _SECONDS and sys.stderr.isatty():
            self.shown = True
            print(f"\r{self.what}: {self.done} of {self.count}", end="", file=sys.stderr)
            sys.stderr.flush()

    def end(self) -> None:
        """All is done."""
        if self.shown:
            print(file=sys.stderr, flush=True)
