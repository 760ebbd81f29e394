"""Where the environment is read, and that no variable names a library to load."""

import re
from pathlib import Path

import pytest
from tree import BUILD, ROOT, SHARED_LIBRARY, STATIC_LIBRARY, files

READS = re.compile(r"\b(secure_)?getenv\s*\(|\benviron\b")
DOCUMENTED = ROOT / "docs" / "architecture.md"


def readers(root: Path) -> set[str]:
    """Files of the library that read the environment themselves."""
    found = files(root, ".c", ".h", ".cpp", folders=["src"])
    return {str(f.relative_to(root)) for f in found if READS.search(f.read_text())}


def test_environment__is_read_in_one_place() -> None:
    assert readers(ROOT) == {"src/core/environment.c"}


def test_environment__a_reader_elsewhere_is_caught(tmp_path: Path) -> None:
    planted = tmp_path / "src" / "cpu" / "planted.c"
    planted.parent.mkdir(parents=True)
    planted.write_text('const char *x(void) { return getenv("X"); }')
    assert readers(tmp_path) == {"src/cpu/planted.c"}


@pytest.mark.parametrize("built", [SHARED_LIBRARY, STATIC_LIBRARY, BUILD / "octet"], ids=str)
def test_environment__a_release_knows_no_stand_in(built: Path) -> None:
    if not built.exists():
        pytest.skip(f"{built.name} is not built")
    assert b"OCTET_CUDA_DRIVER" not in built.read_bytes()


def test_environment__every_variable_is_documented() -> None:
    sources = files(ROOT, ".c", folders=["src"])
    named = {
        n for f in sources for n in re.findall(r'oct_environment\("(\w+)"\)', f.read_text())
    }
    rows = set(re.findall(r"^\| `(\w+)`", DOCUMENTED.read_text(), re.MULTILINE))
    assert named - rows - {"HOME", "XDG_CACHE_HOME"} == set()


def test_environment__every_variable_of_the_front_end_is_documented() -> None:
    sources = files(ROOT, ".py", folders=["python"])
    named = {n for f in sources for n in re.findall(r'"(OCTET_[A-Z_]*[A-Z])"', f.read_text())}
    rows = set(re.findall(r"^\| `(\w+)`", DOCUMENTED.read_text(), re.MULTILINE))
    assert "OCTET_VERBOSE" in named
    assert named - rows == set()
