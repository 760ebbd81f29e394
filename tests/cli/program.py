"""What the tests of the octet program share: where it is, and how it is run."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OCTET = ROOT / os.environ.get("OCTET_BUILD", "build") / "octet"
STAND_IN = OCTET.parent / "tests" / "driver" / "octet_stand_in"  # it honours OCTET_CUDA_DRIVER
COMMANDS = ["plan", "verify", "bench", "layout", "quantizer", "recipe", "doctor"]


@dataclass(frozen=True)
class Done:
    """How a run ended and what it printed."""

    status: int
    out: str
    err: str

    def rows(self) -> dict[str, list[str]]:
        """The lines of its tables by their first cell; cells stand two spaces apart."""
        cells = (line.split("  ") for line in self.out.splitlines() if line.startswith("  "))
        kept = ([cell.strip() for cell in row if cell.strip()] for row in cells)
        return {row[0]: row[1:] for row in kept if row}


def octet(*words: str, stdin: str | bytes = "", program: Path = OCTET) -> Done:
    """Runs the program without a shell; what is not UTF-8 in its output fails the test."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run([program, *words], input=given, capture_output=True, timeout=60)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def good(*words: str, stdin: str | bytes = "", program: Path = OCTET) -> Done:
    """A run that must succeed and complain of nothing."""
    done = octet(*words, stdin=stdin, program=program)
    assert (done.status, done.err) == (0, ""), done
    return done


def bad(status: int, *words: str, stdin: str | bytes = "") -> Done:
    """A run that must fail with this status, in words on stderr."""
    done = octet(*words, stdin=stdin)
    assert done.status == status, done
    assert done.err.startswith("octet"), done
    return done


def caret_column(done: Done, text: str) -> int:
    """The 1-based column of `text` that the caret on the last line of stderr points at."""
    *_, shown, caret = done.err.splitlines()
    assert caret.strip() == "^", done.err
    return caret.index("^") - shown.index(text, 2) + 1


def lines_that_end_in_spaces(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line != line.rstrip()]
