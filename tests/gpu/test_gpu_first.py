"""A process whose first call of Octet is captured: nothing has to have run before."""

import os
import subprocess
import sys
from pathlib import Path

import octet
import pytest
from laws import RECIPES, assert_same, inputs, step, twins, within

import torch

TESTS = Path(__file__).parents[1]


def warm_torch(device: str) -> None:
    """What torch makes at its own first call: handles, and the engine's threads."""
    plain = torch.nn.Linear(16, 16, device=device)
    plain(torch.ones(16, 16, device=device)).sum().backward()


def capture_first(name: str, device: str = "cuda") -> None:
    """A step captured as the first one, and the same step in eager after it."""
    first, eager = twins(device=device)
    if name == "delayed":  # whose state a capture may not make
        octet.prepare(first, RECIPES[name])
    x, dy = (t.to(device) for t in inputs(77))
    warm_torch(device)
    inp = x.clone().requires_grad_()
    for t in (inp, *first.parameters()):
        t.grad = torch.zeros_like(t)
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.graph(graph),
        octet.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name]),
    ):
        y = first(inp)
        y.backward(dy)
    torch.manual_seed(3)  # as a step does
    graph.replay()
    found = [y.detach(), inp.grad, first.weight.grad, first.bias.grad]
    wanted = step(eager, within(RECIPES[name], eager), x, dy)
    assert_same(found, wanted[: len(found)])


# Without a cache, kernels are compiled in the capture, too.
@pytest.mark.parametrize(
    ("name", "cache"), [*((name, None) for name in RECIPES), ("block", "")]
)
def test_gpu_first__a_capture_needs_nothing_before_it(name: str, cache: str | None) -> None:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = f"{TESTS.parent / 'python'}:{TESTS / 'python'}"
    if cache is not None:
        environment["OCTET_CACHE"] = cache
    done = subprocess.run(
        [sys.executable, __file__, name],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


if __name__ == "__main__":
    capture_first(sys.argv[1])
