"""octet doctor: facts, and a self-check that passes on a sound build."""

import platform
import re
import sys
from pathlib import Path

import pytest
from program import OCTET, ROOT, STAND_IN, good, octet


def test_doctor__ends_with_ok_and_every_law_is_ok() -> None:
    out = good("doctor").out
    assert out.splitlines()[-1] == "ok"
    verdicts = re.findall(r"(\d+) checks?  +(\w+)$", out, re.MULTILINE)
    assert len(verdicts) == 8
    assert {verdict for _, verdict in verdicts} == {"ok"}
    assert all(int(count) > 0 for count, _ in verdicts)
    assert "wrong" not in out


def test_doctor__facts_are_those_of_this_machine() -> None:
    rows = good("doctor").rows()
    bits = 64 if sys.maxsize > 2**32 else 32
    assert rows["machine"] == [f"{bits}-bit pointers, {sys.byteorder}-endian"]


def test_doctor__names_the_variables_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (ROOT / "docs" / "architecture.md").read_text()
    variables = re.findall(r"^\| `(\w+)`", table.split("## Environment variables")[1], re.M)
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    assert good("doctor").rows()["variables"] == ["none set"]
    for name in variables:
        monkeypatch.setenv(name, "1" if name != "OCTET_CPU" else "reference")
    (said,) = good("doctor").rows()["variables"]
    named = {each.split("=")[0] for each in said.split(", ")}
    assert named == set(variables)
    assert "OCTET_CPU=reference" in said


def test_doctor__processor_flags_are_the_kernels() -> None:
    info = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not info.exists():
        pytest.skip("only Linux on x86-64 has a second opinion")
    flags = set(info.read_text().split())
    names = ["avx2", "avx512f", "avx512_bf16"]
    said = [f"{name}: {'yes' if name in flags else 'no'}" for name in names]
    assert good("doctor").rows()["cpu has"] == [", ".join(said)]


def test_doctor__every_scheme_is_multiplied_somehow_on_every_device() -> None:
    rows = good("doctor").rows()
    devices = rows["scheme"]
    assert devices == ["cpu", "cuda 8.0", "cuda 8.9", "cuda 9.0", "cuda 10.0", "cuda 12.0"]
    for scheme in ["fp8-tensor", "fp8-delayed", "fp8-block", "mxfp8", "nvfp4"]:
        assert len(rows[scheme]) == len(devices)
        assert set(rows[scheme]) <= {"native", "folded", "emulated"}
        assert rows[scheme][1] == "emulated", "8.0 has neither FP8 nor FP4 units"
    assert rows["fp8-tensor"][2:4] == ["native", "native"]
    assert rows["nvfp4"][3:5] == ["emulated", "native"]
    assert rows["mxfp8"] == ["native", "emulated", "emulated", "folded", "native", "emulated"]


def test_doctor__without_a_driver_says_why_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCTET_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    (said,) = good("doctor", program=STAND_IN).rows()["gpus"]
    assert said.startswith("none: no CUDA driver: ")
    assert "/nowhere/libcuda.so.1" in said


def test_doctor__no_variable_names_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    before = good("doctor").out
    monkeypatch.setenv("OCTET_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    assert good("doctor").out == before


def test_doctor__a_relative_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = OCTET.parent / "tests" / "driver" / "libfake_cuda.so"
    monkeypatch.setenv("OCTET_CUDA_DRIVER", str(fake))
    monkeypatch.setenv("OCTET_CACHE", "kernels")
    (said,) = octet("doctor", program=STAND_IN).rows()["gpu 0"]
    assert "OCTET_CACHE is 'kernels'" in said
    assert "absolute path" in said


def test_doctor__a_gpu_is_told_with_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = OCTET.parent / "tests" / "driver" / "libfake_cuda.so"
    if not fake.exists():
        pytest.skip("the driver that stands in is a library of Linux")
    monkeypatch.setenv("OCTET_CUDA_DRIVER", str(fake))
    monkeypatch.setenv("OCTET_CACHE", "/a/cache")
    (said,) = good("doctor", program=STAND_IN).rows()["gpu 0"]
    assert said.startswith(
        "Fake 7, compute capability 9.0, 132 processors, driver for CUDA 13.0, NVRTC 13.0"
    )
    assert "cuBLASLt" in said
    assert said.endswith(", kernels cached in /a/cache")
