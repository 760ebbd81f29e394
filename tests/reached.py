"""Lines and branches of src that the tests reach, by folder: gcc's --coverage, read from gcov.

Works on a copy of the tree in build-coverage: the extension module of the checkout stays as it
is. ``--only c`` leaves the Python tests out, ``--report`` only reads what was measured."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build-coverage"
TREE, BUILD = PLACE / "tree", PLACE / "build"
LEFT_OUT = shutil.ignore_patterns("build", "build-*", ".git", ".venv*", "__pycache__", "*.so")
# Optimized a little: vector kernels without it are too slow, and more of it hides branches.
FLAGS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_FLAGS_RELEASE=-O1 -g1",
    "-DCMAKE_C_FLAGS=--coverage -fprofile-update=atomic",
    *(f"-DCMAKE_{kind}_LINKER_FLAGS=--coverage" for kind in ("EXE", "SHARED", "MODULE")),
]
GOALS = {"lines": 97.0, "branches": 92.0}

Lines = dict[int, int]
Branches = dict[tuple[int, int], int]


def build(jobs: int) -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    shutil.copytree(ROOT, TREE, ignore=LEFT_OUT)
    (TREE / ".venv").symlink_to(ROOT / ".venv")
    cmake = os.environ.get("OCTET_CMAKE", "cmake")
    subprocess.run(
        [cmake, "-S", TREE, "-B", BUILD, *FLAGS], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run(
        [cmake, "--build", BUILD, "-j", str(jobs)], check=True, stdout=subprocess.DEVNULL
    )


def run_tests(jobs: int, only: str, selection: list[str]) -> None:
    """A test that fails, for want of speed say, has covered what it has."""
    for counts in BUILD.rglob("*.gcda"):
        counts.unlink()
    ctest = Path(os.environ.get("OCTET_CMAKE", "cmake")).with_name("ctest")
    if only != "python":
        subprocess.run([ctest, "-j", str(jobs), "-LE", "^long$"], cwd=BUILD, check=False)
    if only != "c":
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not long",
        ]
        places = selection or ["tests/python", "tests/cli"]
        settings = {**os.environ, "OCTET_BUILD": str(BUILD)}
        subprocess.run([*command, *places], cwd=TREE, env=settings, check=False)


def measured() -> Iterator[dict]:
    """gcov's view of every source file of every object that ran."""
    for counts in sorted(BUILD.rglob("*.gcda")):
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", counts]
        found = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
        for line in found.stdout.splitlines():
            yield from json.loads(line)["files"]


def gather() -> tuple[dict[str, Lines], dict[str, Branches]]:
    """By file; a line of a header, or of a file that is compiled twice, is reached if once."""
    lines: dict[str, Lines] = defaultdict(dict)
    branches: dict[str, Branches] = defaultdict(dict)
    for file in measured():
        path = Path(BUILD, file["file"]).resolve()
        if not path.is_relative_to(TREE / "src") or path.suffix not in (".c", ".h"):
            continue
        name = str(path.relative_to(TREE))
        for line in file["lines"]:
            at = line["line_number"]
            lines[name][at] = lines[name].get(at, 0) + line["count"]
            for i, branch in enumerate(b for b in line["branches"] if not b["throw"]):
                key = at, i
                branches[name][key] = branches[name].get(key, 0) + branch["count"]
    return lines, branches


def share(counts: list[int]) -> float:
    return 100.0 * sum(count > 0 for count in counts) / max(1, len(counts))


def report(files: bool) -> None:
    lines, branches = gather()
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(lines):
        groups[str(Path(name).parent)].append(name)
        groups["all"].append(name)
    print(f"{'folder':28} {'lines':>14} {'branches':>14}")
    for folder, names in sorted(groups.items(), key=lambda item: (item[0] == "all", item[0])):
        own = [count for name in names for count in lines[name].values()]
        ways = [count for name in names for count in branches[name].values()]
        low = " *" if share(own) < GOALS["lines"] or share(ways) < GOALS["branches"] else ""
        print(f"{folder:28} {share(own):6.1f}% {len(own):6}", end=" ")
        print(f"{share(ways):6.1f}% {len(ways):6}{low}")
    for name in sorted(lines) if files else ():
        missed = sorted(at for at, count in lines[name].items() if not count)
        ways = list(branches[name].values())
        print(f"{name}: {share(list(lines[name].values())):.1f}% {share(ways):.1f}% {missed}")
    print(f"* below {GOALS['lines']:.0f}% of lines or {GOALS['branches']:.0f}% of branches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=("c", "python", "both"), default="both")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--files", action="store_true", help="and the lines missed, by file")
    parser.add_argument("tests", nargs="*", help="Python tests, all of them by default")
    args = parser.parse_args()
    if not args.report:
        build(args.jobs)
        run_tests(args.jobs, args.only, args.tests)
    report(args.files)


if __name__ == "__main__":
    main()
