"""Nothing is printed: importing, training and compiling say no word on stderr."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch.torch_version import TorchVersion

import torch

PROGRAM = """
import sys

import octet
import torch
from octet import recipe

backend, q = sys.argv[1], octet.MXFP8Quantizer("e4m3")
RECIPES = [
    None,
    recipe.DelayedScaling(amax_history_len=4),
    recipe.Float8CurrentScaling(),
    recipe.Float8BlockScaling(),
    recipe.MXFP8BlockScaling(),
    recipe.NVFP4BlockScaling(),
    recipe.CustomRecipe(lambda role: q if role.tensor_type in ("input", "weight") else None),
]
few = backend == "inductor"  # which takes its time


def train(active, quantized):
    with octet.quantized_model_init(quantized, recipe=active):
        linear = octet.Linear(70, 44, params_dtype=torch.bfloat16, device="cpu")

    def call(x):
        with octet.autocast(enabled=active is not None, recipe=active):
            return linear(x)

    for run in (call, torch.compile(call, fullgraph=True, backend=backend)):
        for _ in range(2):
            x = torch.randn(39, 70, dtype=torch.bfloat16, requires_grad=True)
            run(x).sum().backward()
    torch._dynamo.reset()


for active in RECIPES[1:2] if few else RECIPES:
    train(active, False)
for active in RECIPES[4:5] if few else RECIPES[1:6]:
    train(active, True)

# A quantizer in a graph, and quantized tensors into one and out of it.
traced = torch.compile(lambda x: q.quantize(x), fullgraph=True, backend=backend)
decoded = torch.compile(lambda x: x.dequantize() * 2, fullgraph=True, backend=backend)
with torch.no_grad():
    decoded(traced(torch.randn(4, 64)))
print(octet.support()["mxfp8"])
"""

# Dynamo itself makes an instance of autograd.Function for each one that it traces.
INSTANCE = "ignore:<class 'torch.autograd.function.Function'> should not:DeprecationWarning"
OLD = TorchVersion(torch.__version__) < (2, 14)
STRICT = ["-W", "error", *(["-W", INSTANCE] if OLD else [])]

# Importing Inductor's parts warns of torch's own; only what is shown by default counts there.
BACKENDS = {"aot_eager": STRICT, "inductor": []}


@pytest.mark.parametrize("backend", BACKENDS)
def test_quiet__every_recipe_eager_and_compiled(backend: str, tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[2] / "python"),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),  # a hit would spare the work that warns
    }
    done = subprocess.run(
        [sys.executable, *BACKENDS[backend], "-c", PROGRAM, backend],
        env=environment,
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stderr.splitlines() if "No CUDA runtime is found" not in line]
    assert not said, done.stderr
    assert done.stdout.split() in (["native"], ["folded"], ["emulated"])
