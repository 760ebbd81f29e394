"""Every kernel compiles for every architecture, with the NVRTC of its wheel; no GPU needed."""

import ctypes
import os
import re
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("OCTET_BUILD", "build")
PROGRAM = BUILD / "tests" / "driver" / "test_compile"
MODULES = sorted(path.stem for path in (ROOT / "src" / "cuda" / "kernels").glob("*.cu"))

# Compute capability, and the name the compiler gets for it.
ARCHS = {80: "sm_80", 89: "sm_89", 90: "sm_90a", 100: "sm_100a", 120: "sm_120a"}


def nvrtc_folder() -> Path:
    """Where the wheel nvidia-cuda-nvrtc puts its library."""
    spec = find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    found = [lib for root in roots for lib in Path(root).glob("*/lib/libnvrtc.so.13")]
    assert found, "tests/requirements.txt asks for nvidia-cuda-nvrtc"
    return found[0].parent


def ptx_of(module: str) -> str:
    """A module's kernels for bf16 input, for compute capability 9.0."""
    for builtins in nvrtc_folder().glob("libnvrtc-builtins.so.13*"):
        ctypes.CDLL(str(builtins))  # which NVRTC finds once it is loaded
    nvrtc = ctypes.CDLL(str(nvrtc_folder() / "libnvrtc.so.13"))
    source = (ROOT / "src" / "cuda" / "kernels" / f"{module}.cu").read_bytes()
    folders = (ROOT / "src", ROOT / "include", ROOT / "src" / "cuda" / "kernels" / "standard")
    options = ["-std=c++20", "-default-device", "-DOCT_TAKES_BF16"]
    options.append("--gpu-architecture=compute_90a")
    words = [word.encode() for word in [*options, *(f"-I{folder}" for folder in folders)]]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, module.encode(), 0, None, None)
    done = nvrtc.nvrtcCompileProgram(
        program, len(words), (ctypes.c_char_p * len(words))(*words)
    )
    assert done == 0
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return text.value.decode()


def compile_for(arch: int) -> subprocess.CompletedProcess[str]:
    env = {
        "OCTET_TEST_NVRTC": str(nvrtc_folder()),
        "OCTET_TEST_ARCH": str(arch),
        "OCTET_TEST_KERNELS": str(BUILD / "kernels"),
    }
    return subprocess.run(
        [PROGRAM],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def runs() -> dict[int, Future[subprocess.CompletedProcess[str]]]:
    """One process an architecture, as many at a time as there are processors."""
    pool = ThreadPoolExecutor(os.cpu_count())
    return {arch: pool.submit(compile_for, arch) for arch in ARCHS}


@pytest.mark.parametrize("arch", ARCHS)
def test_compile__every_module(
    arch: int, runs: dict[int, Future[subprocess.CompletedProcess[str]]]
) -> None:
    done = runs[arch].result()
    assert done.returncode == 0, done.stdout
    compiled = re.findall(r"^compiled cuda/kernels/(\w+)\.cu for (\w+): ", done.stdout, re.M)
    assert sorted(compiled) == [(module, ARCHS[arch]) for module in MODULES]


def test_compile__every_module_has_its_place_in_the_list() -> None:
    listed = (ROOT / "src" / "cuda" / "device.h").read_text()
    assert MODULES
    assert set(MODULES) <= set(re.findall(r"\bX\((\w+)\)", listed))


# What touches global memory. A prefetch is harmless, but asks for a tile that is loaded next.
TOUCHES = re.compile(
    r"\b(ld|st)\.(volatile\.|relaxed\.\S*)?(global|v\d|[usbf]\d)|\b(atom|red)\."
)


@pytest.mark.parametrize("module", MODULES)
def test_compile__kernels_wait_before_they_touch_memory(module: str) -> None:
    """A kernel may begin before the one that wrote its input has ended: kernels/chain.h."""
    entries = re.split(r"\.entry\s+", ptx_of(module))[1:]
    assert entries
    for entry in entries:
        name, waits = entry.split("(", 1)[0], entry.find("griddepcontrol.wait")
        first = TOUCHES.search(entry)
        assert waits >= 0, f"{name} does not call oct_after"
        assert first is None or waits < first.start(), f"{name}: {first[0]} before oct_after"
