"""What the tests of the repository share: where things are, and how programs are run."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("OCTET_BUILD", "build")
HEADER = ROOT / "include" / "octet.h"
PARTS = sorted((ROOT / "include" / "octet").glob("*.h"))
STATIC_LIBRARY = BUILD / "liboctet.a"
SHARED_LIBRARY = BUILD / "liboctet.so"

CMAKE = os.environ.get("OCTET_CMAKE", "cmake")
CC = shlex.split(os.environ.get("CC", "cc"))
CXX = shlex.split(os.environ.get("CXX", "c++"))
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]

FOLDERS = ["include", "src", "python", "tools", "tests", "bench", "examples"]


def files(root: Path, *suffixes: str, folders: Sequence[str] = FOLDERS) -> Iterator[Path]:
    """The files under the project's own folders with one of these suffixes, in order."""
    for folder in folders:
        yield from (f for f in sorted((root / folder).rglob("*")) if f.suffix in suffixes)


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> str:
    """The command's output; a failure fails the test with everything it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        pytest.fail(f"{shlex.join(words)} gave {done.returncode}\n{done.stdout}")
    return done.stdout


def need(program: str) -> str:
    """The program's name; the test is skipped on a machine without it."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on this machine")
    return program
