"""House rules that a formatter does not enforce: one idea a file, small, self-contained."""

import re
from pathlib import Path

import pytest
from tree import HEADER, ROOT, files

MAX_COLUMNS = 96
MAX_LINES = 600
MAX_HEADER_LINES = 800
MAX_KERNEL_LINES = 800
MAX_FUNCTION_LINES = 60

C_FILES = sorted(files(ROOT, ".c", ".h", ".cu"))
FRONT = ["*.md", "*.txt", "*.toml", "Makefile", ".ci/*", "cmake/*", "docs/**/*.md"]
TEXT_FILES = [
    *files(ROOT, ".c", ".h", ".cu", ".py", ".txt", ".md"),
    *(path for pattern in FRONT for path in sorted(ROOT.glob(pattern))),
]

# In pieces, so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|ro" + r"ot|wo" + r"rk)\b(?!-)")
FUNCTION = re.compile(r"^[A-Za-z_][^;={]*\)\s*\{$(.*?)^\}$", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_style__there_is_something_to_check() -> None:
    assert HEADER in C_FILES
    assert ROOT / "README.md" in TEXT_FILES


@pytest.mark.parametrize("path", C_FILES, ids=name)
def test_style__c_file(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    first = lines[0] if lines else ""
    assert re.match(rf"/\* {re.escape(path.name)} - \S", first), "line 1 says the one idea"
    most = MAX_KERNEL_LINES if path.suffix == ".cu" else MAX_LINES
    assert len(lines) <= (MAX_HEADER_LINES if path == HEADER else most)
    assert [n for n, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS] == []
    assert [n for n, line in enumerate(lines, 1) if re.match(r"\s*//", line)] == []
    long = [m for m in FUNCTION.finditer(text) if m[1].count("\n") - 1 > MAX_FUNCTION_LINES]
    assert [m[0].splitlines()[0] for m in long] == []


@pytest.mark.parametrize("path", TEXT_FILES, ids=name)
def test_style__text_is_finished_and_names_no_machine(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert [line for line in lines if UNFINISHED.search(line)] == []
    assert [line for line in lines if MACHINE_PATH.search(line)] == []
