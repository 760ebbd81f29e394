"""What torch keeps on disk of a compiled model serves the next process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
import octet
from torch._dynamo.utils import counters

name = sys.argv[1]
recipes = {
    "mxfp8": octet.recipe.MXFP8BlockScaling(),
    "nvfp4": octet.recipe.NVFP4BlockScaling(),
    "delayed": octet.recipe.DelayedScaling(amax_history_len=4),
}
torch.manual_seed(0)
layers = [octet.Linear(32, 48, device="cpu"), octet.Linear(48, 32, device="cpu")]
model = torch.nn.Sequential(*layers)

def call(x):
    with octet.autocast(recipe=recipes[name]):
        return model(x)

x = torch.randn(8, 32, requires_grad=True)
y = torch.compile(call, fullgraph=True)(x)
y.sum().backward()
found = counters["aot_autograd"]
print(found["autograd_cache_hit"], found["autograd_cache_miss"], found["autograd_cache_bypass"])
print(float(y.sum()), float(x.grad.sum()))
"""


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "delayed"])
def test_cache__a_second_process_finds_what_the_first_one_compiled(
    name: str, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2] / "python"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    lines = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, name],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        lines.append(done.stdout.splitlines()[-2:])
        assert "_stable_hash_for_caching" not in done.stderr
    (first, values), (second, again) = lines
    assert first.split() == ["0", "1", "0"]
    assert second.split() == ["1", "0", "0"]
    assert values == again
