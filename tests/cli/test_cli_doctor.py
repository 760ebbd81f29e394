"""octet doctor: facts, and a self-check that passes on a sound build."""

import platform
import re
import sys
from pathlib import Path

import pytest
from program import good


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


def test_doctor__processor_flags_are_the_kernels() -> None:
    info = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not info.exists():
        pytest.skip("only Linux on x86-64 has a second opinion")
    flags = set(info.read_text().split())
    names = ["avx2", "avx512f", "avx512_bf16"]
    said = [f"{name}: {'yes' if name in flags else 'no'}" for name in names]
    assert good("doctor").rows()["cpu has"] == [", ".join(said)]


def test_doctor__every_scheme_is_native_or_emulated_on_every_device() -> None:
    rows = good("doctor").rows()
    devices = rows["scheme"]
    assert devices == ["cpu", "cuda 8.0", "cuda 8.9", "cuda 9.0", "cuda 10.0", "cuda 12.0"]
    for scheme in ["fp8-tensor", "fp8-delayed", "fp8-block", "mxfp8", "nvfp4"]:
        assert len(rows[scheme]) == len(devices)
        assert set(rows[scheme]) <= {"native", "emulated"}
        assert rows[scheme][1] == "emulated", "8.0 has neither FP8 nor FP4 units"
    assert rows["fp8-tensor"][2:4] == ["native", "native"]
    assert rows["nvfp4"][3:5] == ["emulated", "native"]
