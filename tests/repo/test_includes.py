"""A layer includes only what lies below it, and foreign headers stay in their folder."""

import re
from pathlib import Path

from tree import ROOT, files

# Whom a folder may include besides itself and octet.h. A new layer is a new row.
ARROWS: dict[str, set[str]] = {
    "include": set(),
    "src/core": set(),
    "src/format": {"core"},
    "src/cpu": {"format", "core"},
    "src/cuda": {"format", "core"},
    "src/quant": {"format", "core"},
    "src/plan": {"quant", "format", "core"},
    "src/linear": {"plan", "quant", "format", "core"},
    "src/run": {"plan", "quant", "cpu", "cuda", "format", "core"},
    "src/torch": set(),
    "src/python": {"torch"},
    "tools/octet": set(),
    "examples": set(),
    "examples/cpp": set(),
}

# Headers of a lower layer that stand alone: the bounded table is for every cache, and there is
# one way to read the environment.
SHARED = {
    ("src/torch", "core/table.h"),
    ("src/torch", "core/environment.h"),
    # What loads a package of AOTInductor is torch's alone, and so is what it takes.
    ("examples/cpp", "ATen/ops/from_blob.h"),
    ("examples/cpp", "torch/csrc/inductor/aoti_package/model_package_loader.h"),
}

# The layers of pure values: the C standard library and nothing else.
PURE = {
    "include",
    *("src/core", "src/format", "src/quant", "src/plan", "src/linear", "src/run"),
}
STANDARD = {
    *("assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits"),
    *("locale", "math", "setjmp", "signal", "stdalign", "stdarg", "stdatomic", "stdbool"),
    *("stddef", "stdint", "stdio", "stdlib", "stdnoreturn", "string", "tgmath", "threads"),
    *("time", "uchar", "wchar", "wctype"),
}

# Foreign headers, and the only folder that may know them.
FOREIGN = {
    re.compile(r"Python\.h|cpython/"): "src/python",
    re.compile(r"torch/(csrc|headeronly)|ATen/|c10/"): "src/torch",
    # CUDA's own; the layers' "cuda/device.h" is this project's.
    re.compile(r"cuda(?!/\w+\.h$)|cublas|nvrtc|nvJitLink|nvml"): "src/cuda",
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_of(path: Path, root: Path) -> str:
    """The row of ARROWS that a file belongs to: its folder, or the nearest one above."""
    for above in path.relative_to(root).parents:
        if above.as_posix() in ARROWS:
            return above.as_posix()
    return ""


def allowed(path: Path, folder: str, quote: str, target: str) -> bool:
    if target == "octet.h" or re.fullmatch(r"octet/\w+\.h", target):
        return True
    if (folder, target) in SHARED:
        return True
    if any(name.match(target) and folder != home for name, home in FOREIGN.items()):
        return False
    if quote == "<":
        return folder not in PURE or target.removesuffix(".h") in STANDARD
    if ".." in target:
        return False
    if "/" not in target or (path.parent / target).exists():
        return (path.parent / target).exists()
    layer = target.split("/")[0]
    return layer in ARROWS[folder] or folder == f"src/{layer}"


def wrong_includes(root: Path) -> set[tuple[str, str]]:
    """Files and what they include against the arrows."""
    return {
        (path.relative_to(root).as_posix(), target)
        for path in files(root, ".c", ".h", ".cu", ".cuh", ".cpp")
        if (folder := folder_of(path, root))
        for quote, target in INCLUDE.findall(path.read_text())
        if not allowed(path, folder, quote, target)
    }


def test_includes__follow_the_arrows() -> None:
    assert wrong_includes(ROOT) == set()


def test_includes__every_folder_of_src_is_a_layer() -> None:
    folders = {f"src/{folder.name}" for folder in (ROOT / "src").iterdir() if folder.is_dir()}
    assert folders <= set(ARROWS)
    assert not [f.name for f in (ROOT / "src").iterdir() if f.is_file()]


def plant(root: Path, path: str, include: str) -> set[tuple[str, str]]:
    """What is wrong in a tree whose one file has one include."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"/* planted. */\n#include {include}\n")
    found = wrong_includes(root)
    file.unlink()
    return found


def test_includes__a_wrong_one_is_caught(tmp_path: Path) -> None:
    for path, include in [
        ("src/core/a.c", '"format/bits.h"'),
        ("src/format/a.h", '"quant/quantizer.h"'),
        ("src/cpu/a.c", '"quant/quantizer.h"'),
        ("src/cpu/deep/a.c", '"plan/build.h"'),
        ("src/quant/a.c", '"plan/build.h"'),
        ("src/quant/a.c", '"../plan/build.h"'),
        ("src/quant/a.c", '"cuda/cuda.h"'),
        ("src/quant/a.c", "<unistd.h>"),
        ("src/plan/a.c", '"linear/args.h"'),
        ("src/plan/a.c", '"run/run.h"'),
        ("src/plan/a.c", '"cpu/cpu.h"'),
        ("src/linear/a.c", '"run/run.h"'),
        ("src/linear/a.c", '"cuda/cuda.h"'),
        ("src/run/a.c", '"linear/args.h"'),
        ("src/cuda/a.c", '"run/run.h"'),
        ("src/linear/a.c", "<Python.h>"),
        ("src/linear/a.c", '"cuda.h"'),
        ("src/cpu/a.c", "<cuda_runtime.h>"),
        ("src/cpu/a.c", "<cuda/atomic>"),
        ("src/cpu/a.c", '"cuda/device.h"'),
        ("src/python/a.c", "<torch/csrc/stable/library.h>"),
        ("examples/cpp/a.cpp", "<ATen/ATen.h>"),
        ("examples/c/a.c", "<ATen/ops/from_blob.h>"),
        ("examples/cpp/a.cpp", '"torch/ops.h"'),
        ("src/torch/a.c", '"core/fail.h"'),
        ("tools/octet/a.c", '"core/fail.h"'),
        ("tools/octet/a.c", '"absent.h"'),
        ("examples/a.c", '"quant/quantizer.h"'),
        ("include/octet.h", '"core/fail.h"'),
    ]:
        assert plant(tmp_path, path, include), f"{path} may not include {include}"


def test_includes__a_right_one_is_not(tmp_path: Path) -> None:
    for path, include in [
        ("src/core/a.c", '"core/fail.h"'),
        ("src/core/a.c", '"octet.h"'),
        ("src/cpu/a.c", "<immintrin.h>"),
        ("src/cpu/a.c", '"format/e4m3.h"'),
        ("src/cuda/a.c", "<cuda.h>"),
        ("src/cuda/kernels/a.cu", '"cuda/kernels/a.h"'),
        ("src/plan/a.c", '"quant/quantizer.h"'),
        ("src/linear/a.c", '"plan/build.h"'),
        ("src/linear/a.c", '"quant/quantizer.h"'),
        ("src/linear/a.c", "<string.h>"),
        ("src/run/a.c", '"plan/names.h"'),
        ("src/run/a.c", '"cuda/cuda.h"'),
        ("src/python/a.c", "<Python.h>"),
        ("examples/a.c", "<octet.h>"),
        ("tests/core/test_a.c", '"core/fail.h"'),
    ]:
        assert plant(tmp_path, path, include) == set()
