"""PEFT's LoRA layers for TransformerEngine, around Octet's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("peft")

# PEFT looks for TransformerEngine once, when it is imported: so a process of its own.
PROGRAM = """
import octet.compat.transformer_engine as compat
compat.install()
import octet, peft, torch
import transformer_engine.pytorch as te
from peft.tuners.lora.te import TeLinear

torch.manual_seed(1)
base = torch.nn.Sequential(te.Linear(64, 96), torch.nn.ReLU(), octet.Linear(96, 32))
lora = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["0", "2"]))
first, second = lora.base_model.model[0], lora.base_model.model[2]
assert isinstance(first, TeLinear), type(first)
assert isinstance(second, peft.tuners.lora.Linear), type(second)  # an nn.Linear: it merges
before = {name: p.detach().clone() for name, p in lora.named_parameters()}
optimizer = torch.optim.SGD([p for p in lora.parameters() if p.requires_grad], lr=0.5)
for _ in range(2):
    with te.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
        loss = lora(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
for name, p in lora.named_parameters():
    assert torch.equal(p, before[name]) == ("lora_" not in name), name
print("trained")
"""


def test_peft_te__adapters_train_around_octet_layers() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "python")}
    env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "trained", done.stderr[-3000:]
