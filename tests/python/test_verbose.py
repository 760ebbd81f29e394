"""OCTET_VERBOSE=1: a line for each layer where it is planned first, and else silence."""

import os
import subprocess
import sys
from pathlib import Path

import octet
import pytest

import torch

PROGRAM = """
import torch

import octet

torch.manual_seed(0)
model = octet.convert(torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Linear(48, 32)))
recipe = octet.recipe.MXFP8BlockScaling()
for _ in range(3):
    with octet.autocast(recipe=recipe):
        model(torch.randn(4, 8, 64)).sum().backward()
with torch.no_grad(), octet.autocast(recipe=recipe):
    model[0](torch.randn(4, 64))
alone = octet.Linear(64, 48, return_bias=True, device="cpu")
with octet.autocast(recipe=recipe):
    alone(torch.randn(4, 64))
    alone(torch.randn(4, 64))
compiled = torch.compile(model[1], backend="aot_eager", fullgraph=True, dynamic=True)
with octet.autocast(recipe=octet.recipe.NVFP4BlockScaling()):
    for rows in (5, 6):
        compiled(torch.randn(rows, 48)).sum().backward()
"""


def said(value: str) -> list[str]:
    path = str(Path(octet.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path, "OCTET_VERBOSE": value}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return [line for line in done.stderr.splitlines() if line.startswith("octet: ")]


def test_verbose__a_line_for_each_layer_and_kind_of_call() -> None:
    lines = said("1")
    begins = ["0: linear m=32 k=64 n=48 ", "1: linear m=32 k=48 n=32 ", "0: linear m=4 "]
    begins += ["octet.Linear (64 -> 48): linear m=4 k=64 n=48 ", "1: linear m=1024 k=48 n=32 "]
    assert len(lines) == len(begins)
    for line, begin in zip(lines, begins, strict=True):
        assert line.startswith(f"octet: {begin}")
        assert ": native, saves " in line
    assert "recipe=nvfp4" in lines[-1]
    assert "(compiled for any m)" in lines[-1]
    assert lines[2].endswith("saves 0 B")
    problem = lines[1].removeprefix("octet: 1: ").split(": native")[0]
    saved = int(lines[1].split()[-2])
    layer = octet.Linear(48, 32, device="cpu")
    found = octet.measure(layer, 32, octet.recipe.MXFP8BlockScaling(), torch.float32)
    assert saved == found.saved
    assert octet._C.canonical("linear", problem) == problem


@pytest.mark.parametrize("value", ["0", ""])
def test_verbose__is_silent_unless_asked(value: str) -> None:
    assert said(value) == []
