"""Hugging Face accelerate: models without memory, dispatch, offloading, its training loop."""

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import octet
import pytest
from laws import RECIPES
from safetensors.torch import save_file

import torch

accelerate = pytest.importorskip("accelerate")

DELAYED = RECIPES["delayed"]


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        octet.Linear(64, 96, device="cpu"), torch.nn.ReLU(), octet.Linear(96, 32, device="cpu")
    )


def train(of: Any, steps: int) -> list[torch.Tensor]:  # noqa: ANN401
    optimizer = torch.optim.SGD(of.parameters(), lr=0.5)
    for number in range(steps):
        torch.manual_seed(10 + number)
        with octet.autocast(recipe=DELAYED):
            loss = of(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in of.parameters()]


def empty(include_buffers: bool, prepared: bool) -> torch.nn.Module:
    with accelerate.init_empty_weights(include_buffers=include_buffers):
        made = torch.nn.Sequential(octet.Linear(64, 96), torch.nn.ReLU(), octet.Linear(96, 32))
        if prepared:
            octet.prepare(made, DELAYED)
    assert made[0].weight.is_meta
    return made


@pytest.mark.parametrize("include_buffers", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("dispatch", [False, True])
def test_accelerate__a_loaded_model_has_saved_or_fresh_scales(
    include_buffers: bool, prepared: bool, saved: bool, dispatch: bool, tmp_path: Path
) -> None:
    first = model()
    train(first, 2)
    kept = {k: v for k, v in first.state_dict().items() if saved or "fp8" not in k}
    assert any("fp8" in k for k in kept) == saved
    path = str(tmp_path / "model.safetensors")
    save_file(kept, path)
    other = empty(include_buffers, prepared)
    if dispatch:
        other = accelerate.load_checkpoint_and_dispatch(other, path, device_map={"": "cpu"})
    else:
        accelerate.load_checkpoint_in_model(other, path, device_map={"": "cpu"})
    for one, two in ((first[0], other[0]), (first[2], other[2])):
        assert torch.equal(one.weight, two.weight)
        assert two.fp8_scale.dtype == two.fp8_amax_history.dtype == torch.float32
        if saved and prepared:
            assert torch.equal(one.fp8_scale, two.fp8_scale)
            assert torch.equal(one.fp8_amax_history, two.fp8_amax_history[:4])
            assert torch.equal(one.fp8_grad_scale, two.fp8_grad_scale)
        else:
            assert torch.equal(two.fp8_scale, torch.ones(3))
            assert not two.fp8_amax_history.any()
            assert not two.fp8_grad_amax_history.any()
    with octet.autocast(recipe=DELAYED), torch.no_grad():
        assert other.eval()(torch.randn(8, 64)).isfinite().all()
    weights = train(other.train(), 2)
    assert all(weight.isfinite().all() for weight in weights)
    if saved and prepared:
        for one, two in zip(train(first, 2), weights, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "delayed"])
def test_accelerate__trains_with_gradient_accumulation(name: str) -> None:
    """Two microbatches a step, as a loop without accelerate has them."""

    def loop(with_it: bool) -> list[torch.Tensor]:
        inner = model()
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.5)
        wrapped, stepper = inner, optimizer
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        if with_it:
            wrapped, stepper = accelerator.prepare(inner, optimizer)
        for number in range(4):
            torch.manual_seed(20 + number)
            x = torch.randn(8, 64)
            if with_it:
                with accelerator.accumulate(wrapped):
                    with octet.autocast(recipe=RECIPES[name]):
                        loss = wrapped(x).square().mean()
                    accelerator.backward(loss)
                    stepper.step()
                    stepper.zero_grad()
                continue
            with octet.autocast(recipe=RECIPES[name]):
                loss = inner(x).square().mean()
            (loss / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        return [t.detach().clone() for t in (*inner.parameters(), *inner.buffers())]

    wanted, found = loop(False), loop(True)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


@pytest.mark.parametrize("name", ["none", "mxfp8", "delayed"])
@pytest.mark.parametrize("offload_buffers", [False, True])
def test_accelerate__an_offloaded_model_computes_the_same(
    name: str, offload_buffers: bool
) -> None:
    """Weights are on meta between calls."""
    plain, other = octet.prepare(model(), DELAYED), octet.prepare(model(), DELAYED)
    train(plain, 2)
    train(other, 2)
    x = torch.randn(8, 64)
    accelerate.cpu_offload(other, torch.device("cpu"), offload_buffers=offload_buffers)
    assert other[0].weight.is_meta
    for _ in range(2):
        with octet.autocast(enabled=name != "none", recipe=RECIPES[name]), torch.no_grad():
            assert torch.equal(plain.eval()(x), other.eval()(x))
