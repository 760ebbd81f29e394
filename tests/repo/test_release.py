"""`make release-check`: silent where all agrees, and clear about what does not."""

import io
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tree import ROOT

sys.path.insert(0, str(ROOT / "tests"))

import release

FILES = (
    *("include/octet.h", "CHANGELOG.md", "README.md", "pyproject.toml", "cmake/python.cmake"),
    *("docs/quick-start.md", "docs/troubleshooting.md"),
)
METADATA = (
    "Metadata-Version: 2.4\nVersion: {}\nRequires-Python: >=3.10\nRequires-Dist: torch>=2.10\n"
)


def pack(root: Path) -> None:
    """A wheel and an sdist of the copy, without a build."""
    dist, version = root / "dist", release.version(root)
    dist.mkdir(exist_ok=True)
    wheel = dist / f"torch_octet-{version}-cp310-abi3-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"torch_octet-{version}.dist-info/METADATA", METADATA.format(version))
        for path in (root / "python").rglob("*.py*"):
            archive.write(path, path.relative_to(root / "python"))
    with tarfile.open(dist / f"torch_octet-{version}.tar.gz", "w:gz") as archive:
        for name in FILES:
            text = (root / name).read_bytes()
            member = tarfile.TarInfo(f"torch_octet-{version}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "python" / "octet").mkdir(parents=True)
    for name in ("__init__.py", "recipe.py", "_C.pyi"):
        shutil.copy(ROOT / "python" / "octet" / name, tmp_path / "python" / "octet" / name)
    pack(tmp_path)
    return tmp_path


def test_release__an_agreeing_tree_passes(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["--root", str(copy)]) == 0
    assert capsys.readouterr().out.endswith("wheel and sdist agree\n")


BREAKS = {  # file, what is replaced, by what; what the check says
    "header": (
        ("include/octet.h", r"VERSION_MINOR \d+", "VERSION_MINOR 7"),
        ("CHANGELOG.md's newest release is", "should be torch_octet-", "is of version"),
    ),
    "changelog": (
        ("CHANGELOG.md", r"^## [\d.]+,", "## 9.9.9,"),
        ("newest release is 9.9.9, include/octet.h says", "README.md says"),
    ),
    "no heading": (
        ("CHANGELOG.md", r"^## [\d.]+, .*$", "## Soon"),
        ("CHANGELOG.md has no heading like",),
    ),
    "date": (("CHANGELOG.md", r", unreleased$", ", in spring"), ("dates", "'in spring'")),
    "released": (
        ("CHANGELOG.md", r", unreleased$", ", 2026-01-31"),
        ("README.md says", "released 2026-01-31"),
    ),
    "regex": (("pyproject.toml", r"VERSION_PATCH", "VERSION_PITCH"), ("reads version None",)),
    "python": (
        ("pyproject.toml", r'requires-python = ">=3.10"', 'requires-python = ">=3.11"'),
        ("3.11 by requires-python, 3.10 by wheel.py-api", "quick-start.md says '3.10'"),
    ),
    "limited": (
        ("cmake/python.cmake", "0x030A0000", "0x030C0000"),
        ("3.12 by Py_LIMITED_API",),
    ),
    "torch": (
        ("pyproject.toml", r"torch>=2.10", "torch>=2.12"),
        ("README.md says '2.10'", "troubleshooting.md says", "has Requires-Dist torch>=2.10"),
    ),
    "page": (
        ("docs/quick-start.md", r"torch \S+ or later", "torch"),
        ("docs/quick-start.md has nothing like",),
    ),
    "stale": (
        ("python/octet/recipe.py", r"^import dataclasses$", "import dataclasses  # changed"),
        ("was not built from this tree: octet/recipe.py; run `make wheel`",),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_release__a_broken_tree_is_named(
    copy: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (path, pattern, by), messages = BREAKS[name]
    text, count = re.subn(pattern, by, (copy / path).read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    (copy / path).write_text(text)
    assert release.main(["--root", str(copy)]) == 1
    said = capsys.readouterr().err
    assert [message for message in messages if message not in said] == []


def test_release__missing_and_second_packages_are_named(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (wheel,) = (copy / "dist").glob("*.whl")
    shutil.copy(wheel, wheel.with_name(wheel.name.replace("2_34", "2_28")))
    next((copy / "dist").glob("*.tar.gz")).unlink()
    assert release.main(["--root", str(copy)]) == 1
    said = capsys.readouterr().err
    assert "2_28_x86_64.whl, torch_octet" in said
    assert "has nothing for torch_octet-*.tar.gz; `make wheel` leaves one" in said


def test_release__this_tree_agrees() -> None:
    checks = (release.check_changelog, release.check_pyproject, release.check_pages)
    assert [problem for check in checks for problem in check(ROOT, ROOT / "dist")] == []
