"""Who looks at a device's kind or architecture: the device, and the tables of devices."""

import re
from pathlib import Path

from tree import ROOT, files

# A device's kind, its architecture, or the name of a kind.
LOOKS = re.compile(r"\bdevice(\.|->)kind\b|(\.|->)arch\b|\bOCTET_(CPU|CUDA)\b")
# An architecture against a number.
NUMBERS = re.compile(r"\barch\b\s*([=!<>]=|[<>])\s*\d")

ASKING = ["src/plan", "src/linear", "src/run", "src/torch"]
# The tables of devices, torch's numbers for them, and a key that has all of a device.
TABLES = {
    "src/run/devices.c",
    "src/torch/api.c",
    "src/torch/device.c",
    "src/torch/plan_cache.c",
}


def looking(root: Path, pattern: re.Pattern[str], folders: list[str]) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for path in files(root, ".c", ".h", ".cpp", folders=folders)
        if pattern.search(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL))
    }


def test_devices__planners_runs_and_ops_ask_the_target() -> None:
    assert looking(ROOT, LOOKS, ASKING) <= TABLES


def test_devices__numbers_of_architectures_are_in_one_file() -> None:
    assert looking(ROOT, NUMBERS, ["src"]) == {"src/cuda/target.c"}


def test_devices__a_look_is_caught(tmp_path: Path) -> None:
    for text in [
        "b->device.kind == 1",
        "device->arch > plan->arch",
        "[OCTET_CUDA] = 1",
        "device.arch != 90",
    ]:
        file = tmp_path / "src/plan/a.c"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"int x = {text};\n")
        assert looking(tmp_path, LOOKS, ASKING) == {"src/plan/a.c"}
    assert looking(tmp_path, NUMBERS, ASKING) == {"src/plan/a.c"}
