"""Whether version, changelog, wheel, sdist and pages agree: `make release-check`.

Each check is a function of the tree and the folder of packages. It returns what is wrong, in
sentences that name both sides and the fix.
"""

import argparse
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def search(pattern: str, text: str) -> str | None:
    """The first group of a pattern in a text, or None."""
    found = re.search(pattern, text, re.MULTILINE)
    return found and found[1]


def version(root: Path) -> str:
    """The version, whose one place is the header."""
    text = (root / "include" / "octet.h").read_text()
    parts = [
        search(rf"^#define OCTET_VERSION_{part} (\d+)$", text)
        for part in ("MAJOR", "MINOR", "PATCH")
    ]
    if None in parts:
        raise SystemExit("include/octet.h: OCTET_VERSION_MAJOR, _MINOR and _PATCH are numbers")
    return ".".join(map(str, parts))


# ---- the tree --------------------------------------------------------------------------------


def newest(root: Path) -> tuple[str | None, str | None]:
    """The version and the date of the changelog's newest release."""
    found = re.search(r"^## (\S+), (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    return (found[1], found[2]) if found else (None, None)


def check_changelog(root: Path, dist: Path) -> list[str]:
    """Its newest release is the header's, with a date or the word that it has none."""
    del dist
    name, date = newest(root)
    if name is None or date is None:
        return ["CHANGELOG.md has no heading like '## 0.1.0, unreleased'"]
    problems = []
    if name != version(root):
        problems.append(
            f"CHANGELOG.md's newest release is {name}, include/octet.h says {version(root)}; "
            "change the one that is wrong"
        )
    if date != "unreleased" and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        problems.append(f"CHANGELOG.md dates {name} {date!r}; write 2026-01-31, or unreleased")
    return problems


def check_pyproject(root: Path, dist: Path) -> list[str]:
    """It reads the header's version, and its Python is the one that the binary is built for."""
    del dist
    text = (root / "pyproject.toml").read_text()
    problems = []
    pattern = re.search(r"^regex = '''(.*?)'''", text, re.MULTILINE | re.DOTALL)
    header = (root / "include" / "octet.h").read_text()
    found = pattern and re.search(pattern[1], header)
    read = found and ".".join(found.group("major", "minor", "patch"))
    if search(r'^input = "(.*)"$', text) != "include/octet.h" or read != version(root):
        problems.append(
            f"pyproject.toml reads version {read}, include/octet.h says {version(root)}"
        )
    lowest = search(r'^requires-python = ">=3\.(\d+)"$', text)
    tag = search(r'^wheel\.py-api = "cp3(\d+)"$', text)
    limited = search(
        r"Py_LIMITED_API=0x03([0-9A-F]{2})0000", (root / "cmake/python.cmake").read_text()
    )
    api = str(int(limited, 16)) if limited else None
    if len({lowest, tag, api}) > 1:
        problems.append(
            f"the lowest Python is 3.{lowest} by requires-python, 3.{tag} by wheel.py-api, "
            f"3.{api} by Py_LIMITED_API of cmake/python.cmake; they are one"
        )
    return problems


def requirements(root: Path) -> tuple[str | None, str | None]:
    """The lowest Python and the lowest torch, of pyproject.toml."""
    text = (root / "pyproject.toml").read_text()
    return (
        search(r'^requires-python = ">=([\d.]+)"$', text),
        search(r'^dependencies = \["torch>=([\d.]+)"\]$', text),
    )


def check_pages(root: Path, dist: Path) -> list[str]:
    """Pages that name the version, the lowest Python or torch name the right ones."""
    del dist
    name, date = newest(root)
    python, torch = requirements(root)
    status = "not released" if date == "unreleased" else f"released {date}"
    wanted = (
        ("README.md", r"^Version (.*)\.$", f"{name}, {status}"),
        ("README.md", r"torch (\S+) or later", torch),
        ("docs/quick-start.md", r"Python (\S+) or later", python),
        ("docs/quick-start.md", r"torch (\S+) or later", torch),
        ("docs/troubleshooting.md", r"Octet needs torch (\S+) or newer", torch),
    )
    problems = []
    for page, pattern, right in wanted:
        said = search(pattern, (root / page).read_text())
        if said is None:
            problems.append(f"{page} has nothing like {pattern!r}; it should say {right!r}")
        elif said != right:
            problems.append(f"{page} says {said!r}; it should say {right!r}")
    return problems


# ---- the packages ----------------------------------------------------------------------------


def one(dist: Path, pattern: str) -> "Path | str":
    """The one package of a pattern, or what is wrong."""
    found = sorted(path.name for path in dist.glob(pattern))
    if len(found) == 1:
        return dist / found[0]
    return f"{dist} has {', '.join(found) or 'nothing'} for {pattern}; `make wheel` leaves one"


def check_wheel(root: Path, dist: Path) -> list[str]:
    """It has the version, the requirements and the very modules of the tree."""
    wheel = one(dist, "torch_octet-*.whl")
    if isinstance(wheel, str):
        return [wheel]
    name, problems = version(root), []
    with zipfile.ZipFile(wheel) as archive:
        files = {path: archive.read(path) for path in archive.namelist()}
    told = next((files[path] for path in files if path.endswith(".dist-info/METADATA")), b"")
    metadata = Parser().parsestr(told.decode())
    if wheel.name.split("-")[1] != name or metadata["Version"] != name:
        problems.append(
            f"{wheel.name} is of version {metadata['Version']}, include/octet.h says {name}; "
            "run `make wheel`"
        )
    python, torch = requirements(root)
    for field, right in (
        ("Requires-Python", f">={python}"),
        ("Requires-Dist", f"torch>={torch}"),
    ):
        if metadata[field] != right:
            problems.append(
                f"{wheel.name} has {field} {metadata[field]}, pyproject.toml {right}"
            )
    tree = {
        f"octet/{path.relative_to(root / 'python' / 'octet').as_posix()}": path.read_bytes()
        for path in (root / "python" / "octet").rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }
    inside = {path for path in files if re.fullmatch(r"octet/.*\.pyi?", path)}
    stale = sorted(path for path in tree if files.get(path) != tree[path])
    stale += sorted(inside - tree.keys())
    if stale:
        problems.append(
            f"{wheel.name} was not built from this tree: {', '.join(stale[:4])}; run "
            "`make wheel`"
        )
    return problems


def check_sdist(root: Path, dist: Path) -> list[str]:
    """It has the version, and the header and the changelog of the tree."""
    sdist = one(dist, "torch_octet-*.tar.gz")
    if isinstance(sdist, str):
        return [sdist]
    top, problems = f"torch_octet-{version(root)}", []
    if sdist.name != f"{top}.tar.gz":
        problems.append(f"{sdist.name} should be {top}.tar.gz; run `make wheel`")
    with tarfile.open(sdist) as archive:
        for path in ("include/octet.h", "CHANGELOG.md", "README.md", "pyproject.toml"):
            member = next((m for m in archive if m.name.partition("/")[2] == path), None)
            held = archive.extractfile(member) if member else None
            if held is None or held.read() != (root / path).read_bytes():
                problems.append(
                    f"{sdist.name} has another {path} than the tree; run `make wheel`"
                )
    return problems


CHECKS: tuple[Callable[[Path, Path], list[str]], ...] = (
    *(check_changelog, check_pyproject, check_pages, check_wheel, check_sdist),
)


def main(words: list[str] | None = None) -> int:
    """The command line: 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--dist", type=Path)
    given = parser.parse_args(words)
    dist = given.dist or given.root / "dist"
    problems = [problem for check in CHECKS for problem in check(given.root, dist)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        name, date = newest(given.root)
        print(
            f"octet {name} ({date}): header, changelog, pyproject, pages, wheel and sdist agree"
        )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
